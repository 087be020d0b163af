//! Tests of requests with ambiguous targets or hosts at a service with routes: the application receives the authorized
//! form.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use ambit_model::{
    DestinationPolicy, DestinationSubset, HeaderChanges, HttpAction, HttpAttribute, HttpBackend,
    HttpCondition, HttpFilter, HttpMirror, HttpOperation, HttpPathMatch, HttpPolicy, HttpRedirect,
    HttpRewrite, HttpRoute, HttpRouteMatch, HttpRouteRule, HttpRule, HttpValue, HttpValueMatch,
    NamespacedHostname, PathChange, PathPattern, PolicyKey, RouteName, StreamBackend, StreamRoute,
    StringMatch, WaypointDestination, WaypointRecord, WaypointService,
};
use ambit_testkit::{build, wait_until};
use ambit_xds::WaypointUpdate;
use futures_util::future::join_all;
use http::Request;
use tokio::io::AsyncReadExt as _;

use crate::{
    application::{ReceivedRequest, StrictServer, run_scripted_server},
    fixture::{Client, HTTP1, TCP, UNDECLARED, World, record_name},
};

/// Address of the service `web`, which has routes; followed by that of its backend `back`.
pub(crate) const VIP: &str = "10.0.0.1";
pub(crate) const BACK_VIP: &str = "10.0.0.2";

pub(crate) fn service(name: &str) -> NamespacedHostname {
    NamespacedHostname::new("ns", build::service(name, &[], &[]).hostname)
}

pub(crate) fn backend(name: &str) -> HttpBackend {
    HttpBackend {
        service: Ok(service(name)),
        port: HTTP1,
        subset: None,
        weight: 1,
        filters: Vec::new(),
    }
}

pub(crate) fn prefix(path: &str) -> HttpRouteMatch {
    HttpRouteMatch {
        path: Some(HttpPathMatch::Prefix(path.into())),
        ..HttpRouteMatch::default()
    }
}

pub(crate) fn rewrite(hostname: Option<&str>, path: PathChange) -> HttpFilter {
    HttpFilter::Rewrite(HttpRewrite {
        hostname: hostname.map(Into::into),
        path: Some(path),
    })
}

pub(crate) fn rule(
    of: HttpRouteMatch,
    filters: Vec<HttpFilter>,
    backend: HttpBackend,
) -> HttpRouteRule {
    HttpRouteRule {
        matches: vec![of],
        filters,
        backends: vec![backend],
        ..HttpRouteRule::default()
    }
}

/// Builds a route for all clients, or a consumer route for clients of a namespace.
pub(crate) fn route(clients: Option<&str>, rules: Vec<HttpRouteRule>) -> HttpRoute {
    HttpRoute {
        name: RouteName {
            kind: "HTTPRoute".into(),
            namespace: clients.unwrap_or("shop").into(),
            name: "r".into(),
        },
        rules,
        clients: clients.map(Into::into),
        ..HttpRoute::default()
    }
}

/// Builds a DENY policy of these services; of the whole waypoint if there are none.
pub(crate) fn deny(name: &str, of: &[&str], operation: HttpOperation) -> WaypointUpdate {
    let rule = HttpRule {
        operations: vec![operation],
        ..HttpRule::default()
    };
    deny_rule(name, of, rule)
}

fn deny_rule(name: &str, of: &[&str], rule: HttpRule) -> WaypointUpdate {
    let policy = HttpPolicy {
        key: PolicyKey::from_resource_name(&format!("ns/{name}")),
        for_gateway: of.is_empty(),
        services: of.iter().map(|name| service(name)).collect(),
        action: HttpAction::Deny,
        rules: vec![rule],
        ..HttpPolicy::default()
    };
    WaypointUpdate::Upserted(record_name(name), WaypointRecord::from(policy))
}

fn paths(paths: &[&str]) -> HttpOperation {
    let text = |path: &&str| PathPattern::Text(StringMatch::from_pattern(path));
    HttpOperation {
        paths: paths.iter().map(text).collect(),
        ..HttpOperation::default()
    }
}

fn hosts(host: &str) -> HttpOperation {
    HttpOperation {
        hosts: vec![StringMatch::from_pattern(host)],
        ..HttpOperation::default()
    }
}

