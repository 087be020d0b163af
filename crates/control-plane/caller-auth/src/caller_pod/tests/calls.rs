//! Tests of the reserved identities under which waypoints make calls on behalf of objects.

use ambit_derive::Delta;
use ambit_model::{
    GlobalLimit, PolicyKey, RateLimit, WaypointExtension, WaypointGateway, WaypointRecord,
    WaypointRecordKey,
};

use super::*;

fn gateway(name: &str) -> GatewayName {
    GatewayName::new("shop", name)
}

fn policy_key(namespace: &str) -> PolicyKey {
    PolicyKey {
        namespace: namespace.into(),
        name: "one".into(),
    }
}

fn plugin() -> WaypointExtension {
    let object = policy_key("shop");
    WaypointExtension {
        namespace: object.namespace,
        name: object.name,
        ..WaypointExtension::default()
    }
}

/// Returns waypoint `shop/wp`, to which a plugin of `shop` and rate limits of `bank` and `local` are attached (that of
/// `local` has no rate-limit service to call), and waypoint `shop/idle` without attached objects.
fn waypoints() -> Arc<WaypointRegistry> {
    let limit = |namespace, global| RateLimit {
        key: policy_key(namespace),
        global,
        ..RateLimit::default()
    };
    let calls = GlobalLimit {
        target: Err("none".into()),
        domain: "d".into(),
        timeout: Duration::from_secs(1),
        hits: 1,
        descriptors: Vec::new(),
    };
    let changed = |of: &str, record: WaypointRecord| {
        let key = WaypointRecordKey::new(gateway(of), &record);
        (key, Some(Arc::new(record)))
    };
    let waypoints = WaypointRegistry::default();
    waypoints.update(&Delta {
        waypoint_records: vec![
            changed("wp", WaypointGateway::default().into()),
            changed("idle", WaypointGateway::default().into()),
            changed("wp", plugin().into()),
            changed("wp", limit("bank", Some(calls)).into()),
            changed("wp", limit("local", None).into()),
        ],
        ..Delta::default()
    });
    Arc::new(waypoints)
}

#[test]
fn waypoints_get_reserved_identities_of_namespaces_they_call_for() {
    let pods = TestCluster::new().pods;
    let waypoints = waypoints();
    let access = access(waypoints.clone());
    let requested = |pod: &str, waypoint: &str, identity: &str| {
        let caller = caller(("shop", "wp"), Some((pod, &format!("uid-{pod}"))));
        let caller = (&caller, &gateway(waypoint));
        check_waypoint_calls(&access, &pods, caller, identity, TRUST_DOMAIN)
    };
    for (namespace, is_granted) in [
        ("shop", true),
        ("bank", true),
        ("local", false),
        ("other", false),
    ] {
        let identity = Identity::for_waypoint_calls(TRUST_DOMAIN, namespace);
        let decided = requested("wp-1", "wp", &identity.to_string());
        let expected = if is_granted {
            Ok(identity)
        } else {
            Err(CallerDenied::NoCallsFromWaypoint {
                namespace: namespace.into(),
                waypoint: gateway("wp"),
            })
        };
        assert_eq!(decided, expected, "{namespace}");
    }
    let of_shop = Identity::for_waypoint_calls(TRUST_DOMAIN, "shop").to_string();
    for (pod, waypoint, identity) in [
        ("wp-1", "idle", of_shop.as_str()),
        ("wp-0", "wp", &of_shop),
        // A pod of the account without the waypoint's label.
        ("thief-1", "wp", &of_shop),
        ("wp-1", "wp", "spiffe://other.td/ns/shop/sa/waypoint_calls"),
        ("wp-1", "wp", &spiffe("shop", "web")),
        ("wp-1", "wp", &spiffe("shop", "wp")),
    ] {
        let decided = requested(pod, waypoint, identity);
        assert!(decided.is_err(), "{pod} {waypoint} {identity}: {decided:?}");
    }
    // The plugin is removed.
    waypoints.update(&Delta {
        waypoint_records: vec![(
            WaypointRecordKey::new(gateway("wp"), &plugin().into()),
            None,
        )],
        ..Delta::default()
    });
    let decided = requested("wp-1", "wp", &of_shop);
    assert!(
        matches!(decided, Err(CallerDenied::NoCallsFromWaypoint { .. })),
        "{decided:?}"
    );
}

#[test]
fn node_proxies_get_no_reserved_identities() {
    let world = TestCluster::new();
    let reserved = Identity::for_waypoint_calls(TRUST_DOMAIN, "shop");
    let decided = world.impersonation(&node_proxy("zt-1"), &reserved.to_string());
    assert_eq!(decided, Err(CallerDenied::ReservedIdentity(reserved)));
}
