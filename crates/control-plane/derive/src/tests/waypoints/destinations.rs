//! Records of DestinationRules at waypoints, and the rules' status conditions.

use std::time::Duration;

use ambit_k8s_api::Kind;
use ambit_model::{
    Balancing, DestinationHttpVersion, DestinationPolicy, HashSource, HashTable, LocalityPolicy,
    OutlierPolicy, ProxyProtocol,
};

use super::*;
use crate::condition::ConditionInput;

const CART_RECORD: &str = "shop/wp to shop/cart.shop.svc.cluster.local";

fn rule(name: &str, namespace: &str, spec: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: {namespace}, creationTimestamp: \"2026-01-01T00:00:0{}Z\"}}\nspec: {{{spec}}}\n",
        name.len() % 10
    )
}

fn max_retries_policy(most: u32) -> String {
    format!("trafficPolicy: {{connectionPool: {{http: {{maxRetries: {most}}}}}}}")
}

fn mesh_with_rule(rule: &str) -> TestMesh {
    TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        rule,
    ]))
}

/// Returns `maxRetries` of the published rule, which differs between the rules of these tests.
fn published_max_retries(mesh: &TestMesh) -> Option<u32> {
    let destination = mesh.waypoint_destinations.get(CART_RECORD);
    destination.map(|destination| destination.policy.limits.retries)
}

fn published_policy(traffic_policy: &str) -> (DestinationPolicy, Vec<String>) {
    let spec = format!("host: cart, trafficPolicy: {{{traffic_policy}}}");
    let mesh = mesh_with_rule(&rule("r", "shop", &spec));
    let policy = mesh.waypoint_destinations[CART_RECORD].policy.clone();
    (policy, mesh.problems())
}

/// Returns the problems of an invalid rule, and asserts that it has no record.
fn rejected_problems(traffic_policy: &str) -> String {
    let spec = format!("host: cart, trafficPolicy: {{{traffic_policy}}}");
    let mesh = mesh_with_rule(&rule("r", "shop", &spec));
    assert_eq!(published_max_retries(&mesh), None, "{traffic_policy}");
    mesh.problems().join("\n")
}

fn condition(mesh: &TestMesh, namespace: &str, name: &str) -> String {
    let key = ObjectKey::new(Kind::DestinationRule, namespace, name);
    let [of_rule] = crate::conditions(Kind::DestinationRule) else {
        panic!("one condition");
    };
    let problems = mesh.index.problems_of(&key);
    let subject = ConditionInput {
        problems: &problems,
        is_in_force: false,
        is_attached: false,
        derived_status: mesh.index.derived_status(&key),
    };
    let condition = (of_rule.build)(&subject).unwrap();
    format!(
        "{} {}: {}",
        condition.is_true, condition.reason, condition.message
    )
}

#[test]
fn rule_precedence_is_service_then_waypoint_then_root_namespace() {
    let far = CART_SERVICE.replace("namespace: shop", "namespace: bank, labels: {istio.io/use-waypoint: wp, istio.io/use-waypoint-namespace: shop}");
    let open = gateway("wp", "").replace(
        "protocol: HBONE",
        "protocol: HBONE, allowedRoutes: {namespaces: {from: All}}",
    );
    let host = "host: cart.bank.svc.cluster.local, ";
    let mut mesh = TestMesh::from_yaml(&join_documents(&[&far, &open]));
    let published = |mesh: &TestMesh| {
        let destination = mesh
            .waypoint_destinations
            .get("shop/wp to bank/cart.bank.svc.cluster.local");
        destination.map(|destination| destination.policy.limits.retries)
    };
    assert_eq!(published(&mesh), None);
    for (namespace, most) in [("istio-system", 1), ("shop", 2), ("bank", 3)] {
        mesh.apply(&rule(
            "r",
            namespace,
            &format!("{host}{}", max_retries_policy(most)),
        ));
        assert_eq!(published(&mesh), Some(most), "{namespace}");
    }
    // Others are not published.
    mesh.apply(&rule(
        "r",
        "other",
        &format!("{host}{}", max_retries_policy(4)),
    ));
    assert_eq!(published(&mesh), Some(3));
    assert!(condition(&mesh, "other", "r").starts_with("false Conflict: DestinationRule bank/r"));
    // One that is not exported to the waypoint's namespace is as if it were not there.
    mesh.apply(&rule(
        "r",
        "bank",
        &format!("exportTo: [.], {host}{}", max_retries_policy(3)),
    ));
    assert_eq!(published(&mesh), Some(2));
    mesh.apply(&rule(
        "r",
        "bank",
        &format!("exportTo: [shop], {host}{}", max_retries_policy(3)),
    ));
    assert_eq!(published(&mesh), Some(3));
    for (namespace, left) in [("bank", Some(2)), ("shop", Some(1)), ("istio-system", None)] {
        mesh.delete(Kind::DestinationRule, namespace, "r");
        assert_eq!(published(&mesh), left);
    }
    assert!(condition(&mesh, "other", "r").starts_with("false NotExported"));
}

