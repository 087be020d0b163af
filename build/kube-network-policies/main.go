// Command kube-network-policies enforces NetworkPolicies on the pods of a node of a test cluster, with the engine of
// the project of that name. Its arguments are a kubeconfig and the node's name. The published command finds its cluster
// only by a service account, which a process on a node does not have.
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
		// No AdminNetworkPolicies, and no Nodes, which only these use.
		nil, nil, nil, nil,
		// NRIdisabled must stay false: with it set, the engine crashes at the first address that belongs to no pod. An
		// unavailable container runtime is no error.
		networkpolicy.Config{NodeName: node},
	)
	if err != nil {
		return err
	}
	objects.Start(ctx.Done())
	return engine.Run(ctx)
}
