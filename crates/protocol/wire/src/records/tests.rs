//! Tests of waypoint records' round trips, and of records that are rejected.

use std::{sync::Arc, time::Duration};

use ambit_model::{
    FaultStatus, GatewayName, HeaderChanges, HttpAction, HttpAttribute, HttpBackend, HttpCondition,
    HttpCors, HttpFault, HttpFilter, HttpMirror, HttpOperation, HttpPathMatch, HttpPolicy,
    HttpProvider, HttpRedirect, HttpRetry, HttpRewrite, HttpRoute, HttpRouteMatch, HttpRouteRule,
    HttpRule, HttpSession, HttpSource, HttpTimeouts, HttpValue, HttpValueMatch, NamespacedHostname,
    PathChange, PathNormalization, PathPattern, PodGrant, PolicyKey, Provider, ProviderBody,
    ProviderProtocol, RequestFraction, RouteName, ServiceAccountMatch, StreamBackend, StreamRoute,
    StringMatch, WaypointGateway, WaypointService,
};

use prost::Message as _;

use super::*;
use crate::ambit as wire;

fn full_policy() -> HttpPolicy {
    let text = |text: &str| StringMatch::from_pattern(text);
    let net = |net: &str| net.parse().unwrap();
    HttpPolicy {
        key: PolicyKey::from_resource_name("shop/p"),
        for_gateway: true,
        services: vec![NamespacedHostname::new(
            "shop",
            "orders.shop.svc.cluster.local",
        )],
        action: HttpAction::Custom,
        dry_run: true,
        rules: vec![HttpRule {
            sources: vec![HttpSource {
                principals: vec![text("*")],
                not_namespaces: vec![text("a*")],
                service_accounts: vec![ServiceAccountMatch {
                    namespace: "a".into(),
                    service_account: "b".into(),
                }],
                trust_domains: vec![text("td")],
                ip_blocks: vec![net("10.0.0.0/8")],
                not_remote_ip_blocks: vec![net("fd00::/8")],
                request_principals: vec![StringMatch::Prefix("https://i/".into())],
                not_request_principals: vec![StringMatch::Presence],
                ..HttpSource::default()
            }],
            operations: vec![HttpOperation {
                hosts: vec![text("*.example.com")],
                ports: vec![80],
                not_methods: vec![text("DELETE")],
                paths: vec![
                    PathPattern::Text(text("/a*")),
                    PathPattern::Template("/a/{*}/b".into()),
                ],
                ..HttpOperation::default()
            }],
            conditions: vec![
                HttpCondition {
                    attribute: HttpAttribute::Header("x-a".into()),
                    values: vec![HttpValue::Text(text("b"))],
                    not_values: vec![],
                },
                HttpCondition {
                    attribute: HttpAttribute::RemoteIp,
                    values: vec![],
                    not_values: vec![HttpValue::Net(net("10.0.0.1/32"))],
                },
                HttpCondition {
                    attribute: HttpAttribute::DestinationPort,
                    values: vec![HttpValue::Port(80)],
                    not_values: vec![],
                },
            ],
        }],
        not_understood: None,
        provider: Some(Arc::new(Provider {
            name: "a".into(),
            target: Ok((
                NamespacedHostname::new("auth", "authz.auth.svc.cluster.local"),
                9000,
            )),
            timeout: Duration::from_millis(2500),
            status_on_error: 503,
            fail_open: true,
            body: Some(ProviderBody {
                max_bytes: 8192,
                allow_partial: true,
                as_bytes: true,
            }),
            protocol: ProviderProtocol::Http(HttpProvider {
                path_prefix: "/check".into(),
                headers: vec![text("x-*")],
                added: vec![("x-by".into(), "mesh".into())],
                to_application: vec![text("*")],
                to_client_allowed: vec![text("x-a")],
                to_client_denied: vec![text("*-b")],
            }),
        })),
    }
}

fn encode_policy(policy: &HttpPolicy) -> Vec<u8> {
    wire::WaypointPolicy::from(policy).encode_to_vec()
}

#[test]
fn policies_read_back_what_was_written() {
    let policy = full_policy();
    assert_eq!(
        model::HttpPolicy::decode("gw/w/shop/p", &encode_policy(&policy)),
        Ok(policy)
    );
}

