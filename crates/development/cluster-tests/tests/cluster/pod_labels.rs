//! Tests of a pod that opts in or out by its own label, and changes the label.

use ambit_cluster_tests::{FlowKind, Mesh, address, assert_only_tls};

#[test]
fn a_running_pod_leaves_and_joins_by_its_own_label() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("changing");
    space.label(Some("ambient"));
    let server = space.deploy_server("server", Some("n2"));
    let client = space.deploy_client("client", Some("n1"));
    space.wait_until_captured("server", true);
    space.wait_until_captured("client", true);
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
    space.wait_until_captured("client", false);
    space.wait_for_get("client", "http://server/", true);
    let wire = mesh.capture_traffic(&[]);
    space.get("client", "http://server/").unwrap();
    let reports = wire.finish();
    let direct = reports.iter().any(|report| {
        report.client == address(&client)
            && report.server.ip() == address(&server)
            && report.kind == FlowKind::Plaintext
    });
    assert!(direct, "{reports:#?}");

    set("-");
    space.wait_until_captured("client", true);
    space.wait_for_get("client", "http://server/", true);
    let wire = mesh.capture_traffic(&["GET /"]);
    space.get("client", "http://server/").unwrap();
    assert_only_tls(&wire.finish(), &[&client, &server]);
}
