//! Tests of uninstalling the mesh: checks for remains on nodes and in pods.

use std::{fs, path::Path};

use ambit_cluster::CNI_FILE;

use crate::{Load, Mesh, process::run_successfully};

/// Parts of nftables rules that exist only for captured pods.
const CAPTURE_RULE_PARTS: [&str; 3] = ["redirect", "reject", "nat-prerouting"];

/// Rules of the node, and the directories of BPF programs.
const NODE_STATE: &str = "nft list tables; ls -R /sys/fs/bpf";

const POD_RULES: &str = "for netns in /run/netns/*; do
    echo $netns
    nsenter --net=$netns nft list ruleset
done";

/// Uninstalls the mesh under load, and checks that neither pods, CNI files nor redirection rules of the mesh are left.
#[track_caller]
pub fn assert_uninstalls(mesh: &Mesh, uninstall: impl FnOnce() + Send) {
    let space = mesh.test_namespace("uninstall");
    space.deploy_captured_server();
    // Unenrolled pods depend on the node's kube-proxy: it must know the server, too.
    let outside = mesh.test_namespace("outside");
    outside.deploy_client("client", Some("n1"));
    let url = format!("http://server.{}/", space.name());
    outside.wait_for_get("client", &url, true);
    let load = Load::start_captured(&space);
    // Connections that were opened through the mesh continue as long as their proxies drain, and so
    // does the command: until the load ends.
    std::thread::scope(|scope| {
        let uninstall = scope.spawn(uninstall);
        space.wait_until_captured("server", false);
        space.wait_until_captured("load", false);
        space.deploy_client("late", Some("n1"));
        space.wait_for_get("late", "http://server/", true);
        load.finish().assert_no_failures();
        uninstall.join().unwrap();
    });
    mesh.wait_until_removed();
    for node in mesh.cluster().nodes() {
        assert_eq!(names(&node.configurations().unwrap()), [CNI_FILE]);
        let file = node.configurations().unwrap().join(CNI_FILE);
        let text = fs::read_to_string(file).unwrap();
        let plugins = names(&node.plugins().unwrap());
        let ours = plugins.iter().any(|name| name.contains("ambit"));
        assert!(!ours && !text.contains("ambit"), "{plugins:?}, {text}");
        let [of_node, of_pods] = [NODE_STATE, POD_RULES].map(|script| {
            let mut shell = node.command("sh").unwrap();
            run_successfully(shell.args(["-ec", script]))
        });
        for ours in ["ambit", "istio"] {
            assert!(!of_node.contains(ours), "{ours}: {of_node}");
        }
        // Rules for the open connections of a released pod stay until its end; none of them redirects.
        for statement in CAPTURE_RULE_PARTS {
            assert!(!of_pods.contains(statement), "{statement}: {of_pods}");
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = directory.read_dir().unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.collect()
}