#[test]
fn routes_of_connections_read_back_what_was_written() {
    let service = WaypointService {
        service: NamespacedHostname::new("shop", "echo.shop.svc.cluster.local"),
        routes: Vec::new(),
        tcp_routes: vec![StreamRoute {
            name: RouteName {
                kind: "TCPRoute".into(),
                namespace: "bank".into(),
                name: "t".into(),
            },
            ports: vec![9000],
            clients: Some("bank".into()),
            hostnames: vec![],
            backends: vec![StreamBackend {
                service: Err("no such service".into()),
                port: 0,
                weight: 1,
            }],
            unsupported: Some("rules".into()),
        }],
        tls_routes: vec![StreamRoute {
            hostnames: vec!["*.example".into(), "a.example".into()],
            backends: vec![StreamBackend {
                service: Ok(NamespacedHostname::new("shop", "echo-v1")),
                port: 443,
                weight: 3,
            }],
            ..StreamRoute::default()
        }],
        resolves_hosts: true,
        grantors: vec![PodGrant {
            namespace: "bank".into(),
            pod: "till".into(),
        }],
    };
    let encoded = wire::WaypointService::from(&service).encode_to_vec();
    assert_eq!(
        model::WaypointService::decode("gw/w", &encoded),
        Ok(service)
    );
}

fn echo_route() -> RouteName {
    RouteName {
        kind: "HTTPRoute".into(),
        namespace: "shop".into(),
        name: "echo".into(),
    }
}

fn session() -> HttpSession {
    HttpSession {
        name: "id".into(),
        is_header: true,
        is_permanent: true,
        absolute_timeout: Some(Duration::from_secs(60)),
        idle_timeout: Some(Duration::from_secs(5)),
    }
}

#[test]
fn services_read_back_what_was_written() {
    let share = RequestFraction {
        numerator: 1,
        denominator: 1000,
    };
    let service = WaypointService {
        service: NamespacedHostname::new("shop", "echo.shop.svc.cluster.local"),
        routes: vec![HttpRoute {
            name: echo_route(),
            ports: vec![80],
            rules: vec![HttpRouteRule {
                session: Some(session()),
                matches: vec![HttpRouteMatch {
                    path: Some(HttpPathMatch::Prefix("/a".into())),
                    method: Some("GET".into()),
                    headers: vec![("x".into(), HttpValueMatch::Exact("1".into()))],
                    query_params: vec![("q".into(), HttpValueMatch::Regex("a+".into()))],
                    without_headers: vec![("n".into(), HttpValueMatch::Exact("2".into()))],
                }],
                backends: vec![
                    HttpBackend {
                        service: Ok(NamespacedHostname::new("shop", "echo-v1")),
                        port: 80,
                        subset: Some("v2".into()),
                        weight: 3,
                        filters: vec![HttpFilter::ResponseHeaders(HeaderChanges {
                            add: vec![("x-a".into(), "1".into())],
                            ..HeaderChanges::default()
                        })],
                    },
                    HttpBackend {
                        service: Err("no such service".into()),
                        port: 81,
                        subset: None,
                        weight: 0,
                        filters: vec![],
                    },
                ],
                filters: vec![
                    HttpFilter::RequestHeaders(HeaderChanges {
                        set: vec![("x-s".into(), "".into())],
                        add: vec![],
                        remove: vec!["x-r".into()],
                    }),
                    HttpFilter::Redirect(HttpRedirect {
                        scheme: Some("https".into()),
                        hostname: None,
                        port: Some(8443),
                        path: Some(PathChange::Full("/f".into())),
                        status: 307,
                    }),
                    HttpFilter::Rewrite(HttpRewrite {
                        hostname: Some("h".into()),
                        path: Some(PathChange::Prefix("".into())),
                    }),
                    HttpFilter::Mirror(HttpMirror {
                        service: NamespacedHostname::new("shop", "echo-v2"),
                        port: 82,
                        numerator: 1,
                        denominator: 3,
                    }),
                    HttpFilter::Cors(HttpCors {
                        allow_origins: vec!["https://*.a".into()],
                        allow_credentials: true,
                        allow_methods: vec!["PUT".into()],
                        allow_headers: vec!["x-a".into()],
                        expose_headers: vec!["x-b".into()],
                        max_age: 60,
                    }),
                    HttpFilter::Fault(HttpFault {
                        delay: Some((Duration::from_millis(1500), share)),
                        abort: Some((FaultStatus::Grpc(14), share)),
                    }),
                ],
                name: Some("first".into()),
                retry: Some(HttpRetry {
                    codes: vec![500, 503],
                    attempts: 3,
                    backoff: Some(Duration::from_millis(25)),
                }),
                timeouts: HttpTimeouts {
                    request: Some(Duration::from_millis(1500)),
                    backend_request: None,
                },
                unsupported: Some("filters".into()),
            }],
            clients: Some("bank".into()),
            first_match: true,
            of_service: true,
        }],
        ..WaypointService::default()
    };
    let encoded = wire::WaypointService::from(&service).encode_to_vec();
    assert_eq!(
        model::WaypointService::decode("gw/w", &encoded),
        Ok(service)
    );
}

