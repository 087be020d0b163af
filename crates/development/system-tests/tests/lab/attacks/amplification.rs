//! Tests that waypoints one behind the other send a bounded number of requests for each client request: their retries
//! add up and do not multiply, and mirrors of mirrors end.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use ambit_system_tests::{is_complete_response, read_head, wait_until, with_waypoint};

/// Number of retries that each waypoint's route allows.
const ATTEMPTS: usize = 3;

/// Service whose route has a backend behind another waypoint. Both waypoints' routes retry requests.
const ROUTES: &str = "
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: next, namespace: shop, labels: {istio.io/waypoint-for: service}}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: shop, labels: {istio.io/use-waypoint: waypoint}}
spec: {clusterIP: 10.96.0.81, selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8081}]}
---
apiVersion: v1
kind: Service
metadata: {name: back, namespace: shop, labels: {istio.io/use-waypoint: next}}
spec: {clusterIP: 10.96.0.82, selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8081}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: front, port: 80}]
  rules:
  - retry: {codes: [500], attempts: 3, backoff: 1ms}
    filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: x-by, value: front}]}}]
    backendRefs: [{name: back, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: back, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: back, port: 80}]
  rules:
  - retry: {codes: [500], attempts: 3, backoff: 1ms}
    filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: x-by, value: back}]}}]
    backendRefs: [{name: back, port: 80}]
";

/// Services with different waypoints, each of which mirrors its requests twice to the other one.
const MIRRORS: &str = "
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: front, port: 80}]
  rules:
  - filters:
    - {type: RequestMirror, requestMirror: {backendRef: {name: back, port: 80}}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: back, port: 80}}}
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-to, value: front}]}}
    backendRefs: [{name: front, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: back, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: back, port: 80}]
  rules:
  - filters:
    - {type: RequestMirror, requestMirror: {backendRef: {name: front, port: 80}}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: front, port: 80}}}
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-to, value: back}]}}
    backendRefs: [{name: back, port: 80}]
";

/// Returns the numbers of requests for a path that an application has received from either service, by the header
/// `x-to`.
fn request_counts_by_service(heads: &ambit_system_tests::RecordedHeads, path: &str) -> [usize; 2] {
    let all = heads.recorded();
    let of = |to: &str| {
        let all = all.iter().map(|head| head.to_ascii_lowercase());
        let of_path = all.filter(|head| head.starts_with(&format!("get {path} ")));
        of_path
            .filter(|head| head.contains(&format!("x-to: {to}\r\n")))
            .count()
    };
    [of("front"), of("back")]
}

#[test]
fn mutual_mirrors_of_waypoints_end() {
    let routes = ROUTES.split("---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute");
    let services = routes.take(1).collect::<String>();
    let (mesh, _) = with_waypoint(&(services + MIRRORS));
    let (_, heads) = mesh.serve_heads("shop/server", 8081);
    let ask = |vip: &str, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: shop\r\n\r\n");
        let answer = mesh.dial("shop/client", vip.parse().unwrap());
        let answer =
            answer.and_then(|mut stream| stream.send_raw(request.as_bytes(), is_complete_response));
        assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
    };
    wait_until("both routes are followed", || {
        ask("10.96.0.81:80", "/first");
        ask("10.96.0.82:80", "/first");
        request_counts_by_service(&heads, "/first")
            .iter()
            .all(|count| *count > 0)
    });
    wait_until("mirrors of the other Service arrive", || {
        ask("10.96.0.81:80", "/mirrored");
        request_counts_by_service(&heads, "/mirrored")[1] > 0
    });
    // One request for each mirror, and the mirrored requests of mirrors besides them.
    ask("10.96.0.81:80", "/counted");
    wait_until("both mirrors have come", || {
        request_counts_by_service(&heads, "/counted")[1] >= 2
    });
    for number in 0..20 {
        let path = format!("/after-{number}");
        ask("10.96.0.81:80", &path);
        wait_until("both mirrors of a later request have come", || {
            request_counts_by_service(&heads, &path)[1] >= 2
        });
    }
    assert_eq!(request_counts_by_service(&heads, "/counted"), [1, 2]);
}

#[test]
fn retries_of_chained_waypoints_add_up() {
    let (mesh, _) = with_waypoint(ROUTES);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    mesh.serve_connections("shop/server", 8081, move |mut stream| {
        while let Some(head) = read_head(&mut stream)? {
            assert!(!head.to_ascii_lowercase().contains("x-ambit-"), "{head}");
            counted.fetch_add(1, SeqCst);
            stream.write_all(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")?;
        }
        Ok(())
    });
    let front = "10.96.0.81:80".parse().unwrap();
    let ask = |headers: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: front\r\n{headers}\r\n");
        let answer = mesh.dial("shop/client", front);
        let answer =
            answer.and_then(|mut stream| stream.send_raw(request.as_bytes(), is_complete_response));
        answer.unwrap_or_default()
    };
    wait_until("requests pass both waypoints", || {
        let answer = ask("");
        answer.contains("x-by: back") && answer.contains("x-by: front")
    });
    asked.store(0, SeqCst);
    let answer = ask("");
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert_eq!(asked.load(SeqCst), 1 + 2 * ATTEMPTS);
    // A request that claims to be a retry is sent once.
    asked.store(0, SeqCst);
    let answer = ask("x-ambit-retry: 1\r\n");
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert_eq!(asked.load(SeqCst), 1);
}
