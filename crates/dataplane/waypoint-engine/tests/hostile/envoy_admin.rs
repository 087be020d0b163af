//! Tests of Envoy's admin interface of a waypoint, which `istioctl proxy-config` reads: all parts of routes and rules
//! are shown under Envoy's names, in the order of evaluation, and Ambit's own dump stays at its path.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ambit_model::{
    ArcStr, DestinationPolicy, DestinationSubset, DestinationTls, HeaderChanges, HttpBackend,
    HttpCors, HttpFault, HttpFilter, HttpMirror, HttpPathMatch, HttpRedirect, HttpRetry,
    HttpRewrite, HttpRoute, HttpRouteMatch, HttpRouteRule, HttpTimeouts, HttpValueMatch,
    OutlierPolicy, PathChange, RequestFraction, RouteName, StreamBackend, StreamRoute,
    WaypointDestination, WaypointRecord, WaypointService,
};
use ambit_testkit::wait_until;
use ambit_waypoint_engine::envoy_admin::EnvoyAdmin;
use ambit_xds::WaypointUpdate;
use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::{
    fixture::{HTTP1, TCP, World},
    routes::{BACK_VIP, VIP, backend, service},
};

/// Value of a credential header that a route sets, which dumps must redact.
const CREDENTIAL: &str = "hunter2";

struct AdminResponse {
    status: u16,
    body: Value,
}

/// Returns the response of the admin interface to a GET; `None` if the path is not one of Envoy's.
async fn get(admin: &EnvoyAdmin, path: &str) -> Option<AdminResponse> {
    let request = Request::get(path).body(Bytes::new()).unwrap();
    let response = admin.respond(&request)?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Some(AdminResponse { status, body })
}

async fn section(admin: &EnvoyAdmin, mask: &str) -> Value {
    let path = format!("/config_dump?mask={mask}");
    let answer = get(admin, &path).await.unwrap();
    assert_eq!(answer.status, 200, "{mask}");
    let configs = answer.body["configs"].as_array().unwrap();
    assert_eq!(configs.len(), 1, "{mask}");
    configs[0].clone()
}

fn rule(path: HttpPathMatch, backends: Vec<HttpBackend>) -> HttpRouteRule {
    HttpRouteRule {
        matches: vec![HttpRouteMatch {
            path: Some(path),
            ..HttpRouteMatch::default()
        }],
        backends,
        ..HttpRouteRule::default()
    }
}

/// Returns route rules that are not in the order of their evaluation.
fn rules() -> Vec<HttpRouteRule> {
    let prefix = |text: &str| HttpPathMatch::Prefix(text.into());
    let rewritten = HttpRouteRule {
        filters: vec![
            HttpFilter::RequestHeaders(HeaderChanges {
                set: vec![("authorization".into(), CREDENTIAL.into())],
                add: vec![("x-tag".into(), "1".into())],
                remove: vec!["x-gone".into()],
            }),
            HttpFilter::Rewrite(HttpRewrite {
                hostname: Some("inside".into()),
                path: Some(PathChange::Prefix("/v2".into())),
            }),
            HttpFilter::Mirror(HttpMirror {
                service: service("back"),
                port: HTTP1,
                numerator: 1,
                denominator: 4,
            }),
            HttpFilter::Cors(HttpCors {
                allow_origins: vec!["https://*.example".into()],
                ..HttpCors::default()
            }),
            HttpFilter::Fault(HttpFault {
                delay: Some((
                    Duration::from_millis(1500),
                    RequestFraction {
                        numerator: 1,
                        denominator: 2,
                    },
                )),
                abort: None,
            }),
        ],
        timeouts: HttpTimeouts {
            request: Some(Duration::from_secs(3)),
            backend_request: Some(Duration::from_secs(1)),
        },
        retry: Some(HttpRetry {
            codes: vec![503],
            attempts: 4,
            backoff: None,
        }),
        ..rule(
            prefix("/api"),
            vec![
                HttpBackend {
                    weight: 3,
                    subset: Some("v1".into()),
                    ..backend("web")
                },
                HttpBackend {
                    service: Err("Service ns/gone does not exist".into()),
                    ..backend("gone")
                },
            ],
        )
    };
    let redirect = HttpRouteRule {
        filters: vec![HttpFilter::Redirect(HttpRedirect {
            scheme: Some("https".into()),
            status: 308,
            ..HttpRedirect::default()
        })],
        ..rule(HttpPathMatch::Exact("/old".into()), Vec::new())
    };
    let conditional = HttpRouteRule {
        matches: vec![HttpRouteMatch {
            path: Some(prefix("/api")),
            method: Some("GET".into()),
            headers: vec![("x-user".into(), HttpValueMatch::Exact("ann".into()))],
            query_params: vec![("page".into(), HttpValueMatch::Regex("[0-9]+".into()))],
            ..HttpRouteMatch::default()
        }],
        backends: vec![backend("back")],
        ..HttpRouteRule::default()
    };
    let refused = HttpRouteRule {
        unsupported: Some("a filter of another controller".into()),
        ..rule(HttpPathMatch::Regex("/a.*b".into()), vec![backend("back")])
    };
    vec![
        refused,
        rule(prefix("/"), vec![backend("web")]),
        rewritten,
        redirect,
        conditional,
    ]
}

