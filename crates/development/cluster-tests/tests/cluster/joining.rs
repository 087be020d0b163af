//! Tests of namespaces that join the mesh and leave it.

use ambit_cluster_tests::{Mesh, assert_only_tls};

#[test]
fn running_and_new_pods_join_by_the_label_and_leave_with_it() {
    let mesh = Mesh::shared();
    let space = mesh.space("joining");
    space.serve("server", Some("n2"));
    space.client("client", Some("n1"));
    space.label(Some("ambient"));
    space.until_captured("server", true);
    space.until_captured("client", true);
    space.deploy("late", 1, Some("n1"), &["sleep"]);
    let late = space.ready("late", 1).remove(0);
    space.until_captured("late", true);
    space.until_get("late", "http://server/", true);
    space.until_get("client", "http://server/", true);

    let wire = mesh.watch(&["GET /"]);
    for client in ["client", "late"] {
        space.get(client, "http://server/").unwrap();
    }
    let server = space.pods("server").remove(0);
    let client = space.pods("client").remove(0);
    assert_only_tls(&wire.finish(), &[&server, &client, &late]);

    space.label(None);
    for app in ["server", "client", "late"] {
        space.until_captured(app, false);
    }
    space.until_get("client", "http://server/", true);
}
