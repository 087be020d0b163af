//! Tests of Istio's VirtualServices at a waypoint, from manifests to the requests that applications
//! receive, and of changes under load.

use std::{io::Write as _, net::SocketAddr, sync::Mutex, thread};

use ambit_system_tests::{
    Mesh, RecordedRequests, is_complete_response, read_head, wait_until, with_waypoint,
};

/// Three applications in the service's pod, one on each port, and a subset of the service's pods.
const MANIFESTS: &str = "
---
apiVersion: v1
kind: Namespace
metadata: {name: bank, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: bank, labels: {app: client}}
spec:
  nodeName: node-1
  serviceAccountName: client
  containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}]
---
apiVersion: v1
kind: Service
metadata: {name: next, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8082}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: next, namespace: shop}
spec: {host: next, subsets: [{name: all, labels: {app: server}}, {name: none, labels: {app: gone}}]}
";

const ALL_FEATURES: &str = "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: app, namespace: shop}
spec:
  hosts: [app]
  http:
  - match: [{uri: {prefix: /pre}, headers: {x-user: {exact: ann}}}]
    rewrite: {uri: /re, authority: other.example}
    headers:
      request: {set: {x-set: by-rule}, add: {x-add: more}, remove: [x-gone]}
      response: {set: {x-rule: 'yes'}}
    route:
    - destination: {host: next}
      headers: {request: {set: {x-set: by-destination}}}
  - name: order
    match: [{uri: {prefix: /pre}}]
    route: [{destination: {host: app}}]
  - match: [{uri: {exact: /prefix/longer}}]
    route: [{destination: {host: next}}]
  - match: [{uri: {prefix: /moved}}]
    redirect: {uri: /new, authority: elsewhere.example, redirectCode: 307}
  - match: [{uri: {prefix: /silent}}]
    timeout: 300ms
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /flaky}}]
    retries: {attempts: 2, retryOn: 5xx, perTryTimeout: 5s}
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /once}}]
    retries: {attempts: 0}
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /fault}}]
    fault: {abort: {httpStatus: 418, percentage: {value: 100}}}
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /copied}}]
    mirror: {host: next}
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /cors}}]
    corsPolicy: {allowOrigins: [{exact: 'https://a.example'}], allowMethods: [PUT], maxAge: 1m}
    route: [{destination: {host: app}}]
  - match: [{uri: {prefix: /shared}}]
    route:
    - {destination: {host: app}, weight: 3}
    - {destination: {host: next, subset: all}, weight: 1}
  - match: [{uri: {prefix: /none}}]
    route: [{destination: {host: next, subset: none}}]
  - match: [{uri: {prefix: /gone}}]
    route: [{destination: {host: nowhere}}]
  - match: [{uri: {prefix: /unsupported}}]
    directResponse: {status: 200}
  - name: of-bank
    match: [{sourceNamespace: bank, uri: {prefix: /who}}]
    route: [{destination: {host: next}}]
  - match: [{uri: {prefix: /who}, withoutHeaders: {x-other: {}}}]
    route: [{destination: {host: app}}]
";

/// Runs an application that returns its name. The application fails twice at `/flaky`, always at `/once`, and does not
/// respond at `/silent`.
fn application(mesh: &Mesh, port: u16, name: &'static str) -> RecordedRequests {
    let recorded = RecordedRequests::default();
    let noted = recorded.clone();
    mesh.serve_connections("shop/server", port, move |mut stream| {
        while let Some(head) = read_head(&mut stream)? {
            let head = head.to_ascii_lowercase();
            noted.record(&head, &mut stream)?;
            if head.starts_with("get /silent") {
                loop {
                    thread::park();
                }
            }
            let fails = head.starts_with("get /once")
                || head.starts_with("get /flaky") && noted.requests_of("get /flaky").len() < 3;
            let status = if fails { "503 No" } else { "200 OK" };
            let length = name.len();
            write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{name}"
            )?;
        }
        Ok(())
    });
    recorded
}

struct VirtualServiceFixture {
    mesh: Mesh,
    address: SocketAddr,
    app: RecordedRequests,
    next: RecordedRequests,
}