fn web_service() -> WaypointService {
    let name = |kind: &str, name: &str| RouteName {
        kind: kind.into(),
        namespace: "ns".into(),
        name: name.into(),
    };
    let own = HttpRoute {
        name: name("HTTPRoute", "of-bank"),
        clients: Some("bank".into()),
        rules: vec![HttpRouteRule {
            backends: vec![backend("back")],
            ..HttpRouteRule::default()
        }],
        ports: vec![HTTP1],
        ..HttpRoute::default()
    };
    let stream = StreamRoute {
        name: name("TLSRoute", "by-name"),
        ports: vec![TCP],
        hostnames: vec!["a.example".into()],
        backends: vec![StreamBackend {
            service: Ok(service("back")),
            port: TCP,
            weight: 1,
        }],
        ..StreamRoute::default()
    };
    WaypointService {
        service: service("web"),
        routes: vec![
            HttpRoute {
                name: name("HTTPRoute", "main"),
                ports: vec![HTTP1],
                rules: rules(),
                ..HttpRoute::default()
            },
            own,
        ],
        tls_routes: vec![stream],
        ..WaypointService::default()
    }
}

fn destination_rule() -> WaypointDestination {
    let mut policy = DestinationPolicy {
        outliers: Some(OutlierPolicy::default()),
        tls: Some(Arc::new(DestinationTls {
            server_name: Some("outside.example".into()),
            ..DestinationTls::default()
        })),
        ..DestinationPolicy::default()
    };
    policy.limits.requests = 11;
    let subset = DestinationSubset {
        workloads: BTreeSet::from([ArcStr::from("Kubernetes//Pod/ns/web-0")]),
        ..DestinationSubset::default()
    };
    WaypointDestination {
        policy,
        subsets: [("v1".into(), subset)].into(),
        ..WaypointDestination::without_policy(service("web"))
    }
}

async fn world() -> World {
    let world = World::new().await;
    let applications = ["127.0.0.2:8080", "127.0.0.3:8080"];
    world.serve("web", VIP, &applications.map(|one| one.parse().unwrap()));
    world.serve("back", BACK_VIP, &["127.0.0.4:8080".parse().unwrap()]);
    world.publish(WaypointUpdate::Upserted(
        "gw/web".into(),
        WaypointRecord::from(web_service()),
    ));
    world.publish(WaypointUpdate::Upserted(
        "gw/rule/web".into(),
        WaypointRecord::from(destination_rule()),
    ));
    world
}