#[test]
fn the_exact_host_counts_then_longer_wildcards_and_the_oldest_of_equals() {
    let mut mesh = mesh_with_rule(&rule(
        "a",
        "shop",
        &format!("host: '*', {}", max_retries_policy(1)),
    ));
    assert_eq!(published_max_retries(&mesh), Some(1));
    for (name, host, most) in [
        ("bb", "*.cluster.local", 2),
        ("ccc", "*.shop.svc.cluster.local", 3),
        ("eeeee", "cart.shop.svc.cluster.local", 5),
        ("dddd", "cart", 4),
    ] {
        mesh.apply(&rule(
            name,
            "shop",
            &format!("host: '{host}', {}", max_retries_policy(most)),
        ));
        assert_eq!(published_max_retries(&mesh), Some(most), "{host}");
    }
    assert_eq!(
        condition(&mesh, "shop", "dddd"),
        "true Used: followed by shop/wp"
    );
    assert!(
        condition(&mesh, "shop", "eeeee").starts_with("false Conflict: DestinationRule shop/dddd")
    );
    mesh.apply(&rule("other", "shop", "host: nowhere"));
    assert!(condition(&mesh, "shop", "other").starts_with("false HostNotFound"));
    mesh.delete(Kind::Gateway, "shop", "wp");
    assert!(condition(&mesh, "shop", "dddd").starts_with("false NoWaypoint"));
    assert!(mesh.waypoint_destinations.is_empty());
}

