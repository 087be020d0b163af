//! Tests of JWTs at a waypoint, from manifests to the requests that an application receives: accepted issuers, claims
//! in policies, rotation of keys, and failures of the key server.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use ambit_system_tests::{
    LogSource, Mesh, RecordedHeads, answer_ok, is_complete_response, options, read_head,
    wait_until, with_waypoint_options,
};
use serde_json::{Value, json};

/// Tokens signed by another JWT implementation, with its keys.
const FOREIGN_TOKENS: &str = include_str!("../../../../dataplane/jwt/src/tests/pyjwt.json");

const APP: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}]
";

/// CUSTOM policy whose provider does not exist, so that everything is denied.
const CUSTOM_POLICY: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: asking, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: app}]
  action: CUSTOM
  provider: {name: missing}
  rules: [{to: [{operation: {paths: [/open*]}}]}]
";

/// Service in the namespace `legacy` of the pod that serves key sets, and a grant for RequestAuthentications of `shop`.
const GRANT: &str = "---
apiVersion: v1
kind: Service
metadata: {name: keys, namespace: legacy}
spec: {selector: {app: server}, ports: [{port: 8099}]}
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: keys, namespace: legacy}
spec:
  from: [{group: security.istio.io, kind: RequestAuthentication, namespace: shop}]
  to: [{group: '', kind: Service}]
";

fn objects(keys: &str) -> String {
    format!(
        "{GRANT}---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: tokens, namespace: shop}}
spec:
  targetRefs: [{{kind: Service, name: app}}]
  jwtRules:
  - issuer: https://issuer.example
    audiences: [shop]
    jwksUri: {keys}
    timeout: 1s
    outputClaimToHeaders: [{{header: x-user, claim: sub}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: private, namespace: shop}}
spec:
  targetRefs: [{{kind: Service, name: app}}]
  rules:
  - to: [{{operation: {{paths: [/open*]}}}}]
  - to: [{{operation: {{paths: [/private*]}}}}]
    from: [{{source: {{requestPrincipals: ['https://issuer.example/alice']}}}}]
    when: [{{key: 'request.auth.claims[groups]', values: [ops]}}]
  - to: [{{operation: {{paths: [/others*]}}}}]
    from: [{{source: {{requestPrincipals: ['https://issuer.example/bob']}}}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: not-for-developers, namespace: shop}}
spec:
  targetRefs: [{{kind: Service, name: app}}]
  action: DENY
  rules:
  - to: [{{operation: {{paths: [/open/strict]}}}}]
    when: [{{key: 'request.auth.claims[groups]', values: [dev]}}]
"
    )
}

/// Server of key sets (JWKS) with its current response, and the number of requests.
#[derive(Clone)]
struct KeyServer {
    behavior: Arc<Mutex<KeyServerBehavior>>,
    request_count: Arc<AtomicUsize>,
}

#[derive(Clone)]
enum KeyServerBehavior {
    Keys(String),
    EmptyResponse,
    NoResponse,
}

impl KeyServer {
    fn serve(mesh: &Mesh, keys: &str) -> (Self, SocketAddr) {
        let server = Self {
            behavior: Arc::new(Mutex::new(KeyServerBehavior::Keys(keys.to_owned()))),
            request_count: Arc::default(),
        };
        let of = server.clone();
        let address = mesh.serve_connections("legacy/server", 8099, move |mut stream| {
            let Some(head) = read_head(&mut stream)? else {
                return Ok(());
            };
            of.request_count.fetch_add(1, SeqCst);
            let answers = of.behavior.lock().unwrap().clone();
            match answers {
                KeyServerBehavior::Keys(keys) if head.starts_with("GET /keys ") => {
                    answer_ok(&mut stream, &keys)
                }
                KeyServerBehavior::Keys(_) => {
                    write!(stream, "HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")
                }
                KeyServerBehavior::EmptyResponse => Ok(()),
                KeyServerBehavior::NoResponse => loop {
                    thread::park();
                },
            }
        });
        (server, address)
    }

    fn set_behavior(&self, answers: KeyServerBehavior) {
        *self.behavior.lock().unwrap() = answers;
    }

    /// Waits until the key server has received two more requests. By the second request, the waypoint has processed the
    /// result of the first.
    fn wait_until_requested(&self) {
        let before = self.request_count.load(SeqCst);
        wait_until("the key server is asked", || {
            self.request_count.load(SeqCst) > before + 1
        });
    }
}

