// Command spire is SPIRE's server or agent, whose name is the first argument; its own arguments follow.
package main

import (
	"context"
	"fmt"
	"os"

	agent "github.com/spiffe/spire/cmd/spire-agent/cli"
	server "github.com/spiffe/spire/cmd/spire-server/cli"
	"github.com/spiffe/spire/pkg/common/entrypoint"
)

func main() {
	programs := map[string]func(context.Context, []string) int{
		"agent":  new(agent.CLI).Run,
		"server": new(server.CLI).Run,
	}
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	run, known := programs[name]
	if !known {
		fmt.Fprintln(os.Stderr, "usage: spire server|agent ARGUMENTS")
		os.Exit(2)
	}
	os.Args = os.Args[1:]
	os.Exit(entrypoint.NewEntryPoint(run).Main())
}
