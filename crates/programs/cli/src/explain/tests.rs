//! Tests of the predictions of `ambit policy explain` for a saved dump.

use super::*;

/// `/config_dump` of Istio's node proxy, with keys that Ambit does not know.
const DUMP: &str = r#"{
  "workloads": [
    {"uid": "K//Pod/shop/front-a-1", "name": "front-a-1", "namespace": "shop", "serviceAccount": "front",
     "workloadIps": ["10.0.0.1"], "protocol": "HBONE", "trustDomain": "cluster.local", "future": {"x": 1}},
    {"uid": "K//Pod/shop/web-a-1", "name": "web-a-1", "namespace": "shop", "serviceAccount": "web",
     "workloadIps": ["10.0.0.2", "fd00::2"], "protocol": "HBONE",
     "authorizationPolicies": ["shop/only-front", "shop/gone"]},
    {"uid": "K//Pod/old/batch", "name": "batch", "namespace": "old", "workloadIps": ["10.0.0.3"]},
    {"uid": "K//Pod/old/front-b", "name": "front-b", "namespace": "old", "workloadIps": ["10.0.0.4"]}
  ],
  "services": [{"name": "web", "namespace": "shop", "hostname": "web.shop.svc.cluster.local",
    "ports": {"80": 0}, "endpoints": {"K//Pod/shop/web-a-1:": {"workloadUid": "K//Pod/shop/web-a-1",
    "port": {"80": 8080}, "status": "Healthy"}}}],
  "policies": [
    {"name": "only-front", "namespace": "shop", "scope": "WorkloadSelector", "action": "Allow", "future": true,
     "rules": [[[{"principals": [{"Exact": "cluster.local/ns/shop/sa/front"}]}]]]},
    {"name": "no-metrics", "namespace": "shop", "scope": "Namespace", "action": "Deny",
     "rules": [[[{"destinationPorts": [9090]}]]]}
  ]
}"#;

