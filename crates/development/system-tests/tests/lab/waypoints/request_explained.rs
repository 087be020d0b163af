//! Tests that `ambit explain` predicts the results of requests: each request is explained and sent, and both results
//! are compared, with a waypoint and without, captured and not.

use std::net::SocketAddr;

use ambit_system_tests::{Mesh, with_waypoint};
use serde_json::Value;

/// Tokens signed by another JWT implementation, with its keys.
const FOREIGN_TOKENS: &str = include_str!("../../../../../dataplane/jwt/src/tests/pyjwt.json");

fn pod(namespace: &str, name: &str) -> String {
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}
spec:
  nodeName: node-2
  serviceAccountName: {name}
  containers:
  - name: web
    image: none
    command: [$LAB_TOOL, serve, --port, \"8080\", --name, {name}]
    readinessProbe: {{tcpSocket: {{port: 8080}}}}
{}",
        service(namespace, name, name)
    )
}

fn service(namespace: &str, name: &str, app: &str) -> String {
    format!(
        "
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{selector: {{app: {app}}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}
"
    )
}

fn policy(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: {name}, namespace: {namespace}}}
spec: {spec}
"
    )
}

/// Routes of the service `api`.
const ROUTES: &str = "
---
apiVersion: ambit.io/v1alpha1
kind: HTTPFault
metadata: {name: aborts, namespace: shop}
spec: {abort: {httpStatus: 418}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: api, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: api}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /go}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: new.example, statusCode: 302}}]
  - matches: [{path: {type: PathPrefix, value: /broken}}]
    filters: [{type: ExtensionRef, extensionRef: {group: ambit.io, kind: HTTPFault, name: aborts}}]
    backendRefs: [{name: api, port: 80}]
  - matches: [{path: {type: PathPrefix, value: /v}, headers: [{name: x-version, value: '2'}]}]
    backendRefs: [{name: server, port: 80}]
  - matches: [{path: {type: PathPrefix, value: /v}}]
    backendRefs: [{name: api, port: 80}]
  - matches: [{path: {type: PathPrefix, value: /nowhere}}]
    backendRefs: [{name: missing, port: 80}]
";

