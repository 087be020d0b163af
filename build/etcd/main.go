// Command etcd is the store of a test cluster's API server. With `util` as first argument it is etcdutl, which works on
// a stopped store.
package main

import (
	"os"

	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "util" {
		command := etcdutl.NewSnapshotCommand()
		command.SetArgs(os.Args[2:])
		if command.Execute() != nil {
			os.Exit(1)
		}
		return
	}
	etcdmain.Main(os.Args)
}
