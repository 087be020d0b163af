//! Tests of routes at a waypoint, from manifests to the requests that the application receives.

use std::{net::SocketAddr, time::Duration};

use ambit_system_tests::{Mesh, idle_pod, wait_until, wait_until_via_waypoint, with_waypoint};
use ambit_testkit::wait_until_within;

const BANK: &str = "
---
apiVersion: v1
kind: Namespace
metadata: {name: bank, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Pod
metadata: {name: mirror, namespace: bank, labels: {app: mirror}}
spec:
  nodeName: node-1
  serviceAccountName: mirror
  containers:
  - name: web
    image: none
    command: [$LAB_TOOL, reflect]
    readinessProbe: {tcpSocket: {port: 8080}}
---
apiVersion: v1
kind: Service
metadata: {name: mirror, namespace: bank}
spec:
  selector: {app: mirror}
  ports: [{name: http, port: 80, targetPort: 8080}]
";

const ROUTES: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: server, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: server, port: 80}]
  rules:
  - matches: [{path: {value: /old}}]
    filters:
    - type: URLRewrite
      urlRewrite: {hostname: other.example, path: {type: ReplacePrefixMatch, replacePrefixMatch: /admin}}
    - type: RequestHeaderModifier
      requestHeaderModifier:
        set: [{name: X-Set, value: by-route}]
        add: [{name: X-Add, value: more}]
        remove: [X-Gone]
    - type: ResponseHeaderModifier
      responseHeaderModifier: {set: [{name: Content-Type, value: text/x-rule}]}
    backendRefs:
    - name: mirror
      namespace: bank
      port: 80
      filters:
      - type: RequestHeaderModifier
        requestHeaderModifier: {set: [{name: X-Set, value: by-backend}]}
      - type: ResponseHeaderModifier
        responseHeaderModifier: {add: [{name: X-Backend, value: mirror}]}
  - matches: [{path: {value: /moved}}]
    filters:
    - type: RequestRedirect
      requestRedirect: {scheme: https, statusCode: 301, path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}}
  - matches: [{path: {value: /silent}}]
    timeouts: {request: 300ms}
    backendRefs: [{name: mirror, namespace: bank, port: 80}]
  - matches: [{path: {value: /silent/try}}]
    timeouts: {backendRequest: 300ms}
    backendRefs: [{name: mirror, namespace: bank, port: 80}]
  - matches: [{path: {value: /both}}]
    filters:
    - {type: RequestRedirect, requestRedirect: {scheme: https}}
    - {type: URLRewrite, urlRewrite: {hostname: other.example}}
";

