//! Tests of the output of `ambit workloads`, `services` and similar commands for a saved dump.

use serde_json::json;

use super::*;

fn dump() -> Dump {
    let dump = json!({
        "workloads": [{
            "uid": "Kubernetes//Pod/shop/cart-1", "name": "cart-1", "namespace": "shop",
            "workloadIps": ["10.0.0.2", "fd00::2"], "protocol": "HBONE", "node": "n1",
            "serviceAccount": "cart", "authorizationPolicies": ["shop/only-front"]
        }],
        "services": [{
            "name": "cart", "namespace": "shop", "hostname": "cart.shop.svc.cluster.local",
            "vips": ["/10.96.0.5"], "ports": {"80": 8080}, "endpoints": {"a": {}}, "future": {"x": null}
        }],
        "policies": [{
            "name": "only-front", "namespace": "shop", "scope": "WorkloadSelector",
            "action": "Allow", "rules": []
        }],
        "certificates": [{
            "identity": "spiffe://cluster.local/ns/shop/sa/cart", "state": "Available",
            "certChain": [{"serialNumber": "7", "validFrom": "2026-01-01T00:00:00Z",
                           "expirationTime": "2026-01-02T00:00:00Z", "pem": ""}],
            "rootCerts": []
        }],
        "workloadState": {"uid-1": {
            "state": "Up", "info": {"name": "cart-1", "namespace": "shop", "serviceAccount": "cart"},
            "connections": {"inbound": [{"src": "10.0.0.1:5", "originalDst": "10.0.0.2:15008",
                "actualDst": "10.0.0.2:8080", "protocol": "HBONE"}], "outbound": []}
        }}
    });
    Dump::parse(dump.to_string().as_bytes()).unwrap()
}

#[test]
fn workloads_as_a_table() {
    let dump = dump();
    let rows = |namespace| {
        workload_rows(&parsed_entries(&filter_by_namespace(
            &dump.workloads,
            namespace,
        )))
    };
    insta::assert_snapshot!(rows(None), @r"
    NAMESPACE  NAME    ADDRESS           NODE  PROTOCOL  STATUS   SERVICE ACCOUNT  WAYPOINT
    shop       cart-1  10.0.0.2,fd00::2  n1    HBONE     Healthy  cart             None
    ");
    assert!(!rows(Some("other")).contains("cart-1"));
}

#[test]
fn every_question_has_a_row() {
    let dump = dump();
    for (text, expected) in [
        (
            service_rows(&parsed_entries(&filter_by_namespace(&dump.services, None))),
            "80>8080",
        ),
        (
            policy_rows(&parsed_entries(&filter_by_namespace(&dump.policies, None))),
            "only-front",
        ),
        (
            certificate_rows(&dump.certificates.parsed().collect::<Vec<_>>()),
            "2026-01-02T00:00:00Z",
        ),
        (
            connection_rows(&open_connections(&dump, None)),
            "10.0.0.2:8080",
        ),
    ] {
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn named_target_ports_are_those_of_the_endpoints() {
    for (endpoints, expected) in [
        (
            json!({"a": {"port": {"80": 8080}}, "b": {"port": {"80": 8080}}}),
            "80>8080",
        ),
        (
            json!({"a": {"port": {"80": 8080}}, "b": {"port": {"80": 9090}}}),
            "80>8080|9090",
        ),
        (json!({}), "80>named"),
    ] {
        let dump = json!({"workloads": [], "services": [
            {"name": "a", "namespace": "b", "ports": {"80": 0}, "endpoints": endpoints}]});
        let dump = Dump::parse(dump.to_string().as_bytes()).unwrap();
        let rows = service_rows(&parsed_entries(&filter_by_namespace(&dump.services, None)));
        let ports = rows.lines().nth(1).unwrap().split_whitespace().nth(2);
        assert_eq!(ports, Some(expected), "{rows}");
    }
}

#[test]
fn json_output_is_the_proxys_own() {
    let dump = dump();
    let json =
        |namespace| serde_json::to_value(filter_by_namespace(&dump.services, namespace)).unwrap();
    assert_eq!(
        json(Some("shop"))[0]["hostname"],
        "cart.shop.svc.cluster.local"
    );
    assert_eq!(json(Some("shop"))[0]["future"], json!({"x": null}));
    assert_eq!(json(Some("x")), json!([]));
    let open = serde_json::to_value(open_connections(&dump, None)).unwrap();
    assert_eq!(open[0]["pod"], "shop/cart-1");
    assert_eq!(open[0]["originalDst"], "10.0.0.2:15008");
}

#[test]
fn null_is_read_as_missing() {
    let dump = json!({
        "workloads": {"uid": {"name": "a", "namespace": "b", "waypoint": null, "status": null}},
        "policies": null,
        "workloadState": {"uid": {"state": "Pending", "info": null, "connections": null}},
    });
    let dump = Dump::parse(dump.to_string().as_bytes()).unwrap();
    assert_eq!(dump.workloads.len(), 1);
    assert_eq!(open_connections(&dump, None).len(), 0);
    assert!(dump.policy_set().is_ok());
}
