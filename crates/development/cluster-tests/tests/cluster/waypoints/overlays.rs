//! Tests of a waypoint's overlays, in the ConfigMap of its Gateway's `parametersRef`, with the cluster's own
//! controllers.

use ambit_cluster_tests::{Mesh, Waypoint, wait_until};
use serde_json::json;

use super::WaypointFixture;

#[test]
fn an_autoscaler_of_the_parameters_decides_how_many_pods_a_waypoint_has() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("autoscaled");
    let covered = WaypointFixture::new(&space);
    let waypoint = &covered.waypoint;
    let parameters = |data: serde_json::Value| {
        space.apply(
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}, "data": data})
                .to_string(),
        );
    };
    // No metrics are served here: the autoscaler keeps to its bounds.
    let autoscaler = "spec: {minReplicas: 3, maxReplicas: 4}";
    parameters(json!({"horizontalPodAutoscaler": autoscaler}));
    let reference = json!({"group": "", "kind": "ConfigMap", "name": "own"});
    waypoint.patch(&json!({"spec": {"infrastructure": {"parametersRef": reference}}}));
    waypoint.wait_until_ready(3);
    waypoint.wait_for_condition("Accepted", "True Accepted");

    // Each change of the Deployment leaves the number to it.
    let labelled = "metadata: {labels: {team: edge}}";
    parameters(json!({"horizontalPodAutoscaler": autoscaler, "deployment": labelled}));
    wait_until("the Deployment has the label", || {
        let path = "--output=jsonpath={.metadata.labels.team} {.spec.replicas}";
        waypoint.kubectl(&["get", "deployment", "waypoint", path]) == "edge 3"
    });
    for url in &covered.urls {
        covered.wait_until_via_waypoint(&space, url);
    }
    let scaled = scaling_events(waypoint);
    assert!(scaled.contains("from 2 to 3"), "{scaled}");
    assert!(!scaled.contains("Scaled down"), "{scaled}");

    waypoint.patch(&json!({"spec": {"infrastructure": {"parametersRef": null}}}));
    wait_until("the autoscaler is gone", || {
        let left = waypoint.kubectl(&["get", "horizontalpodautoscalers", "--output=name"]);
        left.is_empty()
    });
    waypoint.wait_until_ready(2);
    for url in &covered.urls {
        covered.wait_until_via_waypoint(&space, url);
    }

    // The same for who scaled it by hand, lets the Gateway say the number, and then nobody.
    waypoint.scale(3);
    let annotate_replicas = |number: serde_json::Value| {
        let number = json!({"ambit.io/waypoint-replicas": number});
        waypoint.patch(&json!({"metadata": {"annotations": number}}));
    };
    annotate_replicas(json!("4"));
    waypoint.wait_until_ready(4);
    annotate_replicas(json!(null));
    waypoint.wait_until_ready(2);
    for url in &covered.urls {
        covered.wait_until_via_waypoint(&space, url);
    }
    let scaled = scaling_events(waypoint);
    assert!(!scaled.contains("to 1"), "{scaled}");
    assert!(!scaled.contains("from 1"), "{scaled}");
}

/// Returns the events about the number of a waypoint's pods.
fn scaling_events(waypoint: &Waypoint<'_>) -> String {
    waypoint.kubectl(&[
        "get",
        "events",
        "--field-selector=reason=ScalingReplicaSet,involvedObject.name=waypoint",
        "--output=jsonpath={.items[*].message}",
    ])
}