const NO_ADMIN: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules:
  - to: [{operation: {paths: [/admin, /admin/*]}}]
";

const GRANT: &str = "
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: shop, namespace: bank}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]
  to: [{group: '', kind: Service, name: mirror}]
";

const BANK_ROUTES: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: own, namespace: bank}
spec:
  parentRefs: [{group: '', kind: Service, name: server, namespace: shop}]
  rules:
  - matches: [{path: {value: /own}}]
    backendRefs: [{name: mirror, port: 80}]
  - matches: [{path: {value: /climb}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /admin}}}]
    backendRefs: [{name: server, namespace: shop, port: 80}]
";

/// Starts a mesh in which requests to the service `server`, also from another namespace, pass a waypoint; returns the
/// mesh and the service's address.
fn with_bank() -> (Mesh, SocketAddr) {
    let client = idle_pod("bank/client", "node-1", "app: client");
    let (mesh, waypoint) = with_waypoint(&format!("{BANK}{client}"));
    wait_until_via_waypoint(&mesh, &waypoint, "bank/client", "http://server.shop/");
    let address = mesh.service_address("server.shop.svc", 80);
    (mesh, address)
}

/// Sends a GET for a path; returns the response with its head in lower case.
fn ask(mesh: &Mesh, client: &str, address: SocketAddr, path: &str) -> String {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: server\r\nX-Set: a\r\nX-Add: one\r\nX-Gone: a\r\nConnection: close\r\n\r\n"
    );
    let mut connection = mesh.dial(client, address).unwrap();
    let answer = connection.send_raw(request.as_bytes(), |_| false);
    answer.unwrap_or_else(|error| format!("failed: {error}"))
}

/// Sends requests for a path until the response has this status, and returns the response.
fn wait_for_status(
    mesh: &Mesh,
    client: &str,
    address: SocketAddr,
    path: &str,
    status: &str,
) -> String {
    let mut answer = String::new();
    wait_until(&format!("{path} is answered with {status}"), || {
        answer = ask(mesh, client, address, path);
        answer.starts_with(&format!("HTTP/1.1 {status}"))
    });
    answer
}

#[test]
fn routes_change_messages_after_policies_have_decided() {
    let (mesh, address) = with_bank();
    mesh.apply("routes", ROUTES);
    mesh.apply("policy", NO_ADMIN);
    let of =
        |path: &str, status: &str| wait_for_status(&mesh, "shop/client", address, path, status);
    // The namespace has no ReferenceGrant.
    of("/old/x", "500");
    of("/elsewhere", "404");
    of("/both", "500");
    let moved = of("/moved/x?y=1", "301");
    assert!(
        moved.contains("location: https://server/new/x?y=1\r\n"),
        "{moved}"
    );
    mesh.apply("grant", GRANT);
    // Policies match the original request, not the forwarded one.
    of("/admin/x", "403");
    let sent = of("/old/x?y=1", "200");
    let (head, body) = sent.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: text/x-rule"), "{head}");
    assert!(head.contains("x-backend: mirror"), "{head}");
    assert!(body.starts_with("GET /admin/x?y=1 HTTP/1.1\r\n"), "{body}");
    for line in [
        "host: other.example\r\n",
        "x-set: by-backend\r\n",
        "x-add: one\r\n",
        "x-add: more\r\n",
    ] {
        assert!(body.contains(line), "no {line:?} in {body}");
    }
    assert!(!body.contains("x-gone"), "{body}");
    for path in ["/silent", "/silent/try"] {
        let late = of(path, "504");
        assert!(late.ends_with("upstream request timeout"), "{late}");
    }
    mesh.remove("grant");
    of("/old/x", "500");
}

#[test]
fn clients_route_applies_only_to_clients_of_its_namespace() {
    let (mesh, address) = with_bank();
    mesh.apply("own", BANK_ROUTES);
    let own = wait_for_status(&mesh, "bank/client", address, "/none", "404");
    assert!(!own.contains("plain-marker"), "{own}");
    let own = wait_for_status(&mesh, "bank/client", address, "/own", "200");
    assert!(own.contains("GET /own HTTP/1.1"), "{own}");
    let others = wait_for_status(&mesh, "shop/client", address, "/own", "200");
    assert!(others.contains("plain-marker"), "{others}");
    // Its clients cannot reach destinations by it that they could not reach themselves.
    wait_for_status(&mesh, "bank/client", address, "/climb", "200");
    mesh.apply("policy", NO_ADMIN);
    wait_for_status(&mesh, "bank/client", address, "/climb", "403");
    wait_for_status(&mesh, "shop/client", address, "/climb", "200");
    mesh.remove("own");
    let again = wait_for_status(&mesh, "bank/client", address, "/none", "200");
    assert!(again.contains("plain-marker"), "{again}");
}

/// Returns the manifest of a route of the service with one rule.
fn route_with_rule(version: &str, rule: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/{version}
kind: HTTPRoute
metadata: {{name: server, namespace: shop}}
spec:
  parentRefs: [{{group: '', kind: Service, name: server}}]
  rules: [{rule}]
"
    )
}

#[test]
fn oversized_or_later_records_keep_the_last_good_route() {
    let (mesh, address) = with_bank();
    let routed_to = |to: &str| {
        format!(
            "{{filters: [{{type: RequestRedirect, requestRedirect: {{path: {{type: ReplaceFullPath, replaceFullPath: /{to}}}}}}}]}}"
        )
    };
    let until_led = |to: &str| {
        let location = format!("location: http://server/{to}\r\n");
        wait_until(&format!("requests are routed to {to}"), || {
            ask(&mesh, "shop/client", address, "/x").contains(&location)
        });
    };
    let until_named = |what: &str| {
        wait_until(&format!("{what:?} is named"), || mesh.logs().contains(what));
        until_led("good");
    };
    mesh.apply("route", &route_with_rule("v1", &routed_to("good")));
    until_led("good");
    let many = "{path: {value: /x}}, ".repeat(20_000);
    mesh.apply(
        "route",
        &route_with_rule("v1", &format!("{{matches: [{many}]}}")),
    );
    until_named("1 rules with 20000 matches are too many");
    let later = route_with_rule("v2", "{matches: {all: [path, /x]}}");
    mesh.apply("route", &later);
    until_named("rules[0].matches");
    // A rule with an unknown field is not applied without the field.
    let unknown = format!("{{onlyOnSundays: true, {}", &routed_to("sunday")[1..]);
    mesh.apply("route", &route_with_rule("v1", &unknown));
    wait_for_status(&mesh, "shop/client", address, "/x", "500");
    wait_until("it is named", || mesh.logs().contains("onlyOnSundays"));
    mesh.apply("route", &route_with_rule("v2", &routed_to("later")));
    until_led("later");
}

/// Returns the manifest of a route that redirects one path to `to`.
fn redirection(number: usize, to: &str) -> String {
    format!(
        "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: route-{number}, namespace: shop}}
spec:
  parentRefs: [{{group: '', kind: Service, name: server}}]
  rules:
  - matches: [{{path: {{type: Exact, value: /route-{number}}}}}]
    filters:
    - type: RequestRedirect
      requestRedirect: {{path: {{type: ReplaceFullPath, replaceFullPath: /{to}-{number}}}}}
"
    )
}

#[test]
fn thousand_routes_of_one_service_all_apply() {
    const LAST: usize = 999;
    /// Unoptimised programs take a minute where other suites run beside.
    const APPLY_TIMEOUT: Duration = Duration::from_secs(180);
    let (mesh, address) = with_bank();
    let routes = |changed: usize| -> String {
        let to = |number| if number == changed { "changed" } else { "to" };
        (0..=LAST)
            .map(|number| redirection(number, to(number)))
            .collect()
    };
    let routed_to = |number: usize, to: &str| {
        let path = format!("/route-{number}");
        let location = format!("location: http://server/{to}-{number}\r\n");
        let what = format!("{path} is routed to {to}-{number}");
        wait_until_within(APPLY_TIMEOUT, &what, || {
            ask(&mesh, "shop/client", address, &path).contains(&location)
        });
    };
    mesh.apply("thousand", &routes(LAST + 1));
    routed_to(LAST, "to");
    // One route is in force, so all are.
    for number in (0..LAST).step_by(37) {
        let answer = ask(&mesh, "shop/client", address, &format!("/route-{number}"));
        let location = format!("location: http://server/to-{number}\r\n");
        assert!(answer.contains(&location), "route-{number}: {answer}");
    }
    wait_for_status(&mesh, "shop/client", address, "/route-1000", "404");
    mesh.apply("thousand", &routes(500));
    routed_to(500, "changed");
    routed_to(LAST, "to");
    mesh.remove("thousand");
    wait_for_status(&mesh, "shop/client", address, "/route-500", "200");
}
