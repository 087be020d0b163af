//! Tests of which Gateways get a waypoint, of their status, and of what is left when they are deleted.

use ambit_cluster_tests::{Mesh, TestNamespace, address, condition, wait_until};
use serde_json::{Value, json};

use super::{WaypointFixture, reported_source_address};

#[test]
fn a_deleted_gateway_releases_its_pods_and_leaves_nothing() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("deleted");
    let covered = WaypointFixture::new(&space);
    let status = covered.waypoint.gateway()["status"].clone();
    assert_eq!(
        condition(&status, "Programmed").as_deref(),
        Some("True Programmed")
    );
    let name = format!("waypoint.{}.svc.cluster.local", space.name());
    let addresses = status["addresses"].as_array().unwrap();
    assert!(addresses.iter().any(|one| one["value"] == name.as_str()));
    assert_eq!(covered.waypoint.generated_objects().lines().count(), 4);

    covered.waypoint.delete();
    wait_until("nothing is left of it", || {
        covered.waypoint.generated_objects().is_empty() && covered.waypoint.pods().is_empty()
    });
    wait_until_direct(&space, &covered);
}

#[test]
fn a_gateway_that_gets_another_class_loses_its_waypoint() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("class");
    let covered = WaypointFixture::new(&space);
    // Of a controller that is not here.
    let class = format!("of-{}", space.name());
    let theirs = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": class}, "spec": {"controllerName": "example.com/other"}});
    mesh.apply(&theirs.to_string());
    covered
        .waypoint
        .patch(&json!({"spec": {"gatewayClassName": class}}));
    wait_until("nothing is left of it", || {
        covered.waypoint.generated_objects().is_empty() && covered.waypoint.pods().is_empty()
    });
    wait_until("its status has no condition of a waypoint", || {
        let status = covered.waypoint.gateway()["status"].clone();
        status["addresses"].is_null()
            && condition(&status, "Programmed") != expected_condition("True Programmed")
    });
    wait_until_direct(&space, &covered);
    let there = mesh.kubectl(&["get", "gatewayclass", &class, "--output=json"]);
    let there: Value = serde_json::from_str(&there).unwrap();
    assert_ne!(
        condition(&there["status"], "Accepted"),
        expected_condition("True Accepted")
    );
    mesh.kubectl(&["delete", "gatewayclass", &class]);
}

#[test]
fn only_gateways_of_the_class_and_the_revision_get_what_they_can_have() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("which");
    let gateway = |name: &str, class: &str, labels: Value, annotations: Value| {
        let gateway = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "spec": {"gatewayClassName": class,
                "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}]}});
        space.apply(&gateway.to_string());
    };
    let ours = "istio-waypoint";
    let type_of = "networking.istio.io/service-type";
    let other_name = "gateway.istio.io/name-override";
    gateway("other-class", "example", json!({}), json!({}));
    gateway(
        "other-revision",
        ours,
        json!({"istio.io/rev": "canary"}),
        json!({}),
    );
    gateway(
        "other-name",
        ours,
        json!({}),
        json!({other_name: "renamed"}),
    );
    gateway(
        "other-type",
        ours,
        json!({}),
        json!({type_of: "ExternalName"}),
    );
    let balanced = json!({type_of: "NodePort", "ambit.io/waypoint-replicas": "1"});
    gateway("good", ours, json!({"istio.io/rev": "default"}), balanced);

    wait_until("the good one is programmed", || {
        gateway_condition(&space, "good", "Programmed") == expected_condition("True Programmed")
    });
    for refused in ["other-name", "other-type"] {
        wait_until(&format!("{refused} is refused"), || {
            gateway_condition(&space, refused, "Accepted") == expected_condition("False Invalid")
        });
    }
    for left in ["other-class", "other-revision"] {
        assert_ne!(
            gateway_condition(&space, left, "Accepted"),
            expected_condition("True Accepted"),
            "{left}"
        );
    }
    let all = ["get", "deployments,services", "--namespace", space.name()];
    let made = mesh.kubectl(&[&all[..], &["--output=name"]].concat());
    assert_eq!(made, "deployment.apps/good\nservice/good\n");
    let service = ["get", "service", "good", "--namespace", space.name()];
    let kind = mesh.kubectl(&[&service[..], &["--output=jsonpath={.spec.type}"]].concat());
    assert_eq!(kind, "NodePort");
}

#[expect(clippy::unnecessary_wraps, reason = "what it is compared with")]
fn expected_condition(condition: &str) -> Option<String> {
    Some(condition.to_owned())
}

/// Returns the status condition of type `kind` of a Gateway in the test's namespace.
fn gateway_condition(space: &TestNamespace<'_>, gateway: &str, kind: &str) -> Option<String> {
    let get = ["get", "gateway", gateway, "--output=json", "--namespace"];
    let text = space.mesh().kubectl(&[&get[..], &[space.name()]].concat());
    let gateway: Value = serde_json::from_str(&text).unwrap();
    condition(&gateway["status"], kind)
}

/// Waits until the server receives requests directly from the client, without a waypoint.
fn wait_until_direct(space: &TestNamespace<'_>, covered: &WaypointFixture<'_>) {
    let client = address(&space.pods("client")[0]);
    for url in &covered.urls {
        wait_until(&format!("{url} is routed directly to the server"), || {
            let answer = space.get("client", &format!("{url}/"));
            answer
                .ok()
                .and_then(|answer| reported_source_address(&answer))
                == Some(client)
        });
    }
}
