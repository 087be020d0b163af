//! Tests of endpoints with their own waypoint: routes to them, and connections that reach them.

use std::collections::BTreeSet;

use ambit_model::{StringMatch, WaypointRule};

use super::*;
use crate::WaypointBypass;

fn endpoint_with_waypoint() -> Workload {
    Workload {
        endpoint_waypoint: Some(new_endpoint_waypoint(
            "/10.96.0.100",
            &[identity("waypoint")],
            true,
        )),
        ..in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 8080)])
    }
}

fn web_service() -> Service {
    service("web", &["/10.96.0.9"], &[(80, 8080)])
}

/// Returns address and authority of the tunnel from `source` to `dst`.
fn tunnel_route(table: &MeshTable, source: &Workload, dst: &str) -> (String, String) {
    match table.outbound(source, addr(dst), &mut rng()).unwrap() {
        Route::Hbone(route) => (route.addr.to_string(), route.authority),
        other => panic!("not a tunnel: {other:?}"),
    }
}

#[test]
fn an_endpoints_waypoint_is_followed_after_the_endpoint_is_chosen() {
    let of_waypoint = [identity("waypoint")];
    let guarded = Workload {
        endpoint_waypoint: Some(new_endpoint_waypoint("/10.96.0.100", &of_waypoint, true)),
        ..in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 8080)])
    };
    let open = in_service(pod("b", &["10.0.0.3"]), "web", &[(80, 8080)]);
    let table = table(
        vec![guarded, open, waypoint_pod("w", "10.0.0.9")],
        vec![
            waypoint_service(),
            service("web", &["/10.96.0.9"], &[(80, 8080)]),
        ],
    );
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let route = table
            .outbound(&client(), addr("10.96.0.9:80"), &mut rng)
            .unwrap();
        let Route::Hbone(route) = route else { panic!() };
        seen.insert((
            route.waypoint.is_some(),
            route.addr.to_string(),
            route.authority,
        ));
    }
    // A mixed service: one endpoint through the waypoint, which gets the service's address.
    let expected = [
        (
            false,
            "10.0.0.3:15008".to_owned(),
            "10.0.0.3:8080".to_owned(),
        ),
        (true, "10.0.0.9:15008".to_owned(), "10.96.0.9:80".to_owned()),
    ];
    assert_eq!(seen, BTreeSet::from(expected));
    // When the pod itself is dialled, the waypoint gets the pod's address.
    assert_eq!(hbone_route(&table, "10.0.0.2:80").authority, "10.0.0.2:80");
    assert!(hbone_route(&table, "10.0.0.2:80").waypoint.is_some());
    // Connections from the waypoint go directly.
    let waypoint = waypoint_pod("w", "10.0.0.9");
    let route = table
        .outbound(&waypoint, addr("10.0.0.2:80"), &mut rng())
        .unwrap();
    assert!(matches!(
        route,
        Route::Hbone(HboneRoute { waypoint: None, .. })
    ));
}

#[test]
fn an_endpoints_waypoint_that_is_unknown_fails_the_connection() {
    let guarded = Workload {
        endpoint_waypoint: Some(new_endpoint_waypoint("/10.96.0.100", &[], false)),
        ..in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 8080)])
    };
    let table = table(
        vec![guarded],
        vec![service("web", &["/10.96.0.9"], &[(80, 8080)])],
    );
    for dst in ["10.96.0.9:80", "10.0.0.2:80"] {
        assert!(
            matches!(
                route_from_client(&table, dst),
                Err(RouteError::UnknownWaypoint { .. })
            ),
            "{dst}"
        );
    }
}

#[test]
fn a_waypoint_for_workloads_alone_gets_the_chosen_endpoint_as_target() {
    let mut guarded = endpoint_with_waypoint();
    if let Some(attached) = &mut guarded.endpoint_waypoint {
        attached.for_services = false;
    }
    let table = table(
        vec![guarded, waypoint_pod("w", "10.0.0.9")],
        vec![waypoint_service(), web_service()],
    );
    let route = hbone_route(&table, "10.96.0.9:80");
    assert_eq!(route.addr, addr("10.0.0.9:15008"));
    assert_eq!(route.authority, "10.0.0.2:8080");
    assert_eq!(route.service.unwrap().name, "web");
    assert_eq!(route.waypoint.as_deref(), Some("/10.96.0.100"));
}