#[tokio::test]
async fn routes_are_dumped_in_evaluation_order() {
    let admin = world().await.envoy_admin();
    let dump = section(&admin, "dynamic_route_configs,static_route_configs").await;
    let configurations = dump["dynamic_route_configs"].as_array().unwrap();
    let find = |name: &str| {
        let mut all = configurations.iter().map(|one| &one["route_config"]);
        all.find(|one| one["name"] == name).unwrap().clone()
    };
    let main = find(&format!(
        "inbound-vip|{HTTP1}|http|web.ns.svc.cluster.local"
    ));
    let routes = main["virtual_hosts"][0]["routes"].as_array().unwrap();
    let matches: Vec<_> = routes.iter().map(|route| route["match"].clone()).collect();
    let conditional = json!({
        "path_separated_prefix": "/api",
        "headers": [
            {"name": ":method", "string_match": {"exact": "GET"}},
            {"name": "x-user", "string_match": {"exact": "ann"}},
        ],
        "query_parameters": [
            {"name": "page", "string_match": {"safe_regex": {"regex": "[0-9]+"}}},
        ],
    });
    let expected = [
        json!({"path": "/old"}),
        conditional,
        json!({"path_separated_prefix": "/api"}),
        json!({"prefix": "/"}),
        json!({"safe_regex": {"regex": "/a.*b"}}),
    ];
    assert_eq!(matches, expected);
    assert_eq!(routes[0]["redirect"]["response_code"], "PERMANENT_REDIRECT");
    assert_eq!(routes[4]["direct_response"]["status"], 500);

    let of_clients = find(&format!(
        "inbound-vip|{HTTP1}|http|web.ns.svc.cluster.local/clients/bank"
    ));
    let cluster = &of_clients["virtual_hosts"][0]["routes"][0]["route"]["cluster"];
    let back = format!("inbound-vip|{HTTP1}|http|back.ns.svc.cluster.local");
    assert_eq!(*cluster, back);
}

#[tokio::test]
async fn filters_of_a_rule_are_fields_of_its_route() {
    let admin = world().await.envoy_admin();
    let dump = section(&admin, "dynamic_route_configs").await;
    assert!(!dump.to_string().contains(CREDENTIAL));
    let configurations = dump["dynamic_route_configs"].as_array().unwrap();
    let name = format!("inbound-vip|{HTTP1}|http|web.ns.svc.cluster.local");
    let mut all = configurations.iter().map(|one| &one["route_config"]);
    let main = all.find(|one| one["name"] == name).unwrap();
    let route = &main["virtual_hosts"][0]["routes"][2];
    let action = &route["route"];
    let weighted = action["weighted_clusters"]["clusters"].as_array().unwrap();
    let shares = weighted
        .iter()
        .map(|one| (one["name"].clone(), one["weight"].clone()));
    let v1 = format!("inbound-vip|{HTTP1}|http/v1|web.ns.svc.cluster.local");
    let expected = [(json!(v1), json!(3)), (json!("BlackHoleCluster"), json!(1))];
    assert_eq!(shares.collect::<Vec<_>>(), expected);
    assert_eq!(action["timeout"], "3s");
    assert_eq!(action["retry_policy"]["num_retries"], 4);
    assert_eq!(action["retry_policy"]["per_try_timeout"], "1s");
    assert_eq!(
        action["retry_policy"]["retriable_status_codes"],
        json!([503])
    );
    assert_eq!(action["prefix_rewrite"], "/v2");
    let mirror = &action["request_mirror_policies"][0]["runtime_fraction"]["default_value"];
    assert_eq!(
        *mirror,
        json!({"numerator": 250_000, "denominator": "MILLION"})
    );
    assert_eq!(route["request_headers_to_remove"], json!(["x-gone"]));
    let fault = &route["typed_per_filter_config"]["envoy.filters.http.fault"];
    assert_eq!(fault["delay"]["fixed_delay"], "1.500000000s");
    let metadata = &route["metadata"]["filter_metadata"];
    let error = &metadata["ambit"]["backends"][0]["error"];
    assert_eq!(*error, "Service ns/gone does not exist");
    let config = metadata["istio"]["config"].as_str().unwrap();
    assert!(config.ends_with("/HTTPRoute~main"), "{config}");
}

#[tokio::test]
async fn clusters_have_their_rule_and_their_endpoints() {
    let admin = world().await.envoy_admin();
    let dump = section(&admin, "dynamic_active_clusters,static_clusters").await;
    let clusters = dump["dynamic_active_clusters"].as_array().unwrap();
    let named = |name: &str| {
        let mut all = clusters.iter().map(|one| &one["cluster"]);
        all.find(|one| one["name"] == name).unwrap().clone()
    };
    let name = format!("inbound-vip|{HTTP1}|http|web.ns.svc.cluster.local");
    let web = named(&name);
    assert_eq!(web["outlier_detection"]["consecutive_5xx"], 5);
    assert_eq!(web["circuit_breakers"]["thresholds"][0]["max_requests"], 11);
    assert_eq!(
        web["transport_socket"]["typed_config"]["sni"],
        "outside.example"
    );
    let subset = format!("inbound-vip|{HTTP1}|http/v1|web.ns.svc.cluster.local");
    assert!(named(&subset).get("outlier_detection").is_none());

    let statuses = get(&admin, "/clusters?format=json").await.unwrap().body;
    let statuses = statuses["cluster_statuses"].as_array().unwrap();
    let addresses = |name: &str| -> Vec<_> {
        let of = statuses.iter().find(|one| one["name"] == name).unwrap();
        let hosts = of["host_statuses"].as_array().unwrap().iter();
        hosts
            .map(|host| host["address"]["socket_address"]["address"].clone())
            .collect()
    };
    assert_eq!(addresses(&name), ["127.0.0.2", "127.0.0.3"]);
    assert_eq!(addresses(&subset), ["127.0.0.2"]);
    // Every cluster that routes name is in the dump.
    let routes = section(&admin, "dynamic_route_configs").await.to_string();
    for part in routes.split("\"cluster\":\"").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(statuses.iter().any(|one| one["name"] == name), "{name}");
    }
}

