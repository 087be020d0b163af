//! Tests of namespaces that join the mesh and leave it.

use ambit_cluster_tests::{Mesh, assert_only_tls};

#[test]
fn running_and_new_pods_join_by_the_label_and_leave_with_it() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("joining");
    space.deploy_server("server", Some("n2"));
    space.deploy_client("client", Some("n1"));
    space.label(Some("ambient"));
    space.wait_until_captured("server", true);
    space.wait_until_captured("client", true);
    space.deploy("late", 1, Some("n1"), &["sleep"]);
    let late = space.wait_until_ready("late", 1).remove(0);
    space.wait_until_captured("late", true);
    space.wait_for_get("late", "http://server/", true);
    space.wait_for_get("client", "http://server/", true);

    let wire = mesh.capture_traffic(&["GET /"]);
    for client in ["client", "late"] {
        space.get(client, "http://server/").unwrap();
    }
    let server = space.pods("server").remove(0);
    let client = space.pods("client").remove(0);
    assert_only_tls(&wire.finish(), &[&server, &client, &late]);

    space.label(None);
    for app in ["server", "client", "late"] {
        space.wait_until_captured(app, false);
    }
    space.wait_for_get("client", "http://server/", true);
}
