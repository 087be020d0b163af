//! Tests of mirrors, CORS and retries of routes, from manifests to the requests that applications
//! receive.

use std::{io::Write as _, net::SocketAddr, thread};

use ambit_system_tests::{
    Mesh, RecordedRequests, is_complete_response, read_head, wait_until, with_waypoint,
};

const MANIFESTS: &str = "
---
apiVersion: v1
kind: Namespace
metadata: {name: bank, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Pod
metadata: {name: shadow, namespace: bank, labels: {app: shadow}}
spec:
  nodeName: node-1
  serviceAccountName: shadow
  containers:
  - {name: main, image: none, command: [$LAB_TOOL, sleep]}
---
apiVersion: v1
kind: Service
metadata: {name: shadow, namespace: bank}
spec:
  selector: {app: shadow}
  ports: [{name: http, port: 80, targetPort: 8090}]
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: shop, namespace: bank}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]
  to: [{group: '', kind: Service, name: shadow}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-secrets, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules:
  - to: [{operation: {paths: [/copied/secret, /cors/secret]}}]
";

const ROUTES: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: server, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: server, sectionName: http}]
  rules:
  - name: copied
    matches: [{path: {value: /copied}}]
    filters:
    - {type: RequestMirror, requestMirror: {backendRef: {name: shadow, namespace: bank, port: 80}}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: shadow, namespace: bank, port: 80}, percent: 0}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: gone, port: 80}}}
    - {type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /sent}}}
    backendRefs: [{name: app, port: 80}]
  - matches: [{path: {value: /cors}}]
    filters:
    - type: CORS
      cors:
        allowOrigins: ['https://*.example']
        allowCredentials: true
        allowMethods: [PUT]
        allowHeaders: [x-a]
        maxAge: 60
    backendRefs: [{name: app, port: 80}]
  - matches: [{path: {value: /flaky}}]
    retry: {codes: [500], attempts: 2, backoff: 10ms}
    backendRefs: [{name: app, port: 80}]
  - matches: [{path: {value: /silent}}]
    retry: {codes: [500], attempts: 1}
    timeouts: {backendRequest: 300ms}
    backendRefs: [{name: app, port: 80}]
  - matches: [{path: {value: /away}}]
    backendRefs:
    - name: app
      port: 80
      filters:
      - type: RequestRedirect
        requestRedirect: {hostname: elsewhere.example, statusCode: 307}
";

/// Starts an application that fails twice at `/flaky`, always at `/flaky/always`, does not respond at `/silent`, and
/// does not read the body at `/sent/stuck`.
fn start_application(mesh: &Mesh, pod: &str, port: u16, is_shadow: bool) -> RecordedRequests {
    let recorded = RecordedRequests::default();
    let noted = recorded.clone();
    mesh.serve_connections(pod, port, move |mut stream| {
        while let Some(head) = read_head(&mut stream)? {
            let head = head.to_ascii_lowercase();
            let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
            if is_shadow && target == "/sent/stuck" {
                block_forever();
            }
            noted.record(&head, &mut stream)?;
            let is_same = |(head, _): &&(String, String)| head.contains(&format!(" {target} "));
            let times = noted.requests_of("").iter().filter(is_same).count();
            if target.starts_with("/silent") {
                block_forever();
            }
            let fails = target == "/flaky/always" || target.starts_with("/flaky") && times < 3;
            let status = if fails { "500 No" } else { "200 OK" };
            let name = if is_shadow { "shadow" } else { "app" };
            let length = name.len();
            write!(
                stream,
                "HTTP/1.1 {status}\r\naccess-control-allow-origin: *\r\ncontent-length: {length}\r\n\r\n{name}"
            )?;
        }
        Ok(())
    });
    recorded
}

/// Blocks forever with the connection open.
fn block_forever() -> ! {
    loop {
        thread::park();
    }
}

struct FilterFixture {
    mesh: Mesh,
    address: SocketAddr,
    app: RecordedRequests,
    shadow: RecordedRequests,
}

impl FilterFixture {
    fn new() -> Self {
        let (mesh, _) = with_waypoint(MANIFESTS);
        mesh.apply("routes", ROUTES);
        let scene = Self {
            app: start_application(&mesh, "shop/server", 8081, false),
            shadow: start_application(&mesh, "bank/shadow", 8090, true),
            address: mesh.service_address("server.shop.svc", 80),
            mesh,
        };
        wait_until("the routes are followed", || {
            let answer = scene.ask("GET /away HTTP/1.1", "", "");
            answer.starts_with("HTTP/1.1 307")
                && answer.contains("location: http://elsewhere.example/away\r\n")
        });
        wait_until("the mirror is known", || {
            scene.ask("GET /copied/first HTTP/1.1", "", "");
            !scene.shadow.requests_of("get /sent/first ").is_empty()
        });
        scene
    }

