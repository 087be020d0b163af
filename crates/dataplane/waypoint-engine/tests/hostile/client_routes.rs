//! Tests that no consumer route bypasses the tokens, claims, limits and plugins of the Service to which a request is
//! sent.

use std::time::Duration;

use ambit_model::{
    Authentication, HeaderChanges, HttpFilter, HttpMirror, HttpPathMatch, HttpRouteMatch,
    HttpRouteRule, JwtKeys, JwtRule, LocalLimit, PathChange, PolicyKey, RateLimit, StreamBackend,
    StreamRoute, WaypointExtension, WaypointRecord, WaypointRecordType, WaypointService,
};
use ambit_testkit::until;
use ambit_xds::WaypointUpdate;

use crate::{
    fixture::{HTTP1, TCP, record},
    routes::{Scene, VIP, prefix, rewrite, route, rule, service, to},
};

const KEYS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

fn tokens(of: &str) -> WaypointUpdate {
    let rule = JwtRule {
        issuer: "i".into(),
        keys: JwtKeys::Known(KEYS.into()),
        cookies: vec!["token".into()],
        headers: vec![("x-token".into(), "".into())],
        claim_headers: vec![("x-user".into(), "sub".into())],
        ..JwtRule::default()
    };
    let authentication = Authentication {
        key: PolicyKey::from_resource_name(&format!("ns/{of}")),
        services: vec![service(of)],
        rules: vec![rule],
        ..Authentication::default()
    };
    WaypointUpdate::Put(record(of), WaypointRecord::from(authentication))
}

/// Builds a RateLimit record for the service `of`, which limits requests to one path.
fn limit(of: &str, path: &str, requests: u32) -> WaypointUpdate {
    let limit = LocalLimit {
        matches: vec![HttpRouteMatch {
            path: Some(HttpPathMatch::Exact(path.into())),
            ..HttpRouteMatch::default()
        }],
        bucket_keys: Vec::new(),
        requests,
        per: Duration::from_secs(3600),
        burst: requests,
        buckets: 10,
    };
    let object = RateLimit {
        key: PolicyKey::from_resource_name(&format!("ns/{of}")),
        services: vec![service(of)],
        local: vec![limit],
        ..RateLimit::default()
    };
    WaypointUpdate::Put(record(of), WaypointRecord::from(object))
}

/// Builds the record of an unsupported plugin for the service `of`. The plugin fails open: these tests only need to
/// know whether it is attached.
fn plugin(of: &str) -> WaypointUpdate {
    let extension = WaypointExtension {
        namespace: "ns".into(),
        name: of.into(),
        services: vec![service(of)],
        fail_open: true,
        unsupported: Some("a test".into()),
        ..WaypointExtension::default()
    };
    WaypointUpdate::Put(record(of), WaypointRecord::from(extension))
}

fn full(path: &str) -> HttpFilter {
    rewrite(None, PathChange::Full(path.into()))
}

fn set(name: &str, value: &str) -> HttpFilter {
    HttpFilter::RequestHeaders(HeaderChanges {
        set: vec![(name.into(), value.into())],
        ..HeaderChanges::default()
    })
}

fn mirror(name: &str) -> HttpFilter {
    HttpFilter::Mirror(HttpMirror {
        service: service(name),
        port: HTTP1,
        numerator: 1,
        denominator: 1,
    })
}

fn of_clients(scene: &Scene, rules: Vec<HttpRouteRule>) {
    scene.follow("web", vec![route(Some("ns"), rules)]);
}

#[tokio::test]
async fn consumer_routes_cannot_forge_claims() {
    let scene = Scene::new().await;
    scene.world.publish(tokens("web"));
    let names = [
        "x-user", "x_user", "x-token", "x_token", "cookie", "x-other",
    ];
    let forged = HttpFilter::RequestHeaders(HeaderChanges {
        set: names.map(|name| (name.into(), "forged".into())).to_vec(),
        ..HeaderChanges::default()
    });
    of_clients(&scene, vec![rule(prefix("/"), vec![forged], to("web"))]);
    let mut web = scene.web;
    let request = "GET / HTTP/1.1\r\nHost: web\r\nCookie: a=b\r\nConnection: close\r\n\r\n";
    let response = scene.client.say(VIP, HTTP1, request.as_bytes()).await;
    assert_eq!(response.statuses(), [200]);
    let got = format!("{:?}", web.received());
    assert_eq!(got.matches("forged").count(), 1, "{got}");
    assert!(
        got.contains("x-other: forged") && got.contains("cookie: a=b"),
        "{got}"
    );
}

#[tokio::test]
async fn limits_count_the_forwarded_form_of_consumer_routes() {
    let mut scene = Scene::new().await;
    scene.world.publish(limit("web", "/limited", 2));
    let rules = vec![
        rule(prefix("/x"), vec![full("/limited")], to("web")),
        rule(prefix("/limited"), vec![set("x-a", "b")], to("web")),
        rule(prefix("/back"), vec![full("/limited")], to("back")),
    ];
    of_clients(&scene, rules);
    // Counted once each, whether the limit matches the received form, the forwarded form, or both.
    for (path, expected) in [
        ("/x", "web /limited web"),
        ("/limited", "web /limited web"),
        ("/x", "429"),
        ("/limited", "429"),
        ("/back", "back /limited web"),
    ] {
        assert_eq!(scene.ask(path, "web").await, expected, "{path}");
    }
    scene.world.publish(limit("back", "/limited", 1));
    assert_eq!(scene.ask("/back", "web").await, "back /limited web");
    assert_eq!(scene.ask("/back", "web").await, "429");
}