#[test]
fn waypoints_get_backends_of_their_routes() {
    let backend = CART_SERVICE
        .replace("name: cart", "name: stock")
        .replace("namespace: shop", "namespace: bank")
        .replace("10.96.0.9", "10.96.0.10");
    let mut mesh = mesh_with_rule(&rule(
        "r",
        "bank",
        &format!("host: stock, {}", max_retries_policy(7)),
    ));
    mesh.apply(&backend);
    assert!(mesh.waypoint_destinations.is_empty());
    let route = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r, namespace: shop}\nspec: {parentRefs: [{group: \"\", kind: Service, name: cart}], rules: [{backendRefs: [{name: stock, namespace: bank, port: 80}]}]}\n";
    let changed = mesh.apply(route);
    let name = "shop/wp to bank/stock.bank.svc.cluster.local";
    assert!(changed.contains(&name.to_owned()), "{changed:?}");
    assert_eq!(mesh.waypoint_destinations[name].policy.limits.retries, 7);
    assert!(condition(&mesh, "bank", "r").starts_with("true Used"));
    // Another waypoint's turn comes with the service that the route is for.
    mesh.delete(Kind::Gateway, "shop", "wp");
    assert!(mesh.waypoint_destinations.is_empty());
    mesh.apply(&gateway("wp", ""));
    assert_eq!(mesh.waypoint_destinations.len(), 1);
    mesh.delete(Kind::HTTPRoute, "shop", "r");
    assert!(mesh.waypoint_destinations.is_empty());
}

#[test]
fn proxy_protocol_is_version_1_unless_a_rule_sets_2() {
    for (traffic_policy, expected) in [
        ("", None),
        ("proxyProtocol: {}", Some(ProxyProtocol::V1)),
        ("proxyProtocol: {version: V1}", Some(ProxyProtocol::V1)),
        ("proxyProtocol: {version: V2}", Some(ProxyProtocol::V2)),
    ] {
        let (read, problems) = published_policy(traffic_policy);
        assert_eq!(read.proxy_protocol, expected, "{traffic_policy}");
        assert_eq!(problems, [""; 0]);
    }
    let mesh = mesh_with_rule(&rule(
        "r",
        "shop",
        "host: cart, trafficPolicy: {proxyProtocol: {version: V2}, retryBudget: {percent: 5}, \
         portLevelSettings: [{port: {number: 80}}]}",
    ));
    let record = mesh.waypoint_destinations.values().next().unwrap();
    let policy = record.policy(80);
    assert_eq!(policy.proxy_protocol, Some(ProxyProtocol::V2));
    assert_eq!(
        policy.limits.retry_budget.map(|budget| budget.share),
        Some(5_000)
    );
}

#[test]
fn rule_is_parsed_with_its_defaults() {
    let (all_default, problems) = published_policy("");
    assert_eq!(
        (all_default, problems.len()),
        (DestinationPolicy::default(), 0)
    );
    let (read, problems) = published_policy(
        "loadBalancer: {consistentHash: {httpCookie: {name: id, path: /, ttl: 0s}, maglev: {}}}, \
         outlierDetection: {splitExternalLocalOriginErrors: true, baseEjectionTime: 1.5s, consecutive5xxErrors: 0}, \
         connectionPool: {tcp: {maxConnections: 9, connectTimeout: 30ms, idleTimeout: 1s, maxConnectionDuration: 1h}, http: {http1MaxPendingRequests: 8, http2MaxRequests: 7, maxRequestsPerConnection: 6, idleTimeout: 1m, maxConcurrentStreams: 5}}, \
         retryBudget: {percent: 12.5}, \
         portLevelSettings: [{port: {number: 80}, loadBalancer: {simple: RANDOM}}]",
    );
    assert_eq!(problems, [""; 0]);
    let Balancing::Hash(hash) = &read.balancing else {
        panic!("{read:?}")
    };
    assert_eq!(hash.table, HashTable::Maglev(65_537));
    let HashSource::Cookie(cookie) = &hash.source else {
        panic!("{hash:?}")
    };
    assert_eq!(cookie.ttl, Some(Duration::ZERO));
    let expected = OutlierPolicy {
        server_errors: 0,
        local_failures: Some(5),
        base_ejection: Duration::from_millis(1500),
        ..OutlierPolicy::default()
    };
    assert_eq!(read.outliers, Some(expected));
    let limits = read.limits;
    assert_eq!((limits.connections, limits.pending), (9, Some(8)));
    assert_eq!((limits.requests, limits.requests_per_connection), (7, 6));
    assert_eq!(limits.streams_per_connection, 5);
    assert_eq!(limits.tcp_idle_timeout, Some(Duration::from_secs(1)));
    let hour = Duration::from_secs(3600);
    assert_eq!(limits.max_connection_duration, Some(hour));
    assert_eq!(
        limits.retry_budget.map(|of| (of.share, of.minimum)),
        Some((12_500, 3))
    );
    let (read, _) = published_policy(
        "loadBalancer: {localityLbSetting: {failover: [{from: a, to: b}]}}, outlierDetection: {}",
    );
    assert_eq!(
        read.locality,
        LocalityPolicy::Failover(vec![("a".into(), "b".into())])
    );
}

#[test]
fn a_rule_chooses_the_version_of_http() {
    for (http, expected) in [
        ("{}", DestinationHttpVersion::AsDeclared),
        (
            "{h2UpgradePolicy: DO_NOT_UPGRADE}",
            DestinationHttpVersion::AsDeclared,
        ),
        (
            "{h2UpgradePolicy: UPGRADE}",
            DestinationHttpVersion::AlwaysHttp2,
        ),
        (
            "{useClientProtocol: true}",
            DestinationHttpVersion::AsClient,
        ),
        (
            "{useClientProtocol: true, h2UpgradePolicy: UPGRADE}",
            DestinationHttpVersion::AsClient,
        ),
    ] {
        let (read, problems) = published_policy(&format!("connectionPool: {{http: {http}}}"));
        assert_eq!(read.http_version, expected, "{http}");
        assert_eq!(problems, [""; 0], "{http}");
    }
}

#[test]
fn what_has_no_effect_is_named() {
    for (traffic_policy, field) in [
        ("loadBalancer: {simple: PASSTHROUGH}", "loadBalancer.simple"),
        (
            "loadBalancer: {simple: RANDOM, warmupDurationSecs: 1s}",
            "loadBalancer.warmup",
        ),
        (
            "loadBalancer: {localityLbSetting: {enabled: true}}",
            "localityLbSetting",
        ),
        (
            "outlierDetection: {}, loadBalancer: {localityLbSetting: {failoverPriority: [app]}}",
            "failoverPriority[0]",
        ),
        (
            "connectionPool: {tcp: {tcpKeepalive: {probes: 3, time: 0s}, idleTimeout: 0s}}",
            "tcp.tcpKeepalive",
        ),
        (
            "connectionPool: {http: {h2UpgradePolicy: SOMETIMES}}",
            "h2UpgradePolicy",
        ),
        (
            "outlierDetection: {consecutiveErrors: 1}",
            "consecutiveErrors",
        ),
        (
            "outlierDetection: {consecutiveLocalOriginFailures: 1}",
            "consecutiveLocalOriginFailures",
        ),
        ("tls: {mode: DISABLE}", "tls.mode"),
    ] {
        let (read, problems) = published_policy(traffic_policy);
        assert!(
            problems[0].contains(field),
            "{traffic_policy}: {problems:?}"
        );
        assert_eq!(read.unsupported, None);
    }
    for unsafe_without in [
        "tls: {mode: SIMPLE, credentialName: a}",
        "tunnel: {targetHost: a, targetPort: 1}",
    ] {
        let (read, problems) = published_policy(unsafe_without);
        assert!(read.unsupported.is_some(), "{unsafe_without}");
        assert!(problems[0].contains("answered with 503"), "{problems:?}");
    }
    let mesh = mesh_with_rule(&rule(
        "r",
        "shop",
        "host: cart, workloadSelector: {matchLabels: {a: b}}",
    ));
    assert!(mesh.problems()[0].contains("spec.workloadSelector"));
    assert_eq!(published_max_retries(&mesh), None);
}

#[test]
fn what_cannot_be_used_is_refused_with_its_place() {
    for (traffic_policy, expected) in [
        (
            "connectionPool: {tcp: {maxConnections: -1}}",
            "tcp.maxConnections: -1 is not within",
        ),
        (
            "connectionPool: {http: {maxRetries: 99999999999}}",
            "http.maxRetries",
        ),
        (
            "connectionPool: {tcp: {connectTimeout: -1s}}",
            "connectTimeout",
        ),
        ("outlierDetection: {baseEjectionTime: 9999999h}", "too long"),
        (
            "outlierDetection: {maxEjectionPercent: 101}",
            "maxEjectionPercent",
        ),
        (
            "loadBalancer: {simple: RANDOM, consistentHash: {useSourceIp: true}}",
            "exclude each other",
        ),
        ("loadBalancer: {consistentHash: {}}", "only one"),
        (
            "loadBalancer: {consistentHash: {useSourceIp: true, httpHeaderName: a}}",
            "only one",
        ),
        (
            "loadBalancer: {consistentHash: {useSourceIp: true, maglev: {tableSize: 65536}}}",
            "no prime",
        ),
        (
            "loadBalancer: {consistentHash: {httpHeaderName: 'a b'}}",
            "httpHeaderName",
        ),
        (
            "loadBalancer: {consistentHash: {httpCookie: {name: a, path: '/;x'}}}",
            "httpCookie.path",
        ),
        (
            "loadBalancer: {localityLbSetting: {distribute: [{from: a, to: {b: 99}}]}}",
            "99 together",
        ),
        (
            "loadBalancer: {localityLbSetting: {failover: [{from: a, to: b}], failoverPriority: [x]}}",
            "exclude each other",
        ),
        (
            "portLevelSettings: [{port: {number: 80}}, {port: {number: 80}}]",
            "portLevelSettings[1].port.number",
        ),
        (
            "portLevelSettings: [{port: {number: 0}}]",
            "portLevelSettings[0].port.number",
        ),
        (
            "loadBalancer: {warmup: {duration: 1s, aggression: 0}}",
            "aggression",
        ),
        (
            "connectionPool: {tcp: {tcpKeepalive: {time: 500ms}}}",
            "tcpKeepalive.time",
        ),
        (
            "connectionPool: {tcp: {tcpKeepalive: {probes: 128}}}",
            "tcpKeepalive.probes",
        ),
        (
            "connectionPool: {tcp: {idleTimeout: -1s}}",
            "tcp.idleTimeout",
        ),
        ("proxyProtocol: {version: V3}", "proxyProtocol.version"),
    ] {
        let problems = rejected_problems(traffic_policy);
        assert!(problems.contains(expected), "{traffic_policy}: {problems}");
    }
    for host in ["", "a b", "*.", "a..b", "*a.com", "é.com"] {
        let mesh = mesh_with_rule(&rule("r", "shop", &format!("host: '{host}'")));
        assert!(mesh.problems()[0].contains("spec.host"), "{host}");
    }
}

#[test]
fn the_last_usable_form_stays() {
    let mut mesh = mesh_with_rule(&rule(
        "r",
        "shop",
        &format!("host: cart, {}", max_retries_policy(7)),
    ));
    mesh.apply(&rule(
        "r",
        "shop",
        "host: cart, trafficPolicy: {outlierDetection: {interval: -5s}}",
    ));
    assert_eq!(published_max_retries(&mesh), Some(7));
    let condition_text = condition(&mesh, "shop", "r");
    assert!(
        condition_text.starts_with("false Invalid: "),
        "{condition_text}"
    );
    assert!(
        condition_text.contains("stays in force"),
        "{condition_text}"
    );
}
