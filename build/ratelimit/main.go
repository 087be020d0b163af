// Command ratelimit is a rate-limit service of Envoy's protocol for the system tests, built on the types that Envoy's
// API publishes.
//
// It counts in memory: two requests for each descriptor of a domain pass in an hour. Received requests are printed as
// lines of JSON. Some domains select misbehaviour, such as a response that never arrives.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	api "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
)

// most is the number of requests that pass for each descriptor.
const most = 2

type service struct {
	api.UnimplementedRateLimitServiceServer
	lock   sync.Mutex
	counts map[string]uint32
}

func (s *service) ShouldRateLimit(ctx context.Context, request *api.RateLimitRequest) (*api.RateLimitResponse, error) {
	line, err := protojson.MarshalOptions{}.Marshal(request)
	if err != nil {
		return nil, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	fmt.Printf("%s\n", line)
	switch request.Domain {
	case "hang":
		s.lock.Unlock()
		<-ctx.Done()
		s.lock.Lock()
		return nil, ctx.Err()
	case "unknown":
		return &api.RateLimitResponse{}, nil
	case "broken":
		return nil, status.Error(codes.Internal, "broken")
	case "flood":
		return &api.RateLimitResponse{
			OverallCode: api.RateLimitResponse_OK,
			RawBody:     make([]byte, 1<<20),
		}, nil
	case "framing":
		return &api.RateLimitResponse{
			OverallCode: api.RateLimitResponse_OK,
			ResponseHeadersToAdd: []*core.HeaderValue{
				{Key: "transfer-encoding", Value: "chunked"},
				{Key: "content-length", Value: "1"},
				{Key: "x-two", Value: "a\r\nx-smuggled: b"},
				{Key: "x-good", Value: "yes"},
			},
		}, nil
	}
	answer := &api.RateLimitResponse{OverallCode: api.RateLimitResponse_OK}
	for _, descriptor := range request.Descriptors {
		name := request.Domain
		for _, entry := range descriptor.Entries {
			name += " " + entry.Key + "=" + entry.Value
		}
		used := s.counts[name] + max(request.HitsAddend, 1)
		met := &api.RateLimitResponse_DescriptorStatus{
			Code: api.RateLimitResponse_OK,
			CurrentLimit: &api.RateLimitResponse_RateLimit{
				RequestsPerUnit: most,
				Unit:            api.RateLimitResponse_RateLimit_HOUR,
			},
			DurationUntilReset: durationpb.New(30 * time.Minute),
		}
		if used > most {
			met.Code = api.RateLimitResponse_OVER_LIMIT
			answer.OverallCode = api.RateLimitResponse_OVER_LIMIT
			answer.RawBody = []byte("slow down")
		} else {
			s.counts[name] = used
			met.LimitRemaining = most - used
		}
		answer.Statuses = append(answer.Statuses, met)
		answer.ResponseHeadersToAdd = append(answer.ResponseHeadersToAdd, &core.HeaderValue{
			Key: "x-limited-by", Value: strings.ReplaceAll(name, " ", ";"),
		})
	}
	return answer, nil
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", "0.0.0.0:8081")
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterRateLimitServiceServer(server, &service{counts: map[string]uint32{}})
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	fmt.Fprintln(os.Stderr, "serving")
	return server.Serve(listener)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
