// Command authorizer is an ext_authz provider for CUSTOM policies, built on the messages that the Envoy project
// publishes, with the other programs of a comparison with Envoy: an application that echoes requests, a client, and the
// recorder of vectors/ext-authz.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage:
  authorizer serve                 a provider: gRPC on 9000, HTTP on 8000, one of gRPC that denies everything on 9001,
                                   what it was asked as JSON on 9002
  authorizer backend               an application that answers with what it was sent, on 8081
  authorizer ask ADDRESS REQUEST   sends a request, which is JSON, and prints what is answered
  authorizer record ENVOY CASES    what Envoy asks and answers, as JSON`

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serve(ctx)
	case len(args) == 1 && args[0] == "backend":
		return serveBackend(ctx, ":8081")
	case len(args) == 3 && args[0] == "ask":
		return ask(ctx, args[1], args[2])
	case len(args) == 3 && args[0] == "record":
		return record(ctx, args[1], args[2])
	}
	return fmt.Errorf("%s", usage)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