impl VirtualServiceFixture {
    fn new(manifest: &str) -> Self {
        let (mesh, _) = with_waypoint(MANIFESTS);
        let scene = Self {
            app: application(&mesh, 8081, "app"),
            next: application(&mesh, 8082, "next"),
            address: mesh.service_address("app.shop.svc", 80),
            mesh,
        };
        scene.mesh.apply("virtual-service", manifest);
        scene
    }

    /// Sends a request without a body; returns the response in lower case, or the failure.
    fn ask(&self, client: &str, line: &str, headers: &str) -> String {
        let request = format!("{line} HTTP/1.1\r\nHost: app\r\n{headers}Content-Length: 0\r\n\r\n");
        let mut connection = self.mesh.dial(client, self.address).unwrap();
        let answer = connection.send_raw(request.as_bytes(), is_complete_response);
        answer.map_or_else(
            |error| format!("failed: {error}"),
            |one| one.to_ascii_lowercase(),
        )
    }

    fn get(&self, path: &str) -> String {
        self.ask("shop/client", &format!("GET {path}"), "")
    }

    fn wait_until_applied(&self) {
        wait_until("the virtual service is followed", || {
            self.get("/fault").starts_with("http/1.1 418")
        });
    }
}

#[test]
fn virtual_service_rules_are_applied() {
    let scene = VirtualServiceFixture::new(ALL_FEATURES);
    scene.wait_until_applied();
    // Match, rewrite and headers, of the first rule that matches.
    let headers = "X-User: ann\r\nX-Set: a\r\nX-Add: one\r\nX-Gone: a\r\n";
    let changed = scene.ask("shop/client", "GET /prefix/x?a=b", headers);
    assert!(
        changed.ends_with("next") && changed.contains("x-rule: yes"),
        "{changed}"
    );
    let sent = scene.next.requests_of("get /refix/x?a=b ");
    let [(sent, _)] = sent.as_slice() else {
        panic!("{:?}", scene.next.requests_of(""));
    };
    for line in [
        "host: other.example\r\n",
        "x-set: by-destination\r\n",
        "x-add: one\r\n",
        "x-add: more\r\n",
    ] {
        assert!(sent.contains(line), "no {line:?} in {sent}");
    }
    assert!(!sent.contains("x-gone"), "{sent}");
    // A more specific rule still applies after an earlier one.
    assert!(scene.get("/prefix/longer").ends_with("app"));
    let moved = scene.get("/moved/x?y=1");
    assert!(moved.starts_with("http/1.1 307"), "{moved}");
    assert!(
        moved.contains("location: http://elsewhere.example/new?y=1\r\n"),
        "{moved}"
    );
    assert!(scene.get("/silent").starts_with("http/1.1 504"));
    assert!(scene.get("/flaky").starts_with("http/1.1 200"));
    assert_eq!(scene.app.requests_of("get /flaky ").len(), 3);
    assert!(scene.get("/once").starts_with("http/1.1 503"));
    assert_eq!(scene.app.requests_of("get /once ").len(), 1);
    assert!(scene.get("/copied").ends_with("app"));
    wait_until("the mirror gets it", || {
        !scene.next.requests_of("get /copied ").is_empty()
    });
    let preflight = |origin: &str| {
        let headers = format!("Origin: {origin}\r\nAccess-Control-Request-Method: PUT\r\n");
        scene.ask("shop/client", "OPTIONS /cors", &headers)
    };
    let allowed = preflight("https://a.example");
    assert!(
        allowed.contains("access-control-allow-origin: https://a.example"),
        "{allowed}"
    );
    assert!(!preflight("https://b.example").contains("access-control"));
    // Weights, and a subset.
    let answers: Vec<_> = (0..60).map(|_| scene.get("/shared")).collect();
    let count = |name: &str| answers.iter().filter(|one| one.ends_with(name)).count();
    assert_eq!(count("app") + count("next"), 60, "{answers:?}");
    assert!((3..=30).contains(&count("next")), "{}", count("next"));
    // Requests of unsupported rules, and requests without a matching rule, are rejected.
    for (path, status) in [
        ("/none", "503"),
        ("/gone", "500"),
        ("/unsupported", "500"),
        ("/elsewhere", "404"),
    ] {
        let refused = scene.get(path);
        assert!(
            refused.starts_with(&format!("http/1.1 {status}")),
            "{path}: {refused}"
        );
    }
    // Clients by their namespace, and headers that must be absent.
    let who = |client: &str, headers: &str| scene.ask(client, "GET /who", headers);
    assert!(who("shop/client", "").ends_with("app"));
    assert!(who("shop/client", "X-Other: a\r\n").starts_with("http/1.1 404"));
    wait_until("the other namespace's rule is followed", || {
        who("bank/client", "X-Other: a\r\n").ends_with("next")
    });
    assert_shown_by_commands(&scene.mesh);
}

