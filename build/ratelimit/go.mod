module ratelimit

go 1.26.0

require (
	github.com/envoyproxy/go-control-plane/envoy v1.40.0
	google.golang.org/grpc v1.83.2
	google.golang.org/protobuf v1.36.12
)
