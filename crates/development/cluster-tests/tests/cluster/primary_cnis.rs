//! Tests of clusters with other primary CNIs, each started for its test, with both IP families.

use ambit_cluster_tests::{
    Mesh, NodeBoot, ProbeTreatment, assert_mesh_works, cni_plugin_types, delay_loopback, restarts,
    wait_until,
};

#[test]
fn captured_pods_talk_tls_alone_over_ptp() {
    let options = ["--ip-family=dual", "--primary-cni=ptp"];
    let mesh = Mesh::with_own_cluster(&options, &["cni.mode=owned"]);
    for node in mesh.cluster().nodes() {
        assert_eq!(cni_plugin_types(node), ["ambit-cni"]);
        delay_loopback(node);
    }
    assert_mesh_works(&mesh, ProbeTreatment::Exempt);
}

#[test]
fn captured_pods_talk_tls_alone_over_macvlan() {
    let options = ["--ip-family=dual", "--primary-cni=macvlan"];
    let mesh = Mesh::with_own_cluster(&options, &["cni.mode=chained"]);
    for node in mesh.cluster().nodes() {
        assert_eq!(
            cni_plugin_types(node),
            ["macvlan", "pod-cgroup", "ambit-cni"]
        );
    }
    assert_mesh_works(&mesh, ProbeTreatment::RejectedAsPlaintext);
}

#[test]
fn captured_pods_talk_tls_alone_over_flannel() {
    let options = ["--ip-family=dual", "--primary-cni=flannel"];
    let mesh = Mesh::with_own_cluster(&options, &["cni.mode=chained"]);
    let chain = ["flannel", "pod-cgroup", "ambit-cni"];
    for node in mesh.cluster().nodes() {
        assert_eq!(cni_plugin_types(node), chain);
    }
    let space = assert_mesh_works(&mesh, ProbeTreatment::Exempt);

    // Flannel rewrites its configuration at each boot of a node, and has no range until it is up.
    let node = mesh.cluster().node(1);
    node.kill().unwrap();
    node.start(NodeBoot::CniRewritten).unwrap();
    wait_until("the plugin is back in flannel's configuration", || {
        cni_plugin_types(node) == chain
    });
    wait_until("the node's pod runs again", || {
        space.pods("far").iter().any(|pod| restarts(pod) > 0)
    });
    space.wait_until_ready("far", 1);
    space.wait_until_captured("far", true);
    space.wait_for_get("far", "http://server/", true);
    mesh.wait_until_installed();
}
