// Command kube is all of Kubernetes that a test cluster needs, in one binary: its base name, or else its first
// argument, selects the component. The components share most of the code, the build and the page cache.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata"

	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var parts = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 newKubelet,
	"kube-proxy":              proxy.NewProxyCommand,
	"kubectl":                 func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() },
}

// newKubelet calls a function that takes a context since Kubernetes 1.33.
func newKubelet() *cobra.Command {
	switch command := any(kubelet.NewKubeletCommand).(type) {
	case func(context.Context) *cobra.Command:
		return command(context.Background())
	case func() *cobra.Command:
		return command()
	default:
		panic(fmt.Sprintf("NewKubeletCommand is a %T", command))
	}
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, ok := parts[name]; !ok && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
	}
	part, ok := parts[name]
	if !ok {
		names := []string{}
		for name := range parts {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: kube {%s} [flags]\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	os.Exit(cli.Run(part()))
}
