// Command flanneld is flannel's daemon reduced to the needs of a test cluster: pod CIDRs from Node objects, and the
// VXLAN backend. Its arguments are a kubeconfig, flannel's own configuration and the file to write for flannel's CNI
// plugin; the environment variable NODE_NAME is the name of its node. The published daemon would link the clients of
// several clouds.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: flanneld KUBECONFIG NET-CONF SUBNET-FILE")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig, netConf, subnetFile string) error {
	nodes, err := kube.NewSubnetManager(ctx, "", kubeconfig, "flannel.alpha.coreos.com", netConf, false)
	if err != nil {
		return err
	}
	config, err := nodes.GetNetworkConfig(ctx)
	if err != nil {
		return err
	}
	families, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return err
	}
	link, err := ipmatch.LookupExtIface("eth0", "", "", families, ipmatch.PublicIPOpts{})
	if err != nil {
		return err
	}
	wires, err := backend.NewManager(ctx, nodes, link).GetBackend(config.BackendType)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	network, err := wires.RegisterNetwork(ctx, &running, config)
	if err != nil {
		return err
	}
	lease := network.Lease()
	err = nodes.HandleSubnetFile(subnetFile, config, false, lease.Subnet, lease.IPv6Subnet, network.MTU())
	if err != nil {
		return err
	}
	network.Run(ctx)
	running.Wait()
	return nil
}
