//! Tests of a pod that opts in or out by its own label, and changes the label.

use ambit_cluster_tests::{FlowKind, Mesh, address, assert_only_tls};

#[test]
fn a_running_pod_leaves_and_joins_by_its_own_label() {
    let mesh = Mesh::shared();
    let space = mesh.space("changing");
    space.label(Some("ambient"));
    let server = space.serve("server", Some("n2"));
    let client = space.client("client", Some("n1"));
    space.until_captured("server", true);
    space.until_captured("client", true);
    let name = space.pods("client")[0].metadata.name.clone().unwrap();
    let set = |mode: &str| {
        let label = format!("istio.io/dataplane-mode{mode}");
        mesh.kubectl(&[
            "label",
            "--overwrite",
            "--namespace",
            space.name(),
            "pod",
            &name,
            &label,
        ]);
    };
    set("=none");
    space.until_captured("client", false);
    space.until_get("client", "http://server/", true);
    let wire = mesh.watch(&[]);
    space.get("client", "http://server/").unwrap();
    let reports = wire.finish();
    let direct = reports.iter().any(|report| {
        report.client == address(&client)
            && report.server.ip() == address(&server)
            && report.kind == FlowKind::Plaintext
    });
    assert!(direct, "{reports:#?}");

    set("-");
    space.until_captured("client", true);
    space.until_get("client", "http://server/", true);
    let wire = mesh.watch(&["GET /"]);
    space.get("client", "http://server/").unwrap();
    assert_only_tls(&wire.finish(), &[&client, &server]);
}
