use serde_json::json;

use super::*;

fn dump() -> ConfigDump {
    ConfigDump::from_value(json!({
        "workloads": [{
            "uid": "Kubernetes//Pod/shop/cart-1", "name": "cart-1", "namespace": "shop",
            "workloadIps": ["10.0.0.2", "fd00::2"], "protocol": "HBONE", "node": "n1",
            "serviceAccount": "cart", "authorizationPolicies": ["shop/only-front"]
        }],
        "services": [{
            "name": "cart", "namespace": "shop", "hostname": "cart.shop.svc.cluster.local",
            "vips": ["/10.96.0.5"], "ports": {"80": 8080}, "endpoints": {"a": {}}
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
    }))
    .unwrap()
}

#[test]
fn workloads_as_a_table() {
    insta::assert_snapshot!(workloads(&dump(), None), @r"
    NAMESPACE  NAME    ADDRESS           NODE  ACCOUNT  WAYPOINT  PROTOCOL  STATUS
    shop       cart-1  10.0.0.2,fd00::2  n1    cart     -         HBONE     healthy
    ");
    assert!(!workloads(&dump(), Some("other")).contains("cart-1"));
}

#[test]
fn every_question_has_a_row() {
    let dump = dump();
    for (text, wanted) in [
        (services(&dump, None), "80:8080"),
        (policies(&dump, None), "only-front"),
        (certificates(&dump), "2026-01-02T00:00:00Z"),
        (connections(&dump), "10.0.0.2:8080"),
    ] {
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(wanted), "{text}");
    }
}

#[test]
fn json_is_what_the_proxy_said() {
    let value = raw(
        &Inspect::Services {
            namespace: Some("shop".into()),
        },
        &dump(),
    );
    assert_eq!(value[0]["name"], "cart");
    let none = raw(
        &Inspect::Services {
            namespace: Some("x".into()),
        },
        &dump(),
    );
    assert_eq!(none, json!([]));
}