/// Checks that the command line's output names the VirtualService and its rejected fields.
fn assert_shown_by_commands(mesh: &Mesh) {
    let problems = mesh.ambit(&["problems"]).stdout;
    assert!(
        problems.contains("spec.http[13].directResponse"),
        "{problems}"
    );
    let explain = [
        "explain",
        "--from",
        "shop/client",
        "--to",
        "app.shop",
        "--path",
    ];
    for (path, words) in [
        ("/fault", ["VirtualService", "shop/app", "418"]),
        ("/unsupported", ["VirtualService", "directResponse", "500"]),
    ] {
        let explained = mesh.ambit(&[&explain[..], &[path]].concat()).stdout;
        for word in words {
            assert!(explained.contains(word), "{path} {word}: {explained}");
        }
    }
    let routes = mesh.ambit(&["waypoint", "routes", "-n", "shop"]).stdout;
    assert!(routes.contains("VirtualService/shop/app"), "{routes}");
}

#[test]
fn virtual_service_changes_fail_no_request() {
    let to = |host: &str| {
        format!(
            "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: app, namespace: shop}}
spec: {{hosts: [app], http: [{{route: [{{destination: {{host: {host}}}}}]}}]}}
"
        )
    };
    let scene = VirtualServiceFixture::new(&to("app"));
    let answers = Mutex::new(Vec::new());
    let is_over = Mutex::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !*is_over.lock().unwrap() {
                    let answer = scene.get("/load");
                    answers.lock().unwrap().push(answer);
                }
            });
        }
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..6 {
                let host = if round % 2 == 0 { "next" } else { "app" };
                scene.mesh.apply("virtual-service", &to(host));
                wait_until("the change is followed", || {
                    scene.get("/change").ends_with(host)
                });
            }
            scene.mesh.remove("virtual-service");
            scene.mesh.apply("route", &http_route());
            wait_until("the route is followed", || {
                scene.get("/change").ends_with("next")
            });
            // A route of the Gateway API takes precedence.
            let other = to("app")
                .replace("name: app", "name: server")
                .replace("hosts: [app]", "hosts: [server]");
            scene
                .mesh
                .apply("virtual-service", &format!("{}---{other}", to("app")));
            let server = scene.mesh.service_address("server.shop.svc", 80);
            wait_until("virtual services are followed where no route is", || {
                scene
                    .mesh
                    .dial("shop/client", server)
                    .is_ok_and(|mut connection| {
                        let request = b"GET /change HTTP/1.1\r\nHost: server\r\n\r\n";
                        let answer = connection.send_raw(request, is_complete_response);
                        answer.is_ok_and(|answer| answer.ends_with("app"))
                    })
            });
            assert!(scene.get("/change").ends_with("next"));
            scene.mesh.remove("route");
            wait_until("the virtual service is followed", || {
                scene.get("/change").ends_with("app")
            });
        }));
        *is_over.lock().unwrap() = true;
        changed.unwrap();
    });
    let answers = answers.into_inner().unwrap();
    assert!(answers.len() > 20, "{}", answers.len());
    let failed: Vec<_> = answers
        .iter()
        .filter(|one| !one.starts_with("http/1.1 200"))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn http_route() -> String {
    "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: app, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: app}]
  rules: [{backendRefs: [{name: next, port: 80}]}]
"
    .to_owned()
}