/// Waypoint with the services `web` and `back`, and the requests that their applications receive.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) client: Client,
    pub(crate) web: StrictServer,
    back: StrictServer,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        let world = World::new().await;
        let (web, back) = (StrictServer::start().await, StrictServer::start().await);
        world.serve("web", VIP, &[web.address]);
        world.serve("back", BACK_VIP, &[back.address]);
        let client = world.client().await;
        Self {
            world,
            client,
            web,
            back,
        }
    }

    /// Publishes the routes of a service.
    pub(crate) fn publish_routes(&self, name: &str, routes: Vec<HttpRoute>) {
        self.publish(WaypointService {
            service: service(name),
            routes,
            ..WaypointService::default()
        });
    }

    pub(crate) fn publish(&self, service: WaypointService) {
        let name = service
            .service
            .hostname
            .split('.')
            .next()
            .unwrap_or_default();
        let record = arcstr::format!("gw/{name}");
        let update = WaypointUpdate::Upserted(record, WaypointRecord::from(service));
        self.world.publish(update);
    }

    /// Sends an HTTP/1.1 request and describes the result as text: status and location, or the application that has
    /// received the request, with target and host.
    pub(crate) async fn describe_request(&mut self, target: &str, host: &str) -> String {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let response = self.client.send_bytes(VIP, HTTP1, request.as_bytes()).await;
        let text = response.text();
        match self.received_requests().as_slice() {
            [] => {
                let status = text.get(9..12).unwrap_or("nothing").to_owned();
                let location = text
                    .lines()
                    .find_map(|line| line.strip_prefix("location: "));
                location.map_or_else(|| status.clone(), |to| format!("{status} {to}"))
            }
            [one] if response.statuses() == [200] => one.clone(),
            several => format!("{text} {several:?}"),
        }
    }

    /// Returns the requests that the applications have received since the last call.
    pub(crate) fn received_requests(&mut self) -> Vec<String> {
        let each = [("web", &mut self.web), ("back", &mut self.back)];
        let all = each.into_iter().flat_map(|(name, application)| {
            let received = application.received().into_iter();
            received.map(move |one| match one {
                ReceivedRequest::Complete { head, .. } => {
                    let target = head.split(' ').nth(1).unwrap_or_default();
                    let host = head.lines().find_map(|line| line.strip_prefix("host: "));
                    format!("{name} {target} {}", host.unwrap_or("-"))
                }
                other => format!("{name} {other:?}"),
            })
        });
        all.collect()
    }
}

/// Request targets and hosts, each with the expected result as text.
const SPELLINGS: &[(&str, &str, &str)] = &[
    ("/x", "web", "web /x web"),
    // A denied path in any spelling, whichever rule it would match.
    ("/admin", "web", "403"),
    ("//admin", "web", "403"),
    ("/%2Fadmin", "web", "403"),
    ("/%61dmin;a", "web", "403"),
    ("/old/../admin/x", "web", "403"),
    ("/old/%2e%2E/admin", "web", "403"),
    ("/old\\..\\admin", "web", "403"),
    ("http://web/old/../admin", "web", "403"),
    ("HTTP://WEB/admin", "web", "403"),
    ("/old/..%2fadmin", "web", "400"),
    ("/old/..;/admin", "web", "400"),
    ("/old/%c0%ae%c0%ae/admin", "web", "400"),
    ("/old/%00", "web", "400"),
    ("/../old/x", "web", "400"),
    // A rewriting rule matches the form that policies have authorized, and its result is normalized again.
    (
        "/old/a?b=/../admin",
        "web",
        "back /new/a?b=/../admin other.example",
    ),
    ("/x/../old/./a", "web", "back /new/a other.example"),
    ("/%6fld/%61%2fb", "web", "back /new/a%2Fb other.example"),
    ("http://web/old/a", "WEB", "back /new/a other.example"),
    ("/old//a", "web", "back /new//a other.example"),
    ("/full/a?b", "web", "web /whole/a?b web"),
    ("/old;a/b", "web", "web /old;a/b web"),
    ("/OLD/a", "web", "web /OLD/a web"),
    ("/older", "web", "web /older web"),
    // Paths that the other service denies in their forwarded form.
    ("/old/secret", "web", "403"),
    ("/old/%73ecret", "web", "403"),
    ("/old//secret", "web", "403"),
    ("/old/a/../secret", "web", "403"),
    ("/old/secret;a", "web", "403"),
    ("/new/secret", "web", "web /new/secret web"),
    // Redirected exactly as the rule specifies.
    ("/gone/a?b", "web:8080", "302 http://web/moved/a?b"),
    (
        "/gone//evil.example/a",
        "web",
        "302 http://web/moved//evil.example/a",
    ),
    (
        "/gone/%2f%2fevil.example",
        "web",
        "302 http://web/moved/%2F%2Fevil.example",
    ),
    ("/gone/../admin", "web", "403"),
    // A denied host, whatever the rule would rewrite it to.
    ("/x", "secret.example", "403"),
    ("/x", "SECRET.Example", "403"),
    ("/x", "secret.example.", "403"),
    ("/x", "secret.example:8080", "403"),
    ("/x", "secret.example.:", "403"),
    ("http://secret.example/x", "secret.example", "403"),
    ("/old/a", "secret.example", "403"),
    ("/gone/a", "Secret.example.", "403"),
    ("http://secret.example/x", "web", "400"),
    ("http://web/x", "secret.example", "400"),
    ("/x", "web@secret.example", "400"),
    ("/x", "secret.example, web", "400"),
    ("/x", "secret.example\r\nHost: web", "400"),
    // Matched by the host that policies see.
    ("/x", "canary.example", "back /x canary.example"),
    (
        "http://canary.example/x",
        "canary.example",
        "back /x canary.example",
    ),
];

