//! Tests of status reports for healthy and failing meshes.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

fn typed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(name: &str, node: &str, ready: bool) -> Pod {
    typed(json!({
        "metadata": {"name": name, "namespace": "istio-system",
                     "labels": {"app.kubernetes.io/version": "0.1.0"}},
        "spec": {"nodeName": node},
        "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
                   "containerStatuses": [{"restartCount": 1}]},
    }))
}

fn answered<T: DeserializeOwned>(name: &str, node: &str, answer: Value) -> PodResponse<T> {
    PodResponse {
        pod: pod(name, node, true),
        answer: Ok(typed(answer)),
    }
}

fn healthy() -> Responses {
    Responses {
        nodes: vec!["n1".to_owned()],
        agents: vec![answered(
            "agent",
            "n1",
            json!({
                "version": "0.1.0", "wanted": 2, "captured": 2, "proxies": 1,
                "pods": [{"namespace": "a", "name": "b", "state": "captured",
                          "annotation": "enabled", "annotationSeen": "enabled", "drifts": 0}],
            }),
        )],
        proxies: vec![answered(
            "ztunnel-1",
            "n1",
            json!({
                "version": {"version": "0.1.0"},
                "certificates": [
                    {"identity": "x", "state": "Available",
                     "certChain": [{"expirationTime": "2026-02-02T00:00:00Z"}]},
                    {"identity": "y", "state": "Available",
                     "certChain": [{"expirationTime": "2026-02-01T00:00:00Z"}]},
                ],
            }),
        )],
        controls: vec![answered(
            "control",
            "n1",
            json!([
                {"proxy": "ztunnel~10.0.0.1~ztunnel-1.istio-system~istio-system.svc.cluster.local", "subscriptions": {
                    "a": {"state": "SYNCED"}, "b": {"state": "SYNCED"}}},
            ]),
        )],
        objects: Vec::new(),
        waypoints: Vec::new(),
        unlisted: Vec::new(),
    }
}

/// Returns the responses of a mesh with one waypoint that has these pods.
fn with_waypoint(pods: Vec<PodResponse<ProxyDump>>) -> Responses {
    let mut gathered = healthy();
    let streams = json!([
        {"proxy": "ztunnel~10.0.0.1~ztunnel-1.istio-system~istio-system.svc.cluster.local", "subscriptions": {
            "a": {"state": "SYNCED"}}},
        {"proxy": "waypoint~10.0.0.2~way-1.istio-system~istio-system.svc.cluster.local", "subscriptions": {
            "a": {"state": "SYNCED"}}},
    ]);
    gathered.controls = vec![answered("control", "n1", streams)];
    gathered.waypoints = vec![WaypointResponses {
        name: "shop/way".to_owned(),
        is_programmed: !pods.is_empty(),
        pods,
    }];
    gathered
}

#[test]
fn waypoints_are_reported_with_their_pods() {
    let dump = json!({
        "version": {"version": "0.1.0"},
        "certificates": [{"identity": "x", "state": "Available", "certChain": []}],
    });
    let report_of = |pods| report(&with_waypoint(pods));
    let good = report_of(vec![answered("way-1", "n1", dump.clone())]);
    assert_eq!(good.problems, Vec::<String>::new());
    insta::assert_snapshot!(format_report(&good));
    let unconnected = report_of(vec![answered("way-2", "n1", dump)]);
    assert_eq!(
        unconnected.problems,
        ["way-2: xDS of the waypoint is not connected"]
    );
    let none = report_of(Vec::new());
    assert_eq!(
        none.problems,
        [
            "shop/way: no pod of the waypoint is ready",
            "shop/way: the waypoint is not programmed; `ambit waypoint status` shows why"
        ]
    );
    assert!(
        format_report(&none).contains("shop/way  -"),
        "{}",
        format_report(&none)
    );
}

#[test]
fn problems_with_objects_are_counted() {
    let gathered = Responses {
        objects: vec![Problem::default()],
        ..healthy()
    };
    let expected = "problems with objects of the mesh: 1; `ambit problems` lists them";
    assert_eq!(report(&gathered).problems, [expected]);
}

#[test]
fn waypoints_that_cannot_be_listed_are_a_problem() {
    let expected = "the waypoints cannot be listed: forbidden".to_owned();
    let gathered = Responses {
        unlisted: vec![expected.clone()],
        ..healthy()
    };
    assert_eq!(report(&gathered).problems, [expected]);
}

#[test]
fn a_mesh_in_order_has_no_problems() {
    let report = report(&healthy());
    assert_eq!(report.problems, Vec::<String>::new());
    insta::assert_snapshot!(format_report(&report));
}

#[test]
fn problems_are_reported_with_their_node() {
    let mut gathered = healthy();
    gathered.nodes.push("n2".to_owned());
    gathered.agents[0].answer = Ok(typed(json!({
        "version": "0.1.0", "wanted": 3, "captured": 0, "proxies": 0, "sourceTrouble": "timeout",
        "pods": [
            {"namespace": "a", "name": "b", "state": "failing", "error": "no nft", "drifts": 0,
             "annotation": "pending", "annotationSeen": "enabled"},
            {"namespace": "a", "name": "c", "state": "captured", "drifts": 2,
             "annotation": "enabled", "annotationSeen": "enabled"},
            {"namespace": "a", "name": "d", "state": "no-namespace", "why": "not found yet", "drifts": 0},
        ],
    })));
    gathered.proxies[0].answer = Ok(typed(json!({
        "certificates": [{"identity": "x", "state": "Initializing"}],
    })));
    gathered.controls[0].answer = Err("connection refused".to_owned());
    gathered.controls[0].pod = pod("control", "n1", false);
    let report = report(&gathered);
    insta::assert_snapshot!(format_report(&report));
}

#[test]
fn methods_of_capture_are_counted_with_their_reason() {
    let mut gathered = healthy();
    let pod = |name, by, reason: Option<&str>| {
        json!({"namespace": "a", "name": name, "state": "captured", "capturedBy": by, "notByBpf": reason,
               "annotation": "enabled", "annotationSeen": "enabled"})
    };
    let interfaces = Some("capture of virtual interfaces is not possible");
    gathered.agents[0].answer = Ok(typed(json!({
        "version": "0.1.0", "wanted": 4, "captured": 4, "proxies": 1,
        "pods": [pod("b", "bpf", None), pod("c", "rules", interfaces), pod("d", "rules", interfaces), pod("e", "rules", None)],
    })));
    let report = report(&gathered);
    assert_eq!(report.problems, Vec::<String>::new());
    let text = format_report(&report);
    for line in [
        "n1: pods captured by BPF programs: 1",
        "n1: pods captured by rules instead of BPF programs: 2: capture of virtual interfaces is not possible",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line:?} is not in {text}"
        );
    }
}

#[test]
fn worst_subscription_is_the_state() {
    let state = |states: &[&str]| {
        let all = states
            .iter()
            .enumerate()
            .map(|(i, s)| (i.to_string(), json!({"state": s})));
        let all: serde_json::Map<_, _> = all.collect();
        typed::<XdsClient>(json!({"subscriptions": all})).state()
    };
    assert_eq!(state(&["SYNCED", "STALE"]), "STALE");
    assert_eq!(state(&["STALE", "ERROR", "SYNCED"]), "ERROR");
    assert_eq!(state(&["SYNCED"]), "SYNCED");
    assert_eq!(state(&[]), "no subscription");
}