#[tokio::test]
async fn filter_chains_match_called_addresses() {
    let admin = world().await.envoy_admin();
    let dump = section(&admin, "dynamic_listeners,static_listeners").await;
    let main = &dump["dynamic_listeners"][1]["active_state"]["listener"];
    assert_eq!(main["name"], "main_internal");
    let chains = main["filter_chains"].as_array().unwrap();
    let find = |name: &str| chains.iter().find(|chain| chain["name"] == name);
    let http = format!("inbound-vip|{HTTP1}|http|web.ns.svc.cluster.local");
    let chain = find(&http).unwrap();
    let expected = json!({
        "destination_port": HTTP1,
        "prefix_ranges": [{"address_prefix": VIP, "prefix_len": 32}],
    });
    assert_eq!(chain["filter_chain_match"], expected);
    let rds = &chain["filters"][0]["typed_config"]["rds"]["route_config_name"];
    assert_eq!(*rds, http);
    let by_name = format!("inbound-vip|{TCP}|tcp|web.ns.svc.cluster.local/TLSRoute/ns/by-name");
    let chain = find(&by_name).unwrap();
    let names = &chain["filter_chain_match"]["server_names"];
    assert_eq!(*names, json!(["a.example"]));
    let port = &dump["dynamic_listeners"][0]["active_state"]["listener"]["address"];
    assert_eq!(port["socket_address"]["port_value"], 15008);
}

#[tokio::test]
async fn certificates_are_shown_without_keys_and_ambits_dump_stays() {
    let world = world().await;
    let admin = world.envoy_admin();
    world.wait_for_certificate().await;
    let dump = section(&admin, "dynamic_active_secrets,dynamic_warming_secrets").await;
    let secrets = dump["dynamic_active_secrets"].as_array().unwrap();
    let names: Vec<_> = secrets.iter().map(|one| one["name"].clone()).collect();
    assert_eq!(names, ["default", "ROOTCA"]);
    let whole = get(&admin, "/config_dump?include_eds=true").await.unwrap();
    let text = whole.body.to_string();
    assert!(!text.contains("private_key") && !text.contains(CREDENTIAL));
    assert_eq!(whole.body["configs"].as_array().unwrap().len(), 7);
    // Without parameters, the page is Ambit's own.
    assert!(get(&admin, "/config_dump").await.is_none());
    assert!(get(&admin, "/workload_state").await.is_none());
    let unknown = get(&admin, "/config_dump?mask=nonsense").await.unwrap();
    assert_eq!(unknown.status, 400);
}

#[tokio::test]
async fn dumps_are_bounded_in_number_and_end_with_their_readers() {
    let world = World::new().await;
    for index in 0..60 {
        let application = format!("127.0.1.{index}:8080").parse().unwrap();
        world.serve(
            &format!("web-{index}"),
            &format!("10.0.1.{index}"),
            &[application],
        );
    }
    let admin = world.envoy_admin();
    let begin = || {
        let request = Request::get("/config_dump?include_eds").body(Bytes::new());
        admin.respond(&request.unwrap()).unwrap()
    };
    // Responses larger than their buffers, none of which is read.
    let unread: Vec<_> = (0..4).map(|_| begin()).collect();
    assert!(unread.iter().all(|response| response.status() == 200));
    assert_eq!(begin().status(), 503);
    drop(unread);
    wait_until("dumps without readers have ended", || {
        begin().status() == 200
    })
    .await;
}
