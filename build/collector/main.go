// Command collector is the OTLP receiver of the OpenTelemetry collector, which prints received traces and logs as lines
// of OTLP JSON. Tests of tracing and of access logs over OTLP export to it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

var writing sync.Mutex

func write(line []byte, err error) error {
	if err != nil {
		return err
	}
	writing.Lock()
	defer writing.Unlock()
	_, err = fmt.Printf("%s\n", line)
	return err
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	traces, err := consumer.NewTraces(func(_ context.Context, all ptrace.Traces) error {
		return write((&ptrace.JSONMarshaler{}).MarshalTraces(all))
	})
	if err != nil {
		return err
	}
	logs, err := consumer.NewLogs(func(_ context.Context, all plog.Logs) error {
		return write((&plog.JSONMarshaler{}).MarshalLogs(all))
	})
	if err != nil {
		return err
	}
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	protocols := map[string]any{
		"grpc": map[string]any{"endpoint": "0.0.0.0:4317"},
		"http": map[string]any{"endpoint": "0.0.0.0:4318"},
	}
	given := confmap.NewFromStringMap(map[string]any{"protocols": protocols})
	if err := given.Unmarshal(config); err != nil {
		return err
	}
	settings := receivertest.NewNopSettings(factory.Type())
	// The factory returns one shared receiver for both signals, since they have the same configuration.
	ofTraces, err := factory.CreateTraces(ctx, settings, config, traces)
	if err != nil {
		return err
	}
	ofLogs, err := factory.CreateLogs(ctx, settings, config, logs)
	if err != nil {
		return err
	}
	host := componenttest.NewNopHost()
	if err := ofTraces.Start(ctx, host); err != nil {
		return err
	}
	if err := ofLogs.Start(ctx, host); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "receiving")
	<-ctx.Done()
	if err := ofLogs.Shutdown(context.Background()); err != nil {
		return err
	}
	return ofTraces.Shutdown(context.Background())
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
