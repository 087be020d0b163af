//! Tests of ext_authz providers that respond, hang, fail and disappear; inside and outside of the mesh, reconfigured
//! while the mesh runs, and unknown.

use super::*;

/// Provider in the mesh that only the waypoint may call, except for its port with the received checks.
const GUARDED: &str = "
---
apiVersion: v1
kind: Namespace
metadata: {name: auth, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: guard, namespace: auth}
spec:
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/waypoint]}}]
  - to: [{operation: {ports: ['9002']}}]
";

/// Returns the MeshConfig of an extension provider `decides` of this kind, whose server is in `namespace`, with
/// additional settings.
fn extension_provider(kind: &str, namespace: &str, port: u16, more: &Value) -> Value {
    let mut settings = json!({
        "service": format!("authz.{namespace}.svc.cluster.local"), "port": port, "timeout": "1s",
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        settings[name] = value.clone();
    }
    json!([{"name": "decides", kind: settings}])
}

fn grpc_provider(more: &Value) -> Value {
    extension_provider("envoyExtAuthzGrpc", "legacy", GRPC_PORT, more)
}

impl AuthorizerFixture {
    fn configure(&self, providers: &Value) {
        let config = manifests(&[mesh_config(providers)]);
        self.mesh.apply("config", &config);
    }

    fn app(&self) -> SocketAddr {
        self.mesh.service_address("app.shop.svc", 8081)
    }

    fn wait_for_status(&self, what: &str, request: &Value, status: u16) -> Value {
        let app = self.app();
        let mut answer = Value::Null;
        wait_until(&format!("{what}: {status}"), || {
            answer = self.ask("shop/client", app, request);
            answer["status"] == status
        });
        answer
    }
}

#[test]
fn provider_decides_in_and_outside_the_mesh_by_both_protocols() {
    let objects: Vec<_> = provider_objects("auth")
        .into_iter()
        .chain([custom_policy("app", "decides")])
        .collect();
    let scene = AuthorizerFixture::new(&objects);
    scene.mesh.apply("guarded", GUARDED);
    scene.mesh.wait_until_captured("auth/authz", true);
    let of_http = json!({
        "pathPrefix": "/check", "includeRequestHeadersInCheck": ["x-answer"],
        "headersToUpstreamOnAllow": ["x-user"], "headersToDownstreamOnAllow": ["x-down"],
        "headersToDownstreamOnDeny": ["x-why"],
    });
    let by_grpc = json!({"status": {}, "okResponse": {
        "headers": [{"header": {"key": "x-user", "value": "ann"}}],
        "responseHeadersToAdd": [{"header": {"key": "x-down", "value": "1"}}],
    }});
    let no_by_grpc = json!({"status": {"code": 7}, "deniedResponse": {
        "status": {"code": "Unauthorized"}, "body": "who?",
        "headers": [{"header": {"key": "x-why", "value": "because"}}],
    }});
    let by_http = json!({"status": 200, "headers": [["x-user", "ann"], ["x-down", "1"]]});
    let no_by_http = json!({"status": 401, "body": "who?", "headers": [["x-why", "because"]]});
    for (kind, port, more, yes, no) in [
        (
            "envoyExtAuthzGrpc",
            GRPC_PORT,
            json!({}),
            by_grpc,
            no_by_grpc,
        ),
        ("envoyExtAuthzHttp", HTTP_PORT, of_http, by_http, no_by_http),
    ] {
        let (yes, no) = (decision_header(&yes), decision_header(&no));
        for (namespace, from) in [("legacy", "legacy/client"), ("auth", "shop/client")] {
            let place = format!("{kind} in {namespace}");
            let pod = format!("{namespace}/authz");
            scene.configure(&extension_provider(kind, namespace, port, &more));
            wait_until(&format!("{place} is asked"), || {
                scene.ask("shop/client", scene.app(), &get("/", &[]));
                !scene.take_checks(from, &pod).is_empty()
            });
            let allowed = get("/a?b=1", &[("x-answer", &yes), ("x-user", "mallory")]);
            let response = scene.wait_for_status(&place, &allowed, 200);
            assert_eq!(
                response["heard"]["headers"]["x-user"],
                json!(["ann"]),
                "{place}"
            );
            assert_eq!(response["headers"]["x-down"], json!(["1"]), "{place}");
            let asked = scene.take_checks(from, &pod).pop().unwrap();
            if kind == "envoyExtAuthzGrpc" {
                let attributes = &asked["grpc"]["attributes"];
                let client = "spiffe://cluster.local/ns/shop/sa/client";
                assert_eq!(attributes["source"]["principal"], client, "{place}");
                assert_eq!(attributes["request"]["http"]["path"], "/a?b=1", "{place}");
            } else {
                assert_eq!(asked["http"]["target"], "/check/a?b=1", "{place}");
            }
            let denied = scene.ask("shop/client", scene.app(), &get("/", &[("x-answer", &no)]));
            assert_eq!(
                (
                    &denied["status"],
                    &denied["body"],
                    &denied["headers"]["x-why"]
                ),
                (&json!(401), &json!("who?"), &json!(["because"])),
                "{place}"
            );
        }
    }
    // In the mesh, the provider allows the waypoint's identity to call it.
    let others = GUARDED.replace("sa/waypoint", "sa/other");
    scene.mesh.apply("guarded", &others);
    scene.wait_for_status(
        "the provider does not let the waypoint in",
        &get("/", &[]),
        403,
    );
}

#[test]
fn unreachable_provider_denies_unless_it_fails_open() {
    let objects = [
        custom_policy("app", "decides"),
        mesh_config(&grpc_provider(&json!({"statusOnError": "503"}))),
    ];
    let scene = AuthorizerFixture::new(&[]);
    scene.mesh.apply("policy", &manifests(&objects[..1]));
    // No provider of the name is configured.
    scene.wait_for_status("an unknown provider", &get("/", &[]), 403);
    scene.wait_until_published(&["shop/ask-app", "no provider with the name decides"]);

    scene.mesh.apply("config", &manifests(&objects[1..]));
    scene.wait_for_status("it is known", &get("/", &[]), 200);
    let gone = manifests(&[service(
        "legacy",
        "authz",
        "nobody",
        json!([{"name": "grpc", "port": GRPC_PORT}]),
    )]);
    let hanging = get("/", &[("x-answer", "hang")]);
    let failing = get("/", &[("x-answer", "fail")]);
    let plain = get("/", &[]);
    for (fail_open, status) in [(false, 503), (true, 200)] {
        scene.configure(&grpc_provider(
            &json!({"statusOnError": "503", "failOpen": fail_open}),
        ));
        scene.wait_for_status("it fails", &failing, status);
        scene.wait_for_status("it hangs", &hanging, status);
        let denied = json!({"status": {"code": 16}});
        let denied = get("/", &[("x-answer", &denied.to_string())]);
        scene.wait_for_status("it denies", &denied, 403);
        scene.mesh.apply("gone", &gone);
        if fail_open {
            // A request that it would deny passes, while it is unavailable.
            scene.wait_for_status("it is gone", &denied, 200);
        } else {
            scene.wait_for_status("it is gone", &plain, status);
        }
        scene.mesh.remove("gone");
        scene.wait_for_status("it is back", &denied, 403);
    }

    // Replaced by a provider that denies everything; then an invalid configuration, which changes
    // nothing.
    scene.configure(&extension_provider(
        "envoyExtAuthzGrpc",
        "legacy",
        DENYING_PROVIDER_PORT,
        &json!({}),
    ));
    let response = scene.wait_for_status("another decides", &plain, 401);
    assert_eq!(response["body"], "by the other one");
    scene.configure(&json!([{"name": "decides", "envoyExtAuthzGrpc": {"service": "authz"}}]));
    scene.wait_until_published(&["istio-system/istio", "envoyExtAuthzGrpc.port"]);
    scene.wait_for_status("the last good one counts", &plain, 401);
    scene.configure(&json!([]));
    scene.wait_for_status("it is known no more", &plain, 403);
}

#[test]
fn connections_are_checked_over_grpc_and_refused_over_http() {
    let raw = json!([{"name": "tcp-echo", "port": 9100, "targetPort": 9000}]);
    let objects = [
        service("shop", "raw", "server", raw),
        custom_policy("raw", "decides"),
        mesh_config(&grpc_provider(&json!({}))),
    ];
    let scene = AuthorizerFixture::new(&objects);
    let raw = scene.mesh.service_address("raw.shop.svc", 9100);
    let passes = || {
        let dialled = scene.mesh.dial("shop/client", raw);
        dialled.is_ok_and(|mut echo| echo.exchange_line("ping").is_ok())
    };
    wait_until("connections pass", passes);
    let asked = scene
        .take_checks("legacy/client", "legacy/authz")
        .pop()
        .unwrap();
    let attributes = &asked["grpc"]["attributes"];
    let client = "spiffe://cluster.local/ns/shop/sa/client";
    assert_eq!(attributes["source"]["principal"], client);
    assert!(attributes["request"]["http"].is_null(), "{attributes}");

    let http = |port| extension_provider("envoyExtAuthzHttp", "legacy", port, &json!({}));
    scene.configure(&http(HTTP_PORT));
    wait_until("connections are refused", || !passes());
    scene.wait_until_published(&[
        "shop/ask-raw",
        "connections to port 9100 of Service shop/raw are refused",
    ]);
    assert!(
        scene
            .take_checks("legacy/client", "legacy/authz")
            .iter()
            .all(|one| one["http"].is_null())
    );
    scene.configure(&grpc_provider(&json!({})));
    wait_until("connections pass again", passes);
}
