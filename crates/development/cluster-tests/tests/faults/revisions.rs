//! Test of a canary upgrade: a second control plane takes over waypoints and node proxies while they serve.

use ambit_cluster_tests::{Load, Mesh, Waypoint};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

/// Values of the second control plane, without agents and node proxies.
const CANARY_VALUES: &str =
    "global.revision=canary,global.components=control-plane,revisionTags={stable}";

#[test]
fn no_request_fails_while_a_second_control_plane_takes_over() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("canary");
    space.deploy_captured_server();
    let waypoint = Waypoint::apply(&space);
    assert!(all_use_control_plane(&waypoint.pods(), "istiod"));
    let load = Load::start_slow(&space, "load", "n1", "server");
    space.wait_until_captured("load", true);
    space.wait_for_get("load", "http://server/", true);

    mesh.install(&[CANARY_VALUES]);
    let before = names(&waypoint.pods());
    let root = |name: &str| {
        let namespace = ["--namespace", space.name()];
        mesh.kubectl(
            &[
                &["get", "configmap", name, "--output=jsonpath={.data}"][..],
                &namespace,
            ]
            .concat(),
        )
    };
    let roots = root("istio-ca-root-cert");
    assert_eq!(names(&waypoint.pods()), before, "nothing moves by itself");

    // A Gateway of its own label, then of a tag, of its namespace, and of the default revision again.
    waypoint.wait_until_replaced(|waypoint| set_revision_label(waypoint, "canary"));
    assert!(all_use_control_plane(&waypoint.pods(), "istiod-canary"));
    waypoint.wait_for_condition("Programmed", "True Programmed");
    let moved = names(&waypoint.pods());
    set_revision_label(&waypoint, "stable");
    mesh.install(&["ztunnel.revision=canary"]);
    assert_eq!(
        names(&waypoint.pods()),
        moved,
        "the tag is of the same revision"
    );
    space.wait_for_get("load", "http://server/", true);
    assert_eq!(root("istio-ca-root-cert"), roots, "both have the same root");

    // Back, and the second control plane goes.
    mesh.install(&[]);
    waypoint.wait_until_replaced(|waypoint| set_revision_label(waypoint, "default"));
    assert!(all_use_control_plane(&waypoint.pods(), "istiod"));
    mesh.ambit(&["uninstall", "--revision=canary"]);
    assert!(!mesh.chart_objects().contains("canary"));
    waypoint.wait_for_condition("Programmed", "True Programmed");
    space.wait_for_get("load", "http://server/", true);
    load.finish().assert_no_failures();
}

/// Sets the revision label of the Gateway to a revision or a tag.
fn set_revision_label(waypoint: &Waypoint<'_>, revision: &str) {
    waypoint.patch(&json!({"metadata": {"labels": {"istio.io/rev": revision}}}));
}

fn names(pods: &[Pod]) -> Vec<String> {
    let names = pods.iter().filter_map(|pod| pod.metadata.name.clone());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Returns whether all pods use the control plane behind this Service.
fn all_use_control_plane(pods: &[Pod], service: &str) -> bool {
    let address = format!("https://{service}.istio-system.svc:15012");
    pods.iter().all(|pod| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut env = containers.flat_map(|container| container.env.iter().flatten());
        env.any(|one| one.name == "XDS_ADDRESS" && one.value.as_ref() == Some(&address))
    })
}
