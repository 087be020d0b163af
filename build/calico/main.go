// Command calico is Calico's CNI plugin and, under the name calico-felix, Calico's agent for a node of a test cluster,
// reduced to what needs no C library: without BPF. The agent's settings are environment variables, as for the published
// one; the published image's other daemons distribute routes, which test clusters have from the start.
package main

import (
	"context"
	"log"
	"os"
	"path/filepath"

	"github.com/projectcalico/calico/cni-plugin/pkg/plugin"
	"github.com/projectcalico/calico/felix/daemon"
	"github.com/projectcalico/calico/libcalico-go/lib/clientv3"
)

const version = "v3.28.5"

func main() {
	if filepath.Base(os.Args[0]) != "calico-felix" {
		plugin.Main(version)
		return
	}
	if err := initialize(); err != nil {
		log.Fatal(err)
	}
	daemon.Run("/etc/calico/felix.cfg", version, "", "")
}

// initialize declares the cluster ready for plugins and agents, as the published image's start-up command does.
func initialize() error {
	client, err := clientv3.NewFromEnv()
	if err != nil {
		return err
	}
	return client.EnsureInitialized(context.Background(), version, "k8s")
}