fn manifests(keys: &Value) -> String {
    let tokens = format!(
        "
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: tokens, namespace: shop}}
spec:
  targetRefs: [{{kind: Service, group: '', name: private}}]
  jwtRules: [{{issuer: https://issuer.example, jwks: '{keys}'}}]
"
    );
    let of = |service: &str, rest: &str| {
        format!("{{targetRefs: [{{kind: Service, group: '', name: {service}}}], {rest}}}")
    };
    let principals = "rules: [{from: [{source: {requestPrincipals: ['*']}}]}]";
    let deletes = "action: DENY, rules: [{to: [{operation: {methods: [DELETE]}}]}]";
    let not_waypoint = "{selector: {matchLabels: {app: closed}}, action: DENY, \
                        rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/waypoint]}}]}]}";
    let not_server = "{action: DENY, rules: [{from: [\
                      {source: {principals: [cluster.local/ns/shop/sa/server]}}, {source: {notNamespaces: [shop]}}]}]}";
    let bank = "
---
apiVersion: v1
kind: Namespace
metadata: {name: bank, labels: {istio.io/dataplane-mode: ambient}}
";
    [
        service("shop", "api", "server"),
        ROUTES.to_owned(),
        pod("shop", "private"),
        tokens,
        policy("shop", "with-token", &of("private", principals)),
        policy("shop", "no-deletes", &of("server", deletes)),
        pod("shop", "closed"),
        policy("shop", "not-from-waypoint", not_waypoint),
        bank.to_owned(),
        pod("bank", "vault"),
        policy("bank", "not-from-server", not_server),
    ]
    .concat()
}

/// Request with its expected result: a response status, or a reset.
struct ExplainedRequest {
    from: &'static str,
    to: String,
    method: &'static str,
    path: &'static str,
    headers: Vec<String>,
    expected: Option<u16>,
}

fn case(
    from: &'static str,
    to: &str,
    request: &'static str,
    expected: Option<u16>,
) -> ExplainedRequest {
    let (method, path) = request.split_once(' ').unwrap();
    ExplainedRequest {
        from,
        to: to.to_owned(),
        method,
        path,
        headers: Vec::new(),
        expected,
    }
}

impl ExplainedRequest {
    fn with_header(mut self, header: &str) -> Self {
        self.headers.push(header.to_owned());
        self
    }

    /// Runs `ambit explain` for the request; returns its report, and its exit code.
    fn explain(&self, mesh: &Mesh) -> (Value, i32) {
        let mut args = vec!["explain", "--from", self.from, "--to", &self.to];
        args.extend(["-X", self.method, "--path", self.path, "-o", "json"]);
        for header in &self.headers {
            args.extend(["-H", header]);
        }
        let output = mesh.ambit(&args);
        let report = serde_json::from_str(&output.stdout);
        let report = report.unwrap_or_else(|error| panic!("{args:?}: {error}: {}", output.stdout));
        (report, output.code)
    }

    /// Sends the request, and returns the actual status; `None` for a reset.
    fn send(&self, mesh: &Mesh) -> Option<u16> {
        let (host, port) = self.to.split_once(':').unwrap_or((&self.to, "80"));
        let port = port.parse().unwrap();
        let address = match host.parse() {
            Ok(ip) => SocketAddr::new(ip, port),
            Err(_) => SocketAddr::new(mesh.service_address(host, 80).ip(), port),
        };
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        if !self
            .headers
            .iter()
            .any(|header| header.starts_with("Host:"))
        {
            head += &format!("Host: {host}\r\n");
        }
        for header in &self.headers {
            head += &format!("{header}\r\n");
        }
        head += "Connection: close\r\n\r\n";
        let mut connection = mesh.dial(self.from, address).ok()?;
        let answer = connection
            .send_raw(head.as_bytes(), |text| text.contains("\r\n"))
            .ok()?;
        answer.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
    }
}

/// Returns the status that an explanation predicts for an application that responds with 200;
/// `None` for a reset.
fn predicted_status(report: &Value) -> Option<u16> {
    let answer = &report["answer"];
    match answer["kind"].as_str().unwrap() {
        "application" => Some(200),
        "response" => Some(answer["status"].as_u64().unwrap().try_into().unwrap()),
        "reset" => None,
        other => panic!("{other}: {report:#}"),
    }
}

#[test]
fn explanations_of_requests_match_their_results() {
    let made: Value = serde_json::from_str(FOREIGN_TOKENS).unwrap();
    let (mesh, _) = with_waypoint(&manifests(&made["key_set"]));
    let bearer = format!(
        "Authorization: Bearer {}",
        made["tokens"]["RS256"].as_str().unwrap()
    );
    let at = |pod: &str| format!("{}:8080", mesh.ip(pod));
    let (server, vault, legacy) = (at("shop/server"), at("bank/vault"), at("legacy/server"));
    let cases = [
        case("shop/client", "server.shop", "GET /", Some(200)),
        case("shop/client", "server.shop", "DELETE /", Some(403)),
        case("shop/client", "server.shop", "GET /", Some(400)).with_header("Host: a@b"),
        case("shop/client", "server.shop:81", "GET /", None),
        case("shop/client", &server, "GET /", Some(200)),
        case("shop/client", &server, "DELETE /", Some(403)),
        case("shop/client", "api.shop", "GET /go/1", Some(302)),
        case("shop/client", "api.shop", "GET /broken", Some(418)),
        case("shop/client", "api.shop", "GET /v", Some(200)),
        case("shop/client", "api.shop", "GET /v", Some(200)).with_header("X-Version: 2"),
        case("shop/client", "api.shop", "DELETE /v", Some(403)).with_header("X-Version: 2"),
        case("shop/client", "api.shop", "GET /none", Some(404)),
        case("shop/client", "api.shop", "GET /nowhere", Some(500)),
        case("shop/client", "private.shop", "GET /", Some(403)),
        case("shop/client", "private.shop", "GET /", Some(200)).with_header(&bearer),
        case("shop/client", "private.shop", "GET /", Some(401))
            .with_header("Authorization: Bearer a.b.c"),
        case("shop/client", "closed.shop", "GET /", Some(503)),
        // Plaintext, which the server's node proxy redirects to the waypoint.
        case("legacy/client", &server, "GET /", Some(200)),
        case("legacy/client", &server, "DELETE /", Some(403)),
        // Without a waypoint.
        case("shop/client", "vault.bank", "GET /", Some(200)),
        case("shop/server", "vault.bank", "GET /", None),
        case("legacy/client", &vault, "GET /", None),
        case("shop/client", &legacy, "GET /", Some(200)),
        case("legacy/client", &legacy, "GET /", Some(200)),
    ];
    for case in cases {
        let what = format!("{} {} {} {}", case.from, case.method, case.to, case.path);
        let (report, code) = case.explain(&mesh);
        let got = case.send(&mesh);
        assert_eq!(got, case.expected, "{what}: {report:#}");
        assert_eq!(predicted_status(&report), got, "{what}: {report:#}");
        let is_refused = got.is_none_or(|status| status >= 400);
        assert_eq!(
            (code, report["allowed"].as_bool()),
            (i32::from(is_refused), Some(!is_refused))
        );
        assert!(
            !report
                .to_string()
                .contains(&bearer["Authorization: Bearer ".len()..])
        );
    }
    assert_unknown_names_rejected(&mesh);
}

fn assert_unknown_names_rejected(mesh: &Mesh) {
    let explain = |from: &str, to: &str| mesh.ambit(&["explain", "--from", from, "--to", to]);
    let output = explain("shop/client", "nothing.shop");
    assert_eq!(output.code, 1);
    assert!(
        output.stdout.contains("no name \"nothing.shop\""),
        "{}",
        output.stdout
    );
    assert!(!mesh.get("shop/client", "http://nothing.shop/").succeeded());
    let output = explain("shop/nobody", "server.shop");
    assert_eq!((output.code, output.stdout.as_str()), (3, ""));
}
