//! Tests of namespaces that join the mesh and leave it under load.

use ambit_cluster_tests::{Load, Mesh};

#[test]
fn labelling_and_unlabelling_under_load_fails_no_request() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("hitless");
    space.deploy_server("server", Some("n2"));
    let load = Load::start(&space, "load", Some("n1"), "server");
    space.label(Some("ambient"));
    space.wait_until_captured("server", true);
    space.wait_until_captured("load", true);
    space.wait_for_get("load", "http://server/", true);
    space.label(None);
    space.wait_until_captured("server", false);
    space.wait_until_captured("load", false);
    space.wait_for_get("load", "http://server/", true);
    load.finish().assert_no_failures();
}
