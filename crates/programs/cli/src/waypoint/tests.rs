//! Tests of the lists, conditions and manifests of waypoints.

use serde_json::{Value, json};

use super::{args::parse_waypoint_name, *};

fn gateway_object(name: &str, labels: Value, status: Value) -> GatewayObject {
    GatewayObject::new(json!({
        "metadata": {"name": name, "namespace": "shop", "labels": labels, "generation": 2},
        "spec": {"gatewayClassName": "istio-waypoint"}, "status": status,
    }))
}

fn two_gateways() -> [GatewayObject; 2] {
    let programmed = json!({"conditions": [
        {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "made", "observedGeneration": 2},
        {"type": "Programmed", "status": "True", "reason": "Programmed", "message": "ready", "observedGeneration": 2},
    ]});
    let labels = json!({"istio.io/rev": "canary", "istio.io/waypoint-for": "all"});
    [
        gateway_object("a", labels, programmed),
        gateway_object("b", json!({}), Value::Null),
    ]
}

#[test]
fn lists_have_the_columns_that_istios_have() {
    insta::assert_snapshot!(format!(
        "{}\n\n{}\n\n{}",
        format_list(&two_gateways(), true),
        format_list(&two_gateways(), false),
        format_conditions(&two_gateways(), true)
    ));
}

#[test]
fn foreign_waypoint_gateways_are_listed_with_their_class() {
    let [ours, _] = two_gateways();
    let foreign = |name: &str, labels: Value, protocol: &str| {
        GatewayObject::new(json!({
            "metadata": {"name": name, "namespace": "shop", "labels": labels},
            "spec": {"gatewayClassName": "other", "listeners": [{"name": "a", "port": 15008, "protocol": protocol}]},
        }))
    };
    let by_listener = foreign("c", json!({}), "HBONE");
    let by_label = foreign("d", json!({"istio.io/waypoint-for": "workload"}), "HTTP");
    let ingress = foreign("e", json!({}), "HTTPS");
    assert!(by_listener.is_foreign_waypoint() && by_label.is_foreign_waypoint());
    assert!(!ingress.is_foreign_waypoint() && !ours.is_foreign_waypoint());
    let text = format_list(&[ours, by_listener, by_label], false);
    insta::assert_snapshot!(text, @"
    NAME  REVISION  TRAFFIC TYPE  PROGRAMMED  CLASS
    a     canary    all           True        istio-waypoint
    c     default   default       Unknown     other
    d     default   workload      Unknown     other
    ");
}

#[test]
fn conditions_include_parts_without_effect() {
    let of_ours = json!({"type": "ambit.io/Effective", "status": "False", "reason": "PartlyUsed",
        "message": "Pod evil carries the label"});
    let status = json!({"conditions": [of_ours]});
    let text = format_conditions(&[gateway_object("a", json!({}), status)], false);
    insta::assert_snapshot!(text, @"
    NAME  STATUS  TYPE                REASON      MESSAGE
    a     False   ambit.io/Effective  PartlyUsed  Pod evil carries the label
    ");
}

#[test]
fn only_the_current_generation_counts_as_programmed() {
    let [mut a, b] = two_gateways();
    assert!(a.is_programmed() && !b.is_programmed());
    let programmed =
        json!({"conditions": [{"type": "Programmed", "status": "True", "observedGeneration": 1}]});
    a = gateway_object("a", json!({}), programmed);
    assert!(!a.is_programmed());
}

#[test]
fn manifest_has_the_requested_options() {
    let plain = gateway::manifest("shop", "waypoint", None, None);
    assert_eq!(plain["metadata"].get("labels"), None);
    assert_eq!(plain["spec"]["listeners"][0]["port"], 15008);
    let labelled = gateway::manifest("shop", "way", Some("all"), Some("canary"));
    let labels = json!({"istio.io/waypoint-for": "all", "istio.io/rev": "canary"});
    assert_eq!(labelled["metadata"]["labels"], labels);
    assert!(parse_waypoint_name("none").is_err());
}
