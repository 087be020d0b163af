// Command kube-network-policies is the engine of that name as a cluster for tests needs it: it decides by
// the cluster's NetworkPolicies which connections of a node's pods may begin. Its arguments are a
// kubeconfig and the node's name. The command as it is published knows its cluster by a service account
// alone, which a process on a node has not.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: kube-network-policies KUBECONFIG NODE")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig, node string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	objects := informers.NewSharedInformerFactory(client, 0)
	engine, err := networkpolicy.NewController(
		client,
		objects.Networking().V1().NetworkPolicies(),
		objects.Core().V1().Namespaces(),
		objects.Core().V1().Pods(),
		// Nodes, and policies of administrators, which alone are about nodes and are not asked for.
		nil, nil, nil, nil,
		// It must not be told to leave the runtime alone (NRIdisabled): without one to ask it ends at the
		// first address that is no pod's. That no runtime answers is nothing to it.
		networkpolicy.Config{NodeName: node},
	)
	if err != nil {
		return err
	}
	objects.Start(ctx.Done())
	return engine.Run(ctx)
}