#[tokio::test]
async fn authorized_form_is_the_forwarded_form() {
    let mut scene = Scene::new().await;
    let away = HttpFilter::Redirect(HttpRedirect {
        path: Some(PathChange::Prefix("/moved".into())),
        status: 302,
        ..HttpRedirect::default()
    });
    let canary = HttpRouteMatch {
        headers: vec![(
            "host".into(),
            HttpValueMatch::Exact("canary.example".into()),
        )],
        ..HttpRouteMatch::default()
    };
    let full = rewrite(None, PathChange::Full("/all/../whole/%61".into()));
    let old = rewrite(Some("other.example"), PathChange::Prefix("/new".into()));
    scene.publish_routes(
        "web",
        vec![route(
            None,
            vec![
                rule(prefix("/old"), vec![old], backend("back")),
                rule(prefix("/gone"), vec![away], backend("gone")),
                rule(prefix("/full"), vec![full], backend("web")),
                rule(canary, Vec::new(), backend("back")),
                rule(prefix("/"), Vec::new(), backend("web")),
            ],
        )],
    );
    scene
        .world
        .publish(deny("admin", &[], paths(&["/admin", "/admin/*"])));
    scene
        .world
        .publish(deny("host", &[], hosts("secret.example")));
    let secret = paths(&["/new/secret", "/new/secret/*"]);
    scene.world.publish(deny("secret", &["back"], secret));
    let mut wrong = Vec::new();
    for (target, host, expected) in SPELLINGS {
        let is = scene.describe_request(target, host).await;
        if is != *expected {
            wrong.push(format!("{target} of {host:?}: {is}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn requests_of_one_connection_are_authorized_and_routed_singly() {
    let mut scene = Scene::new().await;
    let canary = HttpRouteMatch {
        headers: vec![(
            "host".into(),
            HttpValueMatch::Exact("canary.example".into()),
        )],
        ..HttpRouteMatch::default()
    };
    let full = rewrite(None, PathChange::Full("/all".into()));
    scene.publish_routes(
        "web",
        vec![route(
            None,
            vec![
                rule(prefix("/full"), vec![full], backend("web")),
                rule(canary, Vec::new(), backend("back")),
                rule(prefix("/"), Vec::new(), backend("web")),
            ],
        )],
    );
    scene
        .world
        .publish(deny("host", &[], hosts("secret.example")));
    let tunnel = scene.client.tunnel(VIP, UNDECLARED).await;
    let (mut sender, driver) = h2::client::handshake(tunnel).await.unwrap();
    ambit_rt::spawn("driver", async move {
        // The driver ends with the test.
        let _end = driver.await;
    });
    let mut asked = Vec::new();
    for (authority, path, host) in [
        ("web", "/a", None),
        ("back.ns.svc.cluster.local", "/b", None),
        ("secret.example", "/c", None),
        ("SECRET.example.:1", "/full", None),
        ("canary.example", "/d", None),
        ("web", "/e", Some("secret.example")),
        ("web", "/f", Some("canary.example")),
        ("web", "/full", Some("web")),
    ] {
        let mut request = Request::get(format!("http://{authority}{path}"));
        if let Some(host) = host {
            request = request.header("host", host);
        }
        sender = sender.ready().await.unwrap();
        let (answer, _) = sender
            .send_request(request.body(()).unwrap(), true)
            .unwrap();
        let status = answer.await.unwrap().status().as_u16();
        asked.push(format!("{status} {}", scene.received_requests().concat()));
    }
    assert_eq!(
        asked,
        [
            "200 web /a web",
            "200 web /b back.ns.svc.cluster.local",
            "403 ",
            "403 ",
            "200 back /d canary.example",
            "400 ",
            "400 ",
            "200 web /all web",
        ]
    );
}

#[tokio::test]
async fn consumer_routes_give_no_more_access_than_requests() {
    let mut scene = Scene::new().await;
    let role = HttpFilter::RequestHeaders(HeaderChanges {
        set: vec![("x-role".into(), "admin".into())],
        ..HeaderChanges::default()
    });
    let full = |path: &str| rewrite(None, PathChange::Full(path.into()));
    let host = HttpFilter::Rewrite(HttpRewrite {
        hostname: Some("secret.example".into()),
        path: None,
    });
    let rules = vec![
        rule(prefix("/own"), vec![full("/admin")], backend("web")),
        rule(prefix("/root"), vec![full("/everywhere")], backend("web")),
        rule(prefix("/back"), vec![full("/everywhere")], backend("back")),
        rule(prefix("/host"), vec![host], backend("web")),
        rule(prefix("/role"), vec![role], backend("web")),
        rule(prefix("/fine"), vec![full("/also")], backend("web")),
        rule(prefix("/plain"), Vec::new(), backend("back")),
    ];
    scene
        .world
        .publish(deny("admin", &["web"], paths(&["/admin"])));
    scene
        .world
        .publish(deny("host", &["web"], hosts("secret.example")));
    scene
        .world
        .publish(deny("everywhere", &[], paths(&["/everywhere"])));
    let is_admin = HttpCondition {
        attribute: HttpAttribute::Header("x-role".into()),
        values: vec![HttpValue::Text(StringMatch::Exact("admin".into()))],
        not_values: Vec::new(),
    };
    let conditions = HttpRule {
        conditions: vec![is_admin],
        ..HttpRule::default()
    };
    scene.world.publish(deny_rule("role", &["web"], conditions));
    // The owner of the service may forward requests anywhere that were admitted in their received form.
    scene.publish_routes("web", vec![route(None, rules.clone())]);
    for (target, expected) in [
        ("/own", "web /admin web"),
        ("/root", "web /everywhere web"),
        ("/back", "back /everywhere web"),
        ("/host", "web /host secret.example"),
        ("/role", "web /role web"),
        ("/fine", "web /also web"),
    ] {
        assert_eq!(
            scene.describe_request(target, "web").await,
            expected,
            "{target}"
        );
    }
    scene.publish_routes("web", vec![route(Some("ns"), rules)]);
    for (target, expected) in [
        ("/own", "403"),
        ("/root", "403"),
        ("/back", "403"),
        ("/host", "403"),
        ("/role", "403"),
        ("/fine", "web /also web"),
        ("/plain", "back /plain web"),
    ] {
        assert_eq!(
            scene.describe_request(target, "web").await,
            expected,
            "{target}"
        );
    }
}

#[tokio::test]
async fn consumer_stream_routes_give_no_more_access() {
    let scene = Scene::new().await;
    let other_port = |clients: Option<&str>| StreamRoute {
        name: route(clients, Vec::new()).name,
        backends: vec![StreamBackend {
            service: Ok(service("web")),
            port: HTTP1,
            weight: 1,
        }],
        clients: clients.map(Into::into),
        ..StreamRoute::default()
    };
    let port = HttpOperation {
        ports: vec![HTTP1],
        ..HttpOperation::default()
    };
    scene.world.publish(deny("port", &[], port));
    for (clients, is_let) in [(None, true), (Some("ns"), false)] {
        scene.publish(WaypointService {
            service: service("web"),
            tcp_routes: vec![other_port(clients)],
            ..WaypointService::default()
        });
        let opened = scene.client.try_tunnel(VIP, TCP).await;
        assert_eq!(opened.is_ok(), is_let, "{clients:?}");
    }
}

#[tokio::test]
async fn policies_apply_to_subsets_of_other_services() {
    let mut scene = Scene::new().await;
    let uid = build::workload_outside_mesh("back-0", &[]).uid;
    let subset = DestinationSubset {
        workloads: [uid].into(),
        ..DestinationSubset::default()
    };
    let destination = WaypointDestination {
        service: service("back"),
        policy: DestinationPolicy::default(),
        ports: BTreeMap::new(),
        subsets: [("v1".into(), subset)].into(),
    };
    let update = WaypointUpdate::Upserted(record_name("back"), WaypointRecord::from(destination));
    scene.world.publish(update);
    let v1 = HttpBackend {
        subset: Some("v1".into()),
        ..backend("back")
    };
    let new = rewrite(None, PathChange::Prefix("/new".into()));
    let rules = vec![rule(prefix("/old"), vec![new], v1.clone())];
    scene.publish_routes("web", vec![route(None, rules)]);
    scene
        .world
        .publish(deny("secret", &["back"], paths(&["/new/secret"])));
    let open = scene.describe_request("/old/open", "web").await;
    // Another service's endpoint is not chosen by this waypoint.
    assert!(
        ["503", "back /new/open web"].contains(&open.as_str()),
        "{open}"
    );
    assert_eq!(scene.describe_request("/old/secret", "web").await, "403");
}

#[tokio::test]
async fn routes_do_not_chain_within_a_waypoint() {
    let mut scene = Scene::new().await;
    let all = |name| {
        vec![route(
            None,
            vec![rule(prefix("/"), Vec::new(), backend(name))],
        )]
    };
    scene.publish_routes("web", all("back"));
    scene.publish_routes("back", all("web"));
    assert_eq!(scene.describe_request("/a", "web").await, "back /a web");
    scene.publish_routes("web", all("web"));
    assert_eq!(scene.describe_request("/a", "web").await, "web /a web");
    scene.publish_routes("web", all("nowhere"));
    assert_eq!(scene.describe_request("/a", "web").await, "503");
}

#[tokio::test]
async fn hanging_mirrors_are_bounded_and_delay_no_original() {
    const REQUESTS: usize = 60;
    /// Number of mirrors of a request, so that the limit is reached long before the first mirrored request times out,
    /// also on a busy machine.
    const MIRRORS: usize = 5;
    /// Maximum number of requests that the test sends concurrently.
    const BATCH: usize = 30;
    const MAX_MIRRORED: usize = 256;
    let mut scene = Scene::new().await;
    let open = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counted = open.clone();
    let (stuck, connections) = run_scripted_server(move |_, mut stream| {
        let counted = counted.clone();
        async move {
            let [now, most] = &*counted;
            most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
            let mut all = Vec::new();
            let _end = stream.read_to_end(&mut all).await;
            now.fetch_sub(1, Relaxed);
        }
    })
    .await;
    scene.world.serve("mirror", "10.0.0.3", &[stuck]);
    let copied = HttpFilter::Mirror(HttpMirror {
        service: service("mirror"),
        port: HTTP1,
        numerator: 1,
        denominator: 1,
    });
    let rules = vec![rule(prefix("/"), vec![copied; MIRRORS], backend("web"))];
    scene.publish_routes("web", vec![route(None, rules)]);
    let numbers: Vec<usize> = (0..REQUESTS).collect();
    for batch in numbers.chunks(BATCH) {
        let requests = batch.iter().map(|number| {
            format!("GET /{number} HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
        });
        let requests: Vec<String> = requests.collect();
        let responses = requests
            .iter()
            .map(|request| scene.client.send_bytes(VIP, HTTP1, request.as_bytes()));
        for response in join_all(responses).await {
            assert_eq!(response.statuses(), [200]);
        }
        let mut received = scene.received_requests();
        received.sort();
        let mut expected: Vec<_> = batch
            .iter()
            .map(|number| format!("web /{number} web"))
            .collect();
        expected.sort();
        assert_eq!(received, expected);
    }
    let family = "ambit_requests_mirrored_total";
    let busy = || scene.world.metric_sum(family, &["outcome=\"busy\""]);
    wait_until("each is sent or counted as too much", || {
        let sent = u64::try_from(connections.load(Relaxed)).unwrap();
        sent + busy() == u64::try_from(REQUESTS * MIRRORS).unwrap()
    })
    .await;
    assert!(busy() > 0);
    let most = open[1].load(Relaxed);
    assert!(most <= MAX_MIRRORED, "{most} at once");
}
