//! Tests of clusters with other primary CNIs, each started for its test, with both IP families.

use ambit_cluster_tests::{
    Mesh, NodeBoot, Probes, assert_at_home, delay_loopback, plugins, restarts, until,
};

#[test]
fn captured_pods_talk_tls_alone_over_ptp() {
    let options = ["--ip-family=dual", "--primary-cni=ptp"];
    let mesh = Mesh::own(&options, &["cni.mode=owned"]);
    for node in mesh.cluster().nodes() {
        assert_eq!(plugins(node), ["ambit-cni"]);
        delay_loopback(node);
    }
    assert_at_home(&mesh, Probes::Exempt);
}

#[test]
fn captured_pods_talk_tls_alone_over_macvlan() {
    let options = ["--ip-family=dual", "--primary-cni=macvlan"];
    let mesh = Mesh::own(&options, &["cni.mode=chained"]);
    for node in mesh.cluster().nodes() {
        assert_eq!(plugins(node), ["macvlan", "portmap", "ambit-cni"]);
    }
    assert_at_home(&mesh, Probes::AsAnyPlaintext);
}

#[test]
fn captured_pods_talk_tls_alone_over_flannel() {
    let options = ["--ip-family=dual", "--primary-cni=flannel"];
    let mesh = Mesh::own(&options, &["cni.mode=chained"]);
    let chain = ["flannel", "portmap", "ambit-cni"];
    for node in mesh.cluster().nodes() {
        assert_eq!(plugins(node), chain);
    }
    let space = assert_at_home(&mesh, Probes::Exempt);

    // Flannel rewrites its configuration at each boot of a node, and has no range until it is up.
    let node = mesh.cluster().node(1);
    node.kill().unwrap();
    node.start(NodeBoot::CniRewritten).unwrap();
    until("the plugin is back in flannel's configuration", || {
        plugins(node) == chain
    });
    until("the node's pod runs again", || {
        space.pods("far").iter().any(|pod| restarts(pod) > 0)
    });
    space.ready("far", 1);
    space.until_captured("far", true);
    space.until_get("far", "http://server/", true);
    mesh.until_installed();
}
