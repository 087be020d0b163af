//! Tests of the test cluster itself.

use ambit_cluster_tests::{Load, Mesh};

#[test]
fn pods_outside_the_mesh_start_talk_and_carry_load() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("outside");
    space.deploy_server("server", Some("n2"));
    space.deploy_client("client", Some("n1"));
    // Both nodes' kube-proxies are to know the server: the load runs on the first, this on the second.
    space.wait_for_get("client", "http://server/", true);
    let answer = space.get("client", "http://server/").unwrap();
    assert!(answer.starts_with("200"), "{answer}");
    Load::start(&space, "load", Some("n1"), "server")
        .finish()
        .assert_no_failures();
}
