//! Tests that no consumer route bypasses the tokens, claims, limits and plugins of the Service to which a request is
//! sent.

use std::time::Duration;

use ambit_model::{
    Authentication, HeaderChanges, HttpFilter, HttpMirror, HttpPathMatch, HttpRouteMatch,
    HttpRouteRule, JwtKeys, JwtRule, LocalLimit, PathChange, PolicyKey, RateLimit, StreamBackend,
    StreamRoute, WaypointExtension, WaypointRecord, WaypointRecordType, WaypointService,
};
use ambit_testkit::wait_until;
use ambit_xds::WaypointUpdate;

use crate::{
    fixture::{HTTP1, TCP, record_name},
    routes::{Scene, VIP, backend, prefix, rewrite, route, rule, service},
};

const KEYS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

fn jwt_rule(of: &str) -> WaypointUpdate {
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
    WaypointUpdate::Upserted(record_name(of), WaypointRecord::from(authentication))
}

/// Builds a RateLimit record for the service `of`, which limits requests to one path.
fn rate_limit(of: &str, path: &str, requests: u32) -> WaypointUpdate {
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
    WaypointUpdate::Upserted(record_name(of), WaypointRecord::from(object))
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
    WaypointUpdate::Upserted(record_name(of), WaypointRecord::from(extension))
}

fn replace_path(path: &str) -> HttpFilter {
    rewrite(None, PathChange::Full(path.into()))
}

fn set_header(name: &str, value: &str) -> HttpFilter {
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

fn publish_consumer_route(scene: &Scene, rules: Vec<HttpRouteRule>) {
    scene.publish_routes("web", vec![route(Some("ns"), rules)]);
}

#[tokio::test]
async fn consumer_routes_cannot_forge_claims() {
    let scene = Scene::new().await;
    scene.world.publish(jwt_rule("web"));
    let names = [
        "x-user", "x_user", "x-token", "x_token", "cookie", "x-other",
    ];
    let forged = HttpFilter::RequestHeaders(HeaderChanges {
        set: names.map(|name| (name.into(), "forged".into())).to_vec(),
        ..HeaderChanges::default()
    });
    publish_consumer_route(
        &scene,
        vec![rule(prefix("/"), vec![forged], backend("web"))],
    );
    let mut web = scene.web;
    let request = "GET / HTTP/1.1\r\nHost: web\r\nCookie: a=b\r\nConnection: close\r\n\r\n";
    let response = scene
        .client
        .send_bytes(VIP, HTTP1, request.as_bytes())
        .await;
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
    scene.world.publish(rate_limit("web", "/limited", 2));
    let rules = vec![
        rule(prefix("/x"), vec![replace_path("/limited")], backend("web")),
        rule(
            prefix("/limited"),
            vec![set_header("x-a", "b")],
            backend("web"),
        ),
        rule(
            prefix("/back"),
            vec![replace_path("/limited")],
            backend("back"),
        ),
    ];
    publish_consumer_route(&scene, rules);
    // Counted once each, whether the limit matches the received form, the forwarded form, or both.
    for (path, expected) in [
        ("/x", "web /limited web"),
        ("/limited", "web /limited web"),
        ("/x", "429"),
        ("/limited", "429"),
        ("/back", "back /limited web"),
    ] {
        assert_eq!(
            scene.describe_request(path, "web").await,
            expected,
            "{path}"
        );
    }
    scene.world.publish(rate_limit("back", "/limited", 1));
    assert_eq!(
        scene.describe_request("/back", "web").await,
        "back /limited web"
    );
    assert_eq!(scene.describe_request("/back", "web").await, "429");
}

#[tokio::test]
async fn consumer_mirrors_bypass_no_limits_tokens_or_plugins() {
    const MIRRORED_REQUESTS: &str = "ambit_requests_mirrored_total";
    let mut scene = Scene::new().await;
    scene.world.publish(rate_limit("web", "/limited", 2));
    let rules = |name: &str| vec![rule(prefix("/"), vec![mirror(name)], backend("web"))];
    publish_consumer_route(&scene, rules("web"));
    let denied = |scene: &Scene| {
        scene
            .world
            .metric_sum(MIRRORED_REQUESTS, &["outcome=\"denied\""])
    };
    let answered = |scene: &Scene| {
        scene
            .world
            .metric_sum(MIRRORED_REQUESTS, &["outcome=\"answered\""])
    };
    let get = "GET /limited HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    let response = scene.client.send_bytes(VIP, HTTP1, get.as_bytes()).await;
    assert_eq!(response.statuses(), [200]);
    wait_until("the copy is sent", || answered(&scene) == 1).await;
    // The mirrored request has used up the second one.
    let response = scene.client.send_bytes(VIP, HTTP1, get.as_bytes()).await;
    assert_eq!(response.statuses(), [429]);
    assert_eq!(scene.received_requests().len(), 2);
    for (attached, nth) in [(jwt_rule("back"), 1), (plugin("web"), 2)] {
        scene.world.publish(attached);
        publish_consumer_route(&scene, rules(if nth == 1 { "back" } else { "web" }));
        assert_eq!(
            scene.describe_request("/other", "web").await,
            "web /other web"
        );
        wait_until("the copy is refused", || denied(&scene) == nth).await;
        assert_eq!(scene.received_requests(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn consumer_routes_bypass_no_tokens_or_plugins() {
    let mut scene = Scene::new().await;
    let rules = vec![
        rule(prefix("/back"), Vec::new(), backend("back")),
        rule(prefix("/plain"), Vec::new(), backend("web")),
        rule(
            prefix("/changed"),
            vec![replace_path("/other")],
            backend("web"),
        ),
        rule(
            prefix("/same"),
            vec![set_header("x-a", "b")],
            backend("web"),
        ),
    ];
    let back = ("/back", "back /back web");
    let own = [
        ("/plain", "web /plain web"),
        ("/changed", "web /other web"),
        ("/same", "web /same web"),
    ];
    publish_consumer_route(&scene, rules.clone());
    for (path, expected) in own.into_iter().chain([back]) {
        assert_eq!(
            scene.describe_request(path, "web").await,
            expected,
            "{path}"
        );
    }
    for (attached, gone) in [
        (
            jwt_rule("back"),
            WaypointUpdate::Removed(WaypointRecordType::Authentication, record_name("back")),
        ),
        (
            plugin("back"),
            WaypointUpdate::Removed(WaypointRecordType::Extension, record_name("back")),
        ),
    ] {
        scene.world.publish(attached);
        assert_eq!(scene.describe_request("/back", "web").await, "403");
        for (path, expected) in own {
            assert_eq!(
                scene.describe_request(path, "web").await,
                expected,
                "{path}"
            );
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
        assert_eq!(
            scene.describe_request(path, "web").await,
            expected,
            "{path}"
        );
    }
    // The owner of the Service may change and forward requests that were admitted in their received form.
    scene.world.publish(plugin("back"));
    scene.publish_routes("web", vec![route(None, rules)]);
    for (path, expected) in own.into_iter().chain([back]) {
        assert_eq!(
            scene.describe_request(path, "web").await,
            expected,
            "{path}"
        );
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
            rate_limit("back", "/x", 1),
            WaypointUpdate::Removed(WaypointRecordType::RateLimit, record_name("back")),
        ),
        (
            jwt_rule("back"),
            WaypointUpdate::Removed(WaypointRecordType::Authentication, record_name("back")),
        ),
        (
            plugin("back"),
            WaypointUpdate::Removed(WaypointRecordType::Extension, record_name("back")),
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
