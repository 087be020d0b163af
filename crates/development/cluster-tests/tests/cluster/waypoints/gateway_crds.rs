//! Tests of the Gateway API's CRDs: of another release, deleted, and restored.

use ambit_cluster_tests::{Mesh, condition, wait_until};
use serde_json::Value;

const GATEWAYS: &str = "gateways.gateway.networking.k8s.io";

#[test]
fn missing_and_unknown_definitions_are_reported() {
    // Gateways go with their definition.
    let mesh = Mesh::exclusive();
    let class = |kind: &str| {
        let all = mesh.kubectl(&["get", "gatewayclasses", "--output=json"]);
        let all: Value = serde_json::from_str(&all).unwrap();
        let mut all = all["items"].as_array().unwrap().iter();
        let ours = all.find(|one| one["metadata"]["name"] == "istio-waypoint")?;
        condition(&ours["status"], kind)
    };
    let until_says = |kind: &str, expected: &str| {
        wait_until(&format!("the status of the class is {expected}"), || {
            class(kind).as_deref() == Some(expected)
        });
    };
    until_says("SupportedVersion", "True SupportedVersion");
    let release = "gateway.networking.k8s.io/bundle-version=v9.0.0";
    mesh.kubectl(&["annotate", "--overwrite", "crd", GATEWAYS, release]);
    until_says("SupportedVersion", "False UnsupportedVersion");
    let found = mesh.ambit(&["check"]);
    assert!(found.contains("those of v9.0.0"), "{found}");

    let classes = "gatewayclasses.gateway.networking.k8s.io";
    let routes = "httproutes.gateway.networking.k8s.io";
    mesh.kubectl(&["delete", "crd", GATEWAYS, classes, routes]);
    let found = mesh.ambit(&["check"]);
    assert!(
        found.contains("the Gateway API is not installed"),
        "{found}"
    );
    mesh.apply(&mesh.cluster().gateway_api().unwrap());
    until_says("Accepted", "True Accepted");
    until_says("SupportedVersion", "True SupportedVersion");
}