#[test]
fn only_a_pod_of_the_waypoint_under_its_account_goes_directly() {
    let accounted = Workload {
        service_account: "waypoint".into(),
        ..pod("b", &["10.0.0.7"])
    };
    let labelled = Workload {
        service_account: "other".into(),
        ..waypoint_pod("l", "10.0.0.8")
    };
    let waypoint = waypoint_pod("w", "10.0.0.9");
    let table = table(
        vec![
            endpoint_with_waypoint(),
            accounted.clone(),
            labelled.clone(),
            waypoint.clone(),
        ],
        vec![waypoint_service(), web_service()],
    );
    for (dst, target) in [
        ("10.0.0.2:80", "10.0.0.2:80"),
        ("10.96.0.9:80", "10.96.0.9:80"),
    ] {
        for source in [&accounted, &labelled, &client()] {
            let through = ("10.0.0.9:15008".to_owned(), target.to_owned());
            assert_eq!(tunnel_route(&table, source, dst), through, "{dst}");
        }
        assert_eq!(
            tunnel_route(&table, &waypoint, dst).0,
            "10.0.0.2:15008",
            "{dst}"
        );
    }
    // The pod is sent through the waypoint to itself, too.
    assert_eq!(
        tunnel_route(&table, &endpoint_with_waypoint(), "10.96.0.9:80").0,
        "10.0.0.9:15008"
    );
}

#[test]
fn pods_under_other_accounts_are_not_the_waypoint() {
    let labelled = Workload {
        service_account: "other".into(),
        ..waypoint_pod("l", "10.0.0.8")
    };
    let pods = vec![
        endpoint_with_waypoint(),
        labelled.clone(),
        waypoint_pod("w", "10.0.0.9"),
    ];
    let with_both = table(pods, vec![waypoint_service(), web_service()]);
    for seed in 0..50 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let route = with_both.outbound(&client(), addr("10.0.0.2:80"), &mut rng);
        let Route::Hbone(route) = route.unwrap() else {
            panic!()
        };
        assert_eq!(route.addr, addr("10.0.0.9:15008"));
        assert_eq!(&route.expected_identities[..], [identity("waypoint")]);
    }
    let impostor = table(
        vec![endpoint_with_waypoint(), labelled],
        vec![waypoint_service(), web_service()],
    );
    assert!(matches!(
        route_from_client(&impostor, "10.0.0.2:80"),
        Err(RouteError::NoWaypointPod { .. })
    ));
}

#[test]
fn another_replica_is_chosen_when_one_has_failed_and_none_twice() {
    let replicas = [("w1", "10.0.0.8"), ("w2", "10.0.0.9")];
    let mut pods = vec![endpoint_with_waypoint()];
    pods.extend(replicas.map(|(name, ip)| waypoint_pod(name, ip)));
    let table = table(pods, vec![waypoint_service(), web_service()]);
    let uid = |name: &str| text(&format!("Kubernetes//Pod/ns/{name}"));
    for seed in 0..20 {
        let mut rng = SmallRng::seed_from_u64(seed);
        for (failed, other) in [("w1", "10.0.0.9:15008"), ("w2", "10.0.0.8:15008")] {
            let failed = [uid(failed)];
            let again = table.outbound_excluding(&client(), addr("10.0.0.2:80"), &failed, &mut rng);
            let Ok(Route::Hbone(again)) = again else {
                panic!()
            };
            assert_eq!(again.addr, addr(other));
            let again = table.hairpin(
                &endpoint_with_waypoint(),
                addr("10.0.0.2:80"),
                &failed,
                &mut rng,
            );
            let Ok(Route::Hbone(again)) = again else {
                panic!()
            };
            assert_eq!(again.addr, addr(other));
        }
    }
    let all = [uid("w1"), uid("w2")];
    let none = table.outbound_excluding(&client(), addr("10.0.0.2:80"), &all, &mut rng());
    assert!(matches!(none, Err(RouteError::NoWaypointPod { .. })));
}