fn dump() -> Dump {
    // Without the unknown policy, which would decide everything.
    Dump::parse(DUMP.replace(r#", "shop/gone""#, "").as_bytes()).unwrap()
}

fn single_report(from: &str, to: &str, port: u16) -> Report {
    let mut reports = explain(&dump(), from, to, port, false).unwrap();
    assert_eq!(reports.len(), 1);
    reports.remove(0)
}

#[test]
fn the_policy_that_decides_is_named() {
    let report = single_report("shop/front", "shop/web", 80);
    assert!(report.allowed);
    assert_eq!(report.decided_by.as_deref(), Some("shop/only-front"));
    assert_eq!(report.destination.to_string(), "10.0.0.2:8080");
    let report = single_report("shop/front-a-1", "10.0.0.2", 9090);
    assert_eq!(
        (report.allowed, report.decided_by.as_deref()),
        (false, Some("shop/no-metrics"))
    );
    let report = single_report("batch", "web-a-1", 8080);
    assert_eq!((report.allowed, report.identity), (false, None));
}

#[test]
fn the_address_decides_the_family_of_the_source() {
    assert_eq!(
        single_report("spiffe://cluster.local/ns/shop/sa/front", "fd00::2", 8080)
            .destination
            .to_string(),
        "[fd00::2]:8080"
    );
}

#[test]
fn policies_are_not_enforced_outside_the_mesh() {
    let report = single_report("shop/front", "batch", 1);
    assert!(report.allowed && !report.enforced);
}

#[test]
fn plaintext_has_no_identity() {
    let reports = explain(&dump(), "shop/front", "svc/web", 80, true).unwrap();
    assert!(!reports[0].allowed);
}

#[test]
fn a_policy_that_is_not_known_is_named() {
    let dump = Dump::parse(DUMP.as_bytes()).unwrap();
    let report = explain(&dump, "shop/front", "shop/web", 80, false)
        .unwrap()
        .remove(0);
    assert_eq!(report.missing, ["shop/gone"]);
    assert!(!report.allowed);
}

#[test]
fn unknown_and_ambiguous_names_are_errors() {
    let kind =
        |from: &str, to: &str, port| explain(&dump(), from, to, port, false).unwrap_err().kind();
    assert_eq!(kind("nobody", "web-a-1", 1), ErrorKind::NotFound);
    assert_eq!(kind("batch", "nobody", 1), ErrorKind::NotFound);
    assert_eq!(kind("batch", "svc/web", 81), ErrorKind::NotFound);
    assert_eq!(kind("front", "web", 1), ErrorKind::Usage);
    assert_eq!(kind("spiffe://x", "web", 1), ErrorKind::Usage);
}

#[test]
fn a_dump_that_is_none_is_refused() {
    for text in ["", "[]", "{}", "<html>"] {
        assert_eq!(
            Dump::parse(text.as_bytes()).unwrap_err().kind(),
            ErrorKind::Unreachable
        );
    }
}

#[test]
fn words_for_people() {
    insta::assert_snapshot!(format_report(&single_report("shop/front", "shop/web", 80)), @r"
    shop/front-a-1 as spiffe://cluster.local/ns/shop/sa/front
      -> shop/web-a-1 (10.0.0.2:8080)
    ALLOWED by shop/only-front: an ALLOW policy matches

    POLICY           ACTION  SCOPE             RESULT
    shop/no-metrics  DENY    Namespace         no rule matches
    shop/only-front  ALLOW   WorkloadSelector  rule 1 matches
    ");
}

/// Returns the dump with a waypoint attached to the server's pod.
fn with_waypoint(enforce: bool) -> Dump {
    let attached = format!(
        r#""endpointWaypoint": {{"waypoint": {{"destination": "shop/waypoint.shop.svc.cluster.local"}},
        "identities": ["spiffe://cluster.local/ns/shop/sa/waypoint"], "enforce": {enforce}, "forServices": true}},"#
    );
    let dump = DUMP.replace(
        r#""name": "web-a-1","#,
        &format!(r#""name": "web-a-1", {attached}"#),
    );
    Dump::parse(dump.as_bytes()).unwrap()
}

#[test]
fn connections_through_a_waypoint_are_explained_as_such() {
    let name = "shop/waypoint.shop.svc.cluster.local";
    let explained =
        |dump: &Dump, from: &str, to: &str| explain(dump, from, to, 80, false).unwrap().remove(0);
    let enforced = with_waypoint(true);
    for (from, to) in [
        ("shop/front", "shop/web"),
        ("shop/front", "10.0.0.2"),
        ("batch", "web-a-1"),
    ] {
        let report = explained(&enforced, from, to);
        // AuthorizationPolicy, and one that is not known, are for what the waypoint delivers.
        assert_eq!(report.waypoint.as_deref(), Some(name), "{from}");
        assert!(report.policies.is_empty() && report.missing.is_empty());
        let text = format_report(&report);
        assert!(text.contains("ALLOWED at the node proxy: "), "{text}");
        assert!(
            text.contains(&format!("goes through the waypoint {name}, ")),
            "{text}"
        );
    }
    let of_waypoint = "spiffe://cluster.local/ns/shop/sa/waypoint";
    assert_eq!(explained(&enforced, of_waypoint, "10.0.0.2").waypoint, None);
    // Only clients with a node proxy know of one that is not enforced.
    let known = with_waypoint(false);
    assert!(
        explained(&known, "shop/front", "10.0.0.2")
            .waypoint
            .is_some()
    );
    assert!(explained(&known, "batch", "10.0.0.2").waypoint.is_none());
}

#[test]
fn deliveries_are_decided_with_the_waypoint_as_caller() {
    let known = |principal: &str| {
        let dump = DUMP.replace(r#", "shop/gone""#, "");
        let attached = r#""name": "web-a-1", "endpointWaypoint": {"waypoint": {"destination": "shop/wp"},
            "identities": ["spiffe://cluster.local/ns/shop/sa/waypoint"], "enforce": true},"#;
        let dump = dump.replace(r#""name": "web-a-1","#, attached);
        let dump = dump.replace(
            "cluster.local/ns/shop/sa/front\"",
            &format!("{principal}\""),
        );
        let dump = Dump::parse(dump.as_bytes()).unwrap();
        explain(&dump, "shop/front", "shop/web", 80, false)
            .unwrap()
            .remove(0)
    };
    let refused = known("cluster.local/ns/shop/sa/front");
    assert!(!refused.allowed);
    insta::assert_snapshot!(format_report(&refused), @r"
    shop/front-a-1 as spiffe://cluster.local/ns/shop/sa/front
      -> shop/web-a-1 (10.0.0.2:8080)
    ALLOWED at the node proxy: no policy applies
    goes through the waypoint shop/wp, whose policies are not evaluated here

    the waypoint as spiffe://cluster.local/ns/shop/sa/waypoint
      -> shop/web-a-1 (10.0.0.2:8080)
    DENIED: ALLOW policies apply, none of them matches
    the server's policies refuse the waypoint, and so every caller behind it

    POLICY           ACTION  SCOPE             RESULT
    shop/no-metrics  DENY    Namespace         no rule matches
    shop/only-front  ALLOW   WorkloadSelector  no rule matches
    ");
    let allowed = known("cluster.local/ns/shop/sa/waypoint");
    assert!(allowed.allowed);
    let decided_by = allowed.delivery.unwrap().decided_by;
    assert_eq!(decided_by.as_deref(), Some("shop/only-front"));
}

#[test]
fn connections_a_foreign_waypoint_cannot_serve_are_refused() {
    let attached = r#""endpointWaypoint": {"waypoint": {"destination": "/10.0.9.9"}, "identities": [],
        "enforce": true, "refuse": true, "forServices": false},"#;
    let dump = DUMP.replace(
        r#""name": "web-a-1","#,
        &format!(r#""name": "web-a-1", {attached}"#),
    );
    let dump = Dump::parse(dump.as_bytes()).unwrap();
    let explained = |from: &str| {
        explain(&dump, from, "10.0.0.2", 80, false)
            .unwrap()
            .remove(0)
    };
    let captured = explained("shop/front");
    assert_eq!(
        (captured.allowed, captured.waypoint.as_deref()),
        (true, Some("/10.0.9.9"))
    );
    let outside = explained("batch");
    assert_eq!(
        (outside.allowed, outside.waypoint.as_deref()),
        (false, None)
    );
    assert!(
        format_report(&outside)
            .contains("DENIED: the server is reached through the waypoint /10.0.9.9 alone")
    );
}

#[test]
fn captured_clients_use_the_waypoint_of_the_service() {
    let bound =
        r#""hostname": "web.shop.svc.cluster.local", "waypoint": {"destination": "shop/w"},"#;
    let dump = DUMP.replace(r#""hostname": "web.shop.svc.cluster.local","#, bound);
    let dump = Dump::parse(dump.as_bytes()).unwrap();
    let waypoint = |from: &str, to: &str| {
        let report = explain(&dump, from, to, 80, false).unwrap().remove(0);
        report.waypoint
    };
    assert_eq!(
        waypoint("shop/front", "shop/web").as_deref(),
        Some("shop/w")
    );
    assert_eq!(waypoint("shop/front", "10.0.0.2"), None);
    assert_eq!(waypoint("batch", "shop/web"), None);
}
