// Command envoy-admin decodes responses of Envoy's admin interface as Envoy's own protobuf types. An unknown field or
// type is an error, and so is a message that fails Envoy's validation rules.
//
// Standard input is the JSON of an envoy.admin.v3.ConfigDump, or with the argument "clusters" of an
// envoy.admin.v3.Clusters. Errors go to standard error.
package main

import (
	"fmt"
	"io"
	"os"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

type validator interface{ ValidateAll() error }

// check validates a message and the messages packed in it as google.protobuf.Any.
func check(message proto.Message) error {
	if validator, ok := message.(validator); ok {
		if err := validator.ValidateAll(); err != nil {
			return err
		}
	}
	return checkPacked(message.ProtoReflect())
}

func checkPacked(message protoreflect.Message) (err error) {
	if packed, ok := message.Interface().(*anypb.Any); ok {
		unpacked, err := packed.UnmarshalNew()
		if err != nil {
			return err
		}
		return check(unpacked)
	}
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap() && field.MapValue().Message() != nil:
			value.Map().Range(func(_ protoreflect.MapKey, value protoreflect.Value) bool {
				err = checkPacked(value.Message())
				return err == nil
			})
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			list := value.List()
			for index := 0; index < list.Len() && err == nil; index++ {
				err = checkPacked(list.Get(index).Message())
			}
		default:
			err = checkPacked(value.Message())
		}
		return err == nil
	})
	return err
}

func run() error {
	var message proto.Message = &adminv3.ConfigDump{}
	if len(os.Args) > 1 && os.Args[1] == "clusters" {
		message = &adminv3.Clusters{}
	}
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if err := protojson.Unmarshal(text, message); err != nil {
		return err
	}
	return check(message)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
