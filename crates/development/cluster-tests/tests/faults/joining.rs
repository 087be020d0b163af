//! Tests of namespaces that join the mesh and leave it under load.

use ambit_cluster_tests::{Load, Mesh};

#[test]
fn labelling_and_unlabelling_under_load_fails_no_request() {
    let mesh = Mesh::alone();
    let space = mesh.space("hitless");
    space.serve("server", Some("n2"));
    let load = Load::start(&space, "load", Some("n1"), "server");
    space.label(Some("ambient"));
    space.until_captured("server", true);
    space.until_captured("load", true);
    space.until_get("load", "http://server/", true);
    space.label(None);
    space.until_captured("server", false);
    space.until_captured("load", false);
    space.until_get("load", "http://server/", true);
    load.finish().assert_flawless();
}