    /// Sends a request, and returns the response with its raw headers.
    fn ask(&self, line: &str, headers: &str, body: &str) -> String {
        let length = body.len();
        let request =
            format!("{line}\r\nHost: server\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
        let mut connection = self.mesh.dial("shop/client", self.address).unwrap();
        let answer = connection.send_raw(request.as_bytes(), is_complete_response);
        answer.unwrap_or_else(|error| format!("failed: {error}"))
    }
}

#[test]
fn mirror_gets_requests_and_never_delays_them() {
    let scene = FilterFixture::new();
    let answer = scene.ask("POST /copied/a?b=c HTTP/1.1", "X-A: 1\r\n", "hello");
    assert!(answer.ends_with("app"), "{answer}");
    wait_until("the mirror gets it", || {
        !scene.shadow.requests_of("post /sent/a?b=c ").is_empty()
    });
    let original = scene.app.requests_of("post /sent/a?b=c ");
    let copy = scene.shadow.requests_of("post /sent/a?b=c ");
    let ([(head, body)], [(copied_head, copied_body)]) = (original.as_slice(), copy.as_slice())
    else {
        panic!("{original:?} {copy:?}")
    };
    assert_eq!((body.as_str(), copied_body.as_str()), ("hello", "hello"));
    assert!(head.contains("\r\nhost: server\r\n"), "{head}");
    assert!(
        copied_head.contains("\r\nhost: server-shadow\r\n"),
        "{copied_head}"
    );
    // All else is equal, also the headers that identify a request.
    let rest = |head: &str| {
        let mut lines: Vec<_> = head
            .lines()
            .filter(|line| !line.starts_with("host: "))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(rest(head), rest(copied_head));
    // Denied requests reach no backend.
    let denied = scene.ask("GET /copied/secret HTTP/1.1", "", "");
    assert!(denied.starts_with("HTTP/1.1 403"), "{denied}");
    // A mirror that does not read delays neither a large body nor the response.
    let large = "x".repeat(8 << 20);
    let answer = scene.ask("POST /copied/stuck HTTP/1.1", "", &large);
    assert!(answer.ends_with("app"), "{answer}");
    assert_eq!(
        scene.app.requests_of("post /sent/stuck ")[0].1.len(),
        large.len()
    );
    let answer = scene.ask("GET /copied/last HTTP/1.1", "", "");
    assert!(answer.ends_with("app"), "{answer}");
    wait_until("the mirror gets the last", || {
        !scene.shadow.requests_of("get /sent/last ").is_empty()
    });
    assert!(scene.shadow.requests_of("get /sent/secret ").is_empty());
}

#[test]
fn preflights_follow_policies_and_failed_requests_are_retried() {
    let scene = FilterFixture::new();
    let preflight = |path: &str, origin: &str| {
        let headers = format!("Origin: {origin}\r\nAccess-Control-Request-Method: PUT\r\n");
        let answer = scene.ask(&format!("OPTIONS {path} HTTP/1.1"), &headers, "");
        answer.to_ascii_lowercase()
    };
    let allowed = preflight("/cors/x", "https://a.example");
    assert!(allowed.starts_with("http/1.1 200"), "{allowed}");
    for line in [
        "access-control-allow-origin: https://a.example\r\n",
        "access-control-allow-credentials: true\r\n",
        "access-control-allow-methods: put\r\n",
        "access-control-allow-headers: x-a\r\n",
        "access-control-max-age: 60\r\n",
    ] {
        assert!(allowed.contains(line), "no {line} in {allowed}");
    }
    let not = preflight("/cors/x", "https://evil");
    assert!(
        not.starts_with("http/1.1 200") && !not.contains("access-control"),
        "{not}"
    );
    let denied = preflight("/cors/secret", "https://a.example");
    assert!(
        denied.starts_with("http/1.1 403") && !denied.contains("access-control"),
        "{denied}"
    );
    assert!(scene.app.requests_of("options ").is_empty());
    for (origin, allowed) in [("https://a.example", true), ("https://evil", false)] {
        let headers = format!("Origin: {origin}\r\n");
        let answer = scene.ask("GET /cors/x HTTP/1.1", &headers, "");
        assert!(
            answer.ends_with("app") && !answer.contains("allow-origin: *"),
            "{answer}"
        );
        let line = format!("access-control-allow-origin: {origin}");
        assert_eq!(answer.contains(&line), allowed, "{answer}");
    }

    let answer = scene.ask("POST /flaky/a HTTP/1.1", "", "again");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let bodies: Vec<_> = scene
        .app
        .requests_of("post /flaky/a ")
        .into_iter()
        .map(|(_, body)| body)
        .collect();
    assert_eq!(bodies, ["again"; 3]);
    let answer = scene.ask("GET /flaky/always HTTP/1.1", "", "");
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert_eq!(scene.app.requests_of("get /flaky/always ").len(), 3);
    // The body exceeds the buffer for retries.
    let answer = scene.ask("POST /flaky/large HTTP/1.1", "", &"x".repeat(256 << 10));
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert_eq!(scene.app.requests_of("post /flaky/large ").len(), 1);
    let late = scene.ask("GET /silent HTTP/1.1", "", "");
    assert!(late.starts_with("HTTP/1.1 504"), "{late}");
    assert_eq!(scene.app.requests_of("get /silent ").len(), 2);
}