#[tokio::test]
async fn consumer_mirrors_bypass_no_limits_tokens_or_plugins() {
    const FAMILY: &str = "ambit_requests_mirrored_total";
    let mut scene = Scene::new().await;
    scene.world.publish(limit("web", "/limited", 2));
    let rules = |name: &str| vec![rule(prefix("/"), vec![mirror(name)], to("web"))];
    of_clients(&scene, rules("web"));
    let denied = |scene: &Scene| scene.world.count(FAMILY, &["outcome=\"denied\""]);
    let answered = |scene: &Scene| scene.world.count(FAMILY, &["outcome=\"answered\""]);
    let get = "GET /limited HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    let response = scene.client.say(VIP, HTTP1, get.as_bytes()).await;
    assert_eq!(response.statuses(), [200]);
    until("the copy is sent", || answered(&scene) == 1).await;
    // The mirrored request has used up the second one.
    let response = scene.client.say(VIP, HTTP1, get.as_bytes()).await;
    assert_eq!(response.statuses(), [429]);
    assert_eq!(scene.got().len(), 2);
    for (attached, nth) in [(tokens("back"), 1), (plugin("web"), 2)] {
        scene.world.publish(attached);
        of_clients(&scene, rules(if nth == 1 { "back" } else { "web" }));
        assert_eq!(scene.ask("/other", "web").await, "web /other web");
        until("the copy is refused", || denied(&scene) == nth).await;
        assert_eq!(scene.got(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn consumer_routes_bypass_no_tokens_or_plugins() {
    let mut scene = Scene::new().await;
    let rules = vec![
        rule(prefix("/back"), Vec::new(), to("back")),
        rule(prefix("/plain"), Vec::new(), to("web")),
        rule(prefix("/changed"), vec![full("/other")], to("web")),
        rule(prefix("/same"), vec![set("x-a", "b")], to("web")),
    ];
    let back = ("/back", "back /back web");
    let own = [
        ("/plain", "web /plain web"),
        ("/changed", "web /other web"),
        ("/same", "web /same web"),
    ];
    of_clients(&scene, rules.clone());
    for (path, expected) in own.into_iter().chain([back]) {
        assert_eq!(scene.ask(path, "web").await, expected, "{path}");
    }
    for (attached, gone) in [
        (
            tokens("back"),
            WaypointUpdate::Removed(WaypointRecordType::Authentication, record("back")),
        ),
        (
            plugin("back"),
            WaypointUpdate::Removed(WaypointRecordType::Extension, record("back")),
        ),
    ] {
        scene.world.publish(attached);
        assert_eq!(scene.ask("/back", "web").await, "403");
        for (path, expected) in own {
            assert_eq!(scene.ask(path, "web").await, expected, "{path}");
        }
        scene.world.publish(gone);
    }
    scene.world.publish(plugin("web"));
    for (path, expected) in [
        ("/plain", "web /plain web"),
        ("/changed", "403"),
        ("/same", "403"),
        back,
    ] {
        assert_eq!(scene.ask(path, "web").await, expected, "{path}");
    }
    // The owner of the Service may change and forward requests that were admitted in their received form.
    scene.world.publish(plugin("back"));
    scene.follow("web", vec![route(None, rules)]);
    for (path, expected) in own.into_iter().chain([back]) {
        assert_eq!(scene.ask(path, "web").await, expected, "{path}");
    }
}

#[tokio::test]
async fn consumer_stream_routes_bypass_no_tokens_or_plugins() {
    let scene = Scene::new().await;
    let routes = |clients: Option<&str>| StreamRoute {
        name: route(clients, Vec::new()).name,
        backends: vec![StreamBackend {
            service: Ok(service("back")),
            port: HTTP1,
            weight: 1,
        }],
        clients: clients.map(Into::into),
        ..StreamRoute::default()
    };
    let cases = [
        (
            limit("back", "/x", 1),
            WaypointUpdate::Removed(WaypointRecordType::RateLimit, record("back")),
        ),
        (
            tokens("back"),
            WaypointUpdate::Removed(WaypointRecordType::Authentication, record("back")),
        ),
        (
            plugin("back"),
            WaypointUpdate::Removed(WaypointRecordType::Extension, record("back")),
        ),
    ];
    for (clients, is_let) in [(None, true), (Some("ns"), false)] {
        scene.publish(WaypointService {
            service: service("web"),
            tcp_routes: vec![routes(clients)],
            ..WaypointService::default()
        });
        let opened = scene.client.try_tunnel(VIP, TCP).await;
        assert!(opened.is_ok(), "{clients:?}");
        for (attached, gone) in &cases {
            scene.world.publish(attached.clone());
            let opened = scene.client.try_tunnel(VIP, TCP).await;
            assert_eq!(opened.is_ok(), is_let, "{clients:?} {attached:?}");
            scene.world.publish(gone.clone());
        }
    }
}