struct TokenFixture {
    mesh: Mesh,
    address: SocketAddr,
    heads: RecordedHeads,
    server: KeyServer,
    keys: SocketAddr,
    generated_tokens: Value,
}

impl TokenFixture {
    /// Starts a mesh whose key server has only the RS256 key, once the objects are published.
    fn new() -> Self {
        let made: Value = serde_json::from_str(FOREIGN_TOKENS).unwrap();
        let mut options = options();
        options
            .env
            .insert("AMBIT_JWKS_REFRESH_SECONDS".into(), "1".into());
        let (mesh, _) = with_waypoint_options(APP, options);
        let (_, heads) = mesh.serve_heads("shop/server", 8081);
        let (server, keys) = KeyServer::serve(&mesh, &key_set(&made, "rsa"));
        mesh.apply("tokens", &objects(&format!("http://{keys}/keys")));
        let scene = Self {
            address: mesh.service_address("app.shop.svc", 80),
            mesh,
            heads,
            server,
            keys,
            generated_tokens: made,
        };
        let bearer = bearer(&scene.token("RS256"));
        wait_until("tokens are asked for and taken", || {
            scene.status("/private/first", "") == 403
                && scene.status("/private/first", &bearer) == 200
        });
        scene
    }

    fn token(&self, algorithm: &str) -> String {
        self.generated_tokens["tokens"][algorithm]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Sends a request, and returns the response in lower case.
    fn ask(&self, method: &str, target: &str, headers: &str) -> String {
        let request = format!("{method} {target} HTTP/1.1\r\nHost: app\r\n{headers}\r\n");
        let mut connection = self.mesh.dial("shop/client", self.address).unwrap();
        let answer = connection.send_raw(request.as_bytes(), is_complete_response);
        answer.map_or_else(
            |error| format!("failed: {error}"),
            |answer| answer.to_ascii_lowercase(),
        )
    }

    fn status(&self, target: &str, headers: &str) -> u16 {
        let answer = self.ask("GET", target, headers);
        let status = answer
            .strip_prefix("http/1.1 ")
            .and_then(|rest| rest.get(..3));
        status
            .and_then(|status| status.parse().ok())
            .unwrap_or_default()
    }

    /// Returns the access log of the waypoint.
    fn log(&self) -> String {
        let log = LogSource::Pod {
            pod: "shop/waypoint".into(),
            container: None,
        };
        self.mesh.client().log_text(log).unwrap()
    }

    /// Starts a collector of access log records, which records all received bytes.
    fn collector(&self) -> Arc<Mutex<Vec<u8>>> {
        let all = Arc::new(Mutex::new(Vec::new()));
        let of = all.clone();
        self.mesh
            .serve_connections("legacy/server", 4318, move |mut stream| {
                while let Some(head) = read_head(&mut stream)? {
                    let head = head.to_ascii_lowercase();
                    let mut lines = head.lines();
                    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
                    let length = length.and_then(|length| length.parse().ok());
                    let mut body = vec![0; length.unwrap_or(0)];
                    stream.read_exact(&mut body)?;
                    of.lock().unwrap().extend(body);
                    answer_ok(&mut stream, "")?;
                }
                Ok(())
            });
        all
    }

    fn metrics(&self) -> String {
        let url = format!("http://{}:15020/metrics", self.mesh.ip("shop/waypoint"));
        self.mesh.get("legacy/client", &url).body
    }

    /// Returns the head of the request for a target, as the application received it.
    fn request_head(&self, target: &str) -> Option<String> {
        let all = self.heads.recorded();
        all.into_iter()
            .find(|head| head.contains(&format!(" {target} ")))
    }
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// Returns a key set (JWKS) with only the key of that name.
fn key_set(made: &Value, name: &str) -> String {
    let keys = made["key_set"]["keys"].as_array().unwrap().iter();
    let keys: Vec<_> = keys.filter(|key| key["kid"] == name).collect();
    json!({ "keys": keys }).to_string()
}

#[test]
fn only_signed_tokens_are_accepted_and_claims_decide() {
    let scene = TokenFixture::new();
    let token = scene.token("RS256");
    let valid = bearer(&token);
    // Without a token, the request is unauthenticated.
    assert_eq!(scene.status("/open/a", ""), 200);
    assert_eq!(scene.status("/private/a", ""), 403);
    assert_eq!(scene.status("/private/a", &valid), 200);
    assert_eq!(scene.status("/others/a", &valid), 403);
    assert_eq!(scene.status("/open/strict", ""), 200);
    assert_eq!(scene.status("/open/strict", &valid), 403);
    // Applications receive the claim, not the token, and not a client's header.
    assert_eq!(
        scene.status(
            "/private/b",
            &format!("{valid}X-User: root\r\nX_User: root\r\n")
        ),
        200
    );
    let request_head = scene.request_head("/private/b").unwrap();
    assert!(
        request_head.contains("\r\nx-user: alice\r\n"),
        "{request_head}"
    );
    assert!(
        !request_head.contains("root") && !request_head.contains("authorization"),
        "{request_head}"
    );
    assert_eq!(
        scene.status(&format!("/private/c?a=1&access_token={token}&b=2"), ""),
        200
    );
    assert!(scene.request_head("/private/c?a=1&b=2").is_some());
    assert_eq!(scene.status("/open/d", "X-User: root\r\n"), 200);
    assert!(!scene.request_head("/open/d").unwrap().contains("root"));

    let (signed, signature) = token.rsplit_once('.').unwrap();
    let (_, payload) = signed.split_once('.').unwrap();
    let other = scene.token("ES256");
    let forged = format!("{signed}.{}", signature.chars().rev().collect::<String>());
    // `{"alg":"none"}`, and `{"alg":"HS256"}` with the rest of a valid token.
    let none = format!("eyJhbGciOiJub25lIn0.{payload}.");
    let shared = format!("eyJhbGciOiJIUzI1NiJ9.{payload}.{signature}");
    for attack in [
        bearer(&forged),
        bearer(&none),
        bearer(&shared),
        bearer(&other),
        bearer("x"),
        bearer(&format!("{token}.{token}")),
        bearer(&format!("{signed}.")),
        bearer(&format!("{token}, Bearer {token}")),
        format!("{valid}{}", bearer(&other)),
        bearer(&"a".repeat(20_000)),
        bearer(&format!(
            "eyJhbGciOiJSUzI1NiJ9.{}.{signature}",
            "W1tb".repeat(2000)
        )),
    ] {
        let answer = scene.ask("GET", "/open/attack", &attack);
        assert!(
            answer.starts_with("http/1.1 401 "),
            "{answer} {attack:.200}"
        );
        assert!(
            answer.contains("\r\nwww-authenticate: bearer error=\"invalid_token\""),
            "{answer}"
        );
    }
    let twice = format!("/open/attack?access_token={token}&access_token={other}");
    assert_eq!(scene.status(&twice, ""), 401);
    assert_eq!(scene.request_head("/open/attack"), None);
    // A browser's preflight has no token; a request that only looks like one needs a valid token.
    let preflight = "Origin: https://a\r\nAccess-Control-Request-Method: PUT\r\n";
    let answer = scene.ask("OPTIONS", "/open/e", preflight);
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    let answer = scene.ask("OPTIONS", "/open/f", &bearer(&forged));
    assert!(answer.starts_with("http/1.1 401 "), "{answer}");
    // No log has a token.
    let log = scene.log();
    assert!(
        log.contains("/open/attack") && log.contains("jwt_authn_access_denied{"),
        "{log}"
    );
    assert!(!log.contains(signature), "{log}");
}

#[test]
fn tokens_never_reach_logs_labels_or_spans() {
    let scene = TokenFixture::new();
    let token = scene.token("RS256");
    let (signed, _) = token.rsplit_once('.').unwrap();
    let ask = |target: &str, headers: &str, status: u16| {
        assert_eq!(scene.status(target, headers), status, "{target}");
    };
    // Requests with an invalid target, with invalid headers, and with a denial by the provider.
    let query = format!("?a=1&access_token={token}");
    ask(&format!("/early/..;b{query}"), "", 400);
    ask(&format!("/headers{query}"), "Connection: host\r\n", 400);
    scene.mesh.apply("asking", CUSTOM_POLICY);
    wait_until("nobody can be asked", || scene.status("/open/a", "") == 403);
    ask(&format!("/open/b{query}"), "", 403);
    scene.mesh.remove("asking");
    // Headers in configured log formats: of a request that is rejected early, and of one that is
    // forwarded with its token.
    let config = "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - {name: line, envoyFileAccessLog: {path: /dev/stdout, logFormat: {text: \"told %REQ(:PATH)% %REQ(AUTHORIZATION)% %REQ(COOKIE)%\\n\"}}}
    - {name: sink, opentelemetry: {service: sink.legacy.svc.cluster.local, port: 4318, http: {path: /v1/traces}}}
---
apiVersion: v1
kind: Service
metadata: {name: sink, namespace: legacy}
spec: {selector: {app: server}, ports: [{name: http, port: 4318}]}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: lines, namespace: shop}
spec:
  accessLogging: [{providers: [{name: line}]}]
  tracing:
  - providers: [{name: sink}]
    randomSamplingPercentage: 100
    customTags: {as: {header: {name: authorization}}, kept: {header: {name: cookie}}}
  metrics:
  - overrides:
    - match: {metric: REQUEST_COUNT}
      tagOverrides: {asked: {value: request.path}, kept: {value: \"request.headers['cookie']\"}}
";
    let spans = scene.collector();
    scene.mesh.apply("lines", config);
    let forwarding = objects(&format!("http://{}/keys", scene.keys));
    let forwarding = forwarding.replace(
        "    timeout: 1s\n",
        "    timeout: 1s\n    forwardOriginalToken: true\n    fromParams: [access_token]\n    fromCookies: [session]\n    fromHeaders: [{name: Authorization, prefix: 'Bearer '}]\n",
    );
    scene.mesh.apply("tokens", &forwarding);
    let cookie = format!("Cookie: x=1; session={token}\r\n");
    wait_until(
        "tokens are forwarded, and lines as they are configured",
        || {
            scene.status("/private/cookie", &cookie) == 200
                && scene.log().contains("told /private/cookie - x=1\n")
        },
    );
    let valid = bearer(&token);
    ask(&format!("/private/forwarded{query}"), &valid, 200);
    let request_head = format!("/private/forwarded{}", query.to_ascii_lowercase());
    assert!(
        scene.request_head(&request_head).is_some(),
        "the token is not forwarded"
    );
    ask(
        &format!("/early/c/..;b{query}"),
        &format!("{valid}{cookie}"),
        400,
    );
    scene.mesh.apply("asking", CUSTOM_POLICY);
    wait_until("nobody can be asked again", || {
        scene.status("/open/a", "") == 403
    });
    ask("/open/c", &format!("{valid}{cookie}"), 403);
    let all = [
        "/early/..;b?a=1 ",
        "/headers?a=1 ",
        "/open/b?a=1 ",
        "told /private/forwarded?a=1 - -\n",
        "told /early/c/..;b?a=1 - x=1\n",
        "told /open/c - x=1\n",
    ];
    wait_until("all lines are written", || {
        let log = scene.log();
        all.iter().all(|line| log.contains(line))
    });
    assert!(!scene.log().contains(signed), "{}", scene.log());
    let metrics = scene.metrics();
    for label in ["asked=\"/private/forwarded?a=1\"", "kept=\"x=1\""] {
        assert!(metrics.contains(label), "{metrics}");
    }
    assert!(!metrics.contains(signed), "{metrics}");
    let exported = || String::from_utf8_lossy(&spans.lock().unwrap()).into_owned();
    wait_until("spans are exported", || {
        ["/private/forwarded", "/open/c", "x=1"]
            .iter()
            .all(|text| exported().contains(text))
    });
    assert!(!exported().contains(signed));
}

#[test]
fn keys_follow_their_server_and_survive_its_failures() {
    let scene = TokenFixture::new();
    let (first, second) = (bearer(&scene.token("RS256")), bearer(&scene.token("ES256")));
    assert_eq!(scene.status("/private/a", &second), 401);
    let rotated = key_set(&scene.generated_tokens, "p256");
    scene
        .server
        .set_behavior(KeyServerBehavior::Keys(rotated.clone()));
    wait_until("the new key is known", || {
        scene.status("/private/a", &second) == 200
    });
    assert_eq!(scene.status("/private/a", &first), 401);
    for failure in [
        KeyServerBehavior::EmptyResponse,
        KeyServerBehavior::NoResponse,
        KeyServerBehavior::Keys("{}".into()),
    ] {
        scene.server.set_behavior(failure);
        scene.server.wait_until_requested();
        assert_eq!(scene.status("/private/a", &second), 200);
        assert_eq!(scene.status("/private/a", &first), 401);
    }
    // Without any keys, no token is valid, and requests without a token proceed.
    scene.server.set_behavior(KeyServerBehavior::Keys(rotated));
    scene
        .mesh
        .apply("tokens", &objects(&format!("http://{}/none", scene.keys)));
    wait_until("no token is valid", || {
        scene.status("/private/a", &second) == 401
    });
    assert_eq!(scene.status("/open/a", ""), 200);
    scene
        .mesh
        .apply("tokens", &objects(&format!("http://{}/keys", scene.keys)));
    wait_until("the keys are had", || {
        scene.status("/private/a", &second) == 200
    });
}