#[test]
fn settings_read_back_what_was_written() {
    let settings = WaypointGateway {
        gateway: GatewayName::new("shop", "waypoint"),
        path_normalization: PathNormalization::DecodeAndMergeSlashes,
        trusted_proxies: 2,
        client_identity_header: true,
        cluster_addresses: ["10.0.0.7", "2001:db8::7"]
            .map(|ip| ip.parse().unwrap())
            .into(),
        allowed_addresses: vec!["127.0.0.2/32".parse().unwrap()],
        policies_only_for_services: true,
    };
    let encoded = wire::WaypointGateway::from(&settings).encode_to_vec();
    assert_eq!(
        model::WaypointGateway::decode("gw/w", &encoded),
        Ok(settings)
    );
}

#[test]
fn a_policy_with_an_unknown_field_denies_what_it_is_attached_to() {
    let mut policy = full_policy();
    policy.for_gateway = false;
    policy.dry_run = false;
    let mut encoded = encode_policy(&policy);
    // Field 100, a varint: a condition of a later version.
    encoded.extend([0xa0, 0x06, 0x01]);
    let refused = model::HttpPolicy::decode("gw/w/shop/p", &encoded).unwrap_err();
    assert!(refused.error.to_string().contains("100"), "{refused}");
    let substitute = refused.substitute_record();
    assert_eq!(substitute.services, policy.services);
    assert!(!substitute.for_gateway);
    assert_eq!(substitute.action, HttpAction::Deny);
    assert_eq!(substitute.rules, [HttpRule::default()]);
}

#[test]
fn bytes_that_are_no_policy_deny_everything() {
    let refused = model::HttpPolicy::decode("gw/w/shop/p", &[0xff, 0xff]).unwrap_err();
    let substitute = refused.substitute_record();
    assert!(substitute.for_gateway);
    assert_eq!(substitute.key, PolicyKey::from_resource_name("shop/p"));
}

#[test]
fn a_policy_under_anothers_name_is_refused() {
    let refused =
        model::HttpPolicy::decode("gw/w/shop/other", &encode_policy(&full_policy())).unwrap_err();
    assert!(refused.error.to_string().contains("shop/p"), "{refused}");
}

/// Checks that a service with a field of a later version in one of its routes is rejected as a whole, so that its
/// earlier routes remain.
#[test]
fn a_service_with_an_unknown_field_anywhere_in_its_routes_is_refused() {
    fn encode_field(number: u8, of: &[u8]) -> Vec<u8> {
        let length = u8::try_from(of.len()).unwrap();
        [&[number << 3 | 2, length][..], of].concat()
    }
    let name = NamespacedHostname::new("shop", "echo");
    let sent = wire::WaypointService {
        service: Some((&name).into()),
        ..Default::default()
    };
    let route = wire::HttpRoute {
        name: Some(wire::RouteName::default()),
        ..Default::default()
    };
    // Field 100, a varint.
    let unknown: &[u8] = &[0xa0, 0x06, 0x01];
    let of_rule = |rule: &[u8]| {
        let route = [route.encode_to_vec(), encode_field(3, rule)].concat();
        let service = [sent.encode_to_vec(), encode_field(2, &route)].concat();
        model::WaypointService::decode("gw/w", &service)
    };
    assert_eq!(of_rule(&[]).unwrap().routes[0].rules.len(), 1);
    for rule in [
        unknown.to_vec(),
        encode_field(1, unknown),
        encode_field(2, unknown),
    ] {
        let refused = of_rule(&rule).unwrap_err().to_string();
        assert!(refused.contains("100"), "{rule:?}: {refused}");
    }
}

#[test]
fn faults_that_cannot_be_are_refused() {
    let refused = |fault: wire::HttpFault| {
        let filter = wire::HttpFilter {
            kind: Some(wire::http_filter::Kind::Fault(fault)),
        };
        let rule = wire::HttpRouteRule {
            filters: vec![filter],
            ..Default::default()
        };
        let route = wire::HttpRoute {
            name: Some(wire::RouteName::default()),
            rules: vec![rule],
            ..Default::default()
        };
        let service = NamespacedHostname::new("shop", "echo");
        let sent = wire::WaypointService {
            service: Some((&service).into()),
            routes: vec![route],
            ..Default::default()
        };
        model::WaypointService::decode("gw/w", &sent.encode_to_vec())
            .unwrap_err()
            .error
            .field()
    };
    let abort = |status, denominator| wire::HttpFault {
        abort: Some(wire::HttpFaultAbort {
            status,
            numerator: 1,
            denominator,
        }),
        ..Default::default()
    };
    use wire::http_fault_abort::Status;
    for status in [Status::Http(100), Status::Http(600), Status::Grpc(17)] {
        assert_eq!(refused(abort(Some(status), 1)), "http_fault_abort.status");
    }
    assert_eq!(refused(abort(None, 1)), "http_fault_abort.status");
    let field = refused(abort(Some(Status::Grpc(0)), 0));
    assert_eq!(field, "http_fault.denominator");
}