#[test]
fn only_connections_of_the_waypoint_do_not_bypass_it() {
    let captured = Workload {
        service_account: "waypoint".into(),
        ..pod("b", &["10.0.0.7"])
    };
    let mut waypoint = waypoint_pod("w", "10.0.0.9");
    let mut table = table(vec![captured, waypoint.clone()], vec![waypoint_service()]);
    let passes_by = |table: &MeshTable, local: &Workload, peer: Option<&Identity>, ip: &str| {
        table.bypasses_waypoint(local, peer, ip.parse().unwrap())
    };
    let of_waypoint = Some(&identity("waypoint")).cloned();
    let someone = identity("someone");
    let local = endpoint_with_waypoint();
    assert!(!passes_by(&table, &local, of_waypoint.as_ref(), "10.0.0.9"));
    // A replica that is not known yet.
    assert!(!passes_by(
        &table,
        &local,
        of_waypoint.as_ref(),
        "10.0.0.99"
    ));
    assert!(passes_by(&table, &local, None, "10.0.0.9"));
    assert!(passes_by(&table, &local, Some(&someone), "10.0.0.9"));
    // A captured pod under the waypoint's account.
    assert!(passes_by(&table, &local, of_waypoint.as_ref(), "10.0.0.7"));
    // A waypoint that is not captured need not be an endpoint yet.
    waypoint.services.clear();
    waypoint.native_tunnel = true;
    table.insert_workload(&waypoint);
    assert!(!passes_by(&table, &local, of_waypoint.as_ref(), "10.0.0.9"));

    let lenient = Workload {
        endpoint_waypoint: Some(new_endpoint_waypoint(
            "/10.96.0.100",
            &[identity("waypoint")],
            false,
        )),
        ..endpoint_with_waypoint()
    };
    assert!(!passes_by(&table, &lenient, None, "10.0.0.1"));
    // No connection is redirected through a waypoint to itself.
    let itself = Workload {
        endpoint_waypoint: endpoint_with_waypoint().endpoint_waypoint,
        ..waypoint_pod("w", "10.0.0.9")
    };
    assert!(!passes_by(&table, &itself, None, "10.0.0.1"));
}

#[test]
fn a_bypass_is_compared_with_the_rules_of_the_waypoint() {
    let gateway = Workload {
        native_tunnel: true,
        ..pod("g", &["10.0.0.8"])
    };
    let table = table(vec![pod("c", &["10.0.0.7"]), gateway], vec![]);
    let caller = identity("caller");
    let bypass = |rules: Option<&WaypointRule>, is_known: bool, ip: &str, port: u16| {
        let mut local = endpoint_with_waypoint();
        if let Some(attached) = &mut local.endpoint_waypoint {
            attached.rules = is_known.then(|| rules.into_iter().cloned().collect());
        }
        table.waypoint_bypass(&local, Some(&caller), ip.parse().unwrap(), port)
    };
    let named = |name: &str| WaypointRule {
        ports: vec![80],
        principals: vec![StringMatch::Exact(identity(name).principal().into())],
        ..WaypointRule::default()
    };
    let (its, of_others) = (named("caller"), named("someone"));
    let captured = "10.0.0.7";
    assert_eq!(
        bypass(None, false, captured, 80),
        Some(WaypointBypass::RulesUnknown)
    );
    assert_eq!(
        bypass(None, true, captured, 80),
        Some(WaypointBypass::NoRuleApplies)
    );
    assert_eq!(
        bypass(Some(&its), true, captured, 80),
        Some(WaypointBypass::RuleMayApply)
    );
    assert_eq!(
        bypass(Some(&its), true, captured, 90),
        Some(WaypointBypass::NoRuleApplies)
    );
    assert_eq!(
        bypass(Some(&of_others), true, captured, 80),
        Some(WaypointBypass::NoRuleApplies)
    );
    // A gateway, and an unknown caller, may call on behalf of others.
    for ip in ["10.0.0.8", "10.0.0.55"] {
        assert_eq!(
            bypass(Some(&of_others), true, ip, 80),
            Some(WaypointBypass::RuleMayApply)
        );
    }
    let without = Workload {
        endpoint_waypoint: None,
        ..endpoint_with_waypoint()
    };
    assert_eq!(
        table.waypoint_bypass(&without, None, captured.parse().unwrap(), 80),
        None
    );
}

#[test]
fn hairpin_names_the_pod_to_its_waypoint_or_fails() {
    let local = endpoint_with_waypoint();
    let with_waypoint = table(
        vec![waypoint_pod("w", "10.0.0.9")],
        vec![waypoint_service()],
    );
    let route = with_waypoint.hairpin(&local, addr("10.0.0.2:80"), &[], &mut rng());
    let Ok(Route::Hbone(route)) = route else {
        panic!()
    };
    assert_eq!(
        (route.addr, route.authority.as_str()),
        (addr("10.0.0.9:15008"), "10.0.0.2:80")
    );
    assert_eq!(&route.expected_identities[..], [identity("waypoint")]);
    let without = table(vec![], vec![]);
    let error = without.hairpin(&local, addr("10.0.0.2:80"), &[], &mut rng());
    assert!(matches!(error, Err(RouteError::UnknownWaypoint { .. })));
}
