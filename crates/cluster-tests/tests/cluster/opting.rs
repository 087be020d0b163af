//! A pod that says for itself whether it belongs, and changes its mind.

use ambit_cluster_tests::Mesh;

#[test]
fn a_running_pod_leaves_and_joins_by_its_own_label() {
    let mesh = Mesh::shared();
    let space = mesh.space("changing");
    space.label(Some("ambient"));
    space.serve("server", Some("n2"));
    space.client("client", Some("n1"));
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
    set("-");
    space.until_captured("client", true);
    space.until_get("client", "http://server/", true);
}
