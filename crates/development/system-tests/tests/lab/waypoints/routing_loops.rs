//! Tests that routing loops between waypoints end: at an application, or with a rejection.

use ambit_system_tests::{
    CLIENT_AND_SERVER, GATEWAY, Mesh, Options, RecordedHeads, options, wait_until,
    wait_until_via_waypoint,
};

/// Second waypoint, and a service whose pod and requests it serves.
const SECOND_WAYPOINT: &str = "
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: yonder, namespace: shop}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
---
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: shop, labels: {app: far, istio.io/use-waypoint: yonder}}
spec:
  nodeName: node-1
  containers:
  - name: web
    image: none
    command: [$LAB_TOOL, serve, --port, '8080', --name, far, --text, far-text]
    readinessProbe: {tcpSocket: {port: 8080}}
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: shop, labels: {istio.io/use-waypoint: yonder}}
spec:
  selector: {app: far}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 90, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: near, namespace: shop, labels: {istio.io/use-waypoint: waypoint}}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 90, targetPort: 8080}]
";

/// Returns an HTTPRoute that sends the requests for one service to another.
fn route(from: &str, to: &str) -> String {
    route_of("HTTPRoute", 80, from, to)
}

/// Returns a route of this kind that sends traffic for a port of one service to another service.
fn route_of(kind: &str, port: u16, from: &str, to: &str) -> String {
    format!(
        "
---
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata: {{name: {from}, namespace: shop}}
spec:
  parentRefs: [{{group: '', kind: Service, name: {from}, port: {port}}}]
  rules: [{{backendRefs: [{{name: {to}, port: {port}}}]}}]
"
    )
}

/// Returns the number of established TCP connections in a pod's network namespace.
fn connections(mesh: &Mesh, pod: &str) -> usize {
    let table = mesh.run(pod, &["cat", "/proc/self/net/tcp", "/proc/self/net/tcp6"]);
    let established = |line: &&str| line.split_whitespace().nth(3) == Some("01");
    table.lines().filter(established).count()
}

/// Returns the number of requests that both waypoints rejected because of a routing loop; a rejection also counts at
/// each waypoint that passes it back.
fn rejected_loops(mesh: &Mesh) -> u64 {
    let of = |pod: &str| {
        let metrics = mesh.get(pod, "http://127.0.0.1:15020/stats/prometheus");
        let of_loops = |line: &&str| {
            line.starts_with("istio_requests_total{") && line.contains("response_code=\"508\"")
        };
        let samples = metrics.ok().lines().filter(of_loops).map(str::to_owned);
        let values = samples.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        values.sum::<u64>()
    };
    of("shop/waypoint") + of("shop/yonder")
}

/// Starts a mesh with clients, two waypoints and their services on one node.
fn start_two_waypoints() -> Mesh {
    let manifests =
        format!("{CLIENT_AND_SERVER}\n---{GATEWAY}{SECOND_WAYPOINT}").replace("node-2", "node-1");
    Mesh::up_with(
        &manifests,
        Options {
            nodes: 1,
            ..options()
        },
    )
}

#[test]
fn routing_loops_between_waypoints_end() {
    let mesh = start_two_waypoints();
    let near = mesh.ip("shop/waypoint").to_string();
    let yonder = mesh.ip("shop/yonder").to_string();
    let direct = format!("http://{}:8080/", mesh.ip("shop/server"));
    wait_until_via_waypoint(&mesh, &near, "shop/client", &direct);
    wait_until_via_waypoint(&mesh, &near, "shop/client", "http://near.shop/");
    wait_until_via_waypoint(&mesh, &yonder, "shop/client", "http://far.shop/");

    // A pod calls itself: through its service, like any other client.
    wait_until_via_waypoint(&mesh, &near, "shop/server", "http://near.shop/");
    mesh.get("shop/server", &direct).ok();
    // Two services of different waypoints call each other.
    wait_until_via_waypoint(&mesh, &yonder, "shop/server", "http://far.shop/");
    wait_until_via_waypoint(&mesh, &near, "shop/far", "http://near.shop/");
    // A waypoint's own pod can neither bypass it nor cause a loop.
    wait_until_via_waypoint(&mesh, &near, "shop/waypoint", &direct);
    wait_until_via_waypoint(&mesh, &near, "shop/yonder", &direct);

    // A route to a service of another waypoint: that one delivers.
    mesh.apply("routes", &route("near", "far"));
    wait_until("the route passes both waypoints", || {
        let answer = mesh.get("shop/client", "http://near.shop/");
        answer.body.contains("far-text") && answer.body.contains(&format!("called by {yonder}"))
    });

    // Routes in a loop.
    mesh.apply("routes", &(route("near", "far") + &route("far", "near")));
    let refused = |url: &str| mesh.get("shop/client", url).body.starts_with("508");
    for url in ["http://near.shop/", "http://far.shop/"] {
        wait_until(&format!("{url} is refused for its circle"), || refused(url));
    }
    let before = ["shop/waypoint", "shop/yonder"].map(|pod| connections(&mesh, pod));
    let circled_before = rejected_loops(&mesh);
    for _ in 0..30 {
        assert!(refused("http://near.shop/"));
    }
    // Each request has passed both waypoints a few times, and was soon rejected.
    let rejected_loops = rejected_loops(&mesh) - circled_before;
    assert!(
        (30 * 3..=30 * 10).contains(&rejected_loops),
        "{rejected_loops} for 30"
    );
    let after = ["shop/waypoint", "shop/yonder"].map(|pod| connections(&mesh, pod));
    for (before, after) in before.into_iter().zip(after) {
        // A few more, since each worker has its own connections: not one for each request.
        assert!(after <= before + 15, "{before} connections became {after}");
    }
    mesh.remove("routes");
    wait_until_via_waypoint(&mesh, &near, "shop/client", "http://near.shop/");

    // The same with connections: each opens the next, until the limit.
    let tcp = |from: &str, to: &str| route_of("TCPRoute", 90, from, to);
    wait_until_via_waypoint(&mesh, &near, "shop/client", "http://near.shop:90/");
    mesh.apply("routes", &tcp("near", "far"));
    wait_until("the route passes both waypoints", || {
        let answer = mesh.get("shop/client", "http://near.shop:90/");
        answer.body.contains("far-text") && answer.body.contains(&format!("called by {yonder}"))
    });
    mesh.apply("routes", &(tcp("near", "far") + &tcp("far", "near")));
    for url in ["http://near.shop:90/", "http://far.shop:90/"] {
        wait_until(&format!("{url} is refused for its circle"), || {
            !mesh.get("shop/client", url).succeeded()
        });
    }
    let before = ["shop/waypoint", "shop/yonder"].map(|pod| connections(&mesh, pod));
    for _ in 0..10 {
        mesh.get("shop/client", "http://near.shop:90/")
            .assert_refused();
    }
    let after = ["shop/waypoint", "shop/yonder"].map(|pod| connections(&mesh, pod));
    for (before, after) in before.into_iter().zip(after) {
        assert!(after <= before + 15, "{before} connections became {after}");
    }
    mesh.remove("routes");
    wait_until_via_waypoint(&mesh, &near, "shop/client", "http://near.shop:90/");
}

/// Returns a Service of a pod's port 8090, whose requests are also mirrored to two services.
fn mirroring_service(name: &str, app: &str, waypoint: &str, mirror: &str) -> String {
    let mirror = format!(
        "{{type: RequestMirror, requestMirror: {{backendRef: {{name: {mirror}, port: 80}}}}}}"
    );
    format!(
        "
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop, labels: {{istio.io/use-waypoint: {waypoint}}}}}
spec: {{selector: {{app: {app}}}, ports: [{{name: http, port: 80, targetPort: 8090}}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: shop}}
spec:
  parentRefs: [{{group: '', kind: Service, name: {name}}}]
  rules: [{{filters: [{mirror}, {mirror}], backendRefs: [{{name: {name}, port: 80}}]}}]
"
    )
}

/// Returns the number of mirrored requests that a waypoint has completed.
fn completed_mirrors(mesh: &Mesh, waypoint: &str) -> u64 {
    let metrics = mesh.get(waypoint, "http://127.0.0.1:15020/stats/prometheus");
    let lines = metrics.ok().lines();
    let of_mirrors = lines.filter(|line| line.starts_with("ambit_requests_mirrored_total{"));
    let values = of_mirrors.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    values.sum()
}

#[test]
fn mirrors_of_two_waypoints_do_not_multiply() {
    let mesh = start_two_waypoints();
    let (_, here) = mesh.serve_heads("shop/server", 8090);
    let (_, there) = mesh.serve_heads("shop/far", 8090);
    let both = mirroring_service("one", "server", "waypoint", "two")
        + &mirroring_service("two", "far", "yonder", "one");
    mesh.apply("mirrors", &both);
    let of = |heads: &RecordedHeads, path: &str| {
        let line = format!("get {path} ");
        heads
            .recorded()
            .iter()
            .filter(|head| head.starts_with(&line))
            .count()
    };
    wait_until("the mirrors are followed", || {
        mesh.get("shop/client", "http://one.shop/first").succeeded() && of(&there, "/first") > 0
    });
    // Requests in flight complete.
    let counts = || {
        [
            completed_mirrors(&mesh, "shop/waypoint"),
            completed_mirrors(&mesh, "shop/yonder"),
        ]
    };
    let mut before = counts();
    wait_until("the first requests are over", || {
        let last = std::mem::replace(&mut before, counts());
        last == before && last[1] == 2 * last[0]
    });
    mesh.get("shop/client", "http://one.shop/counted").ok();
    // The waypoints of both mirrors mirror the request again, and those copies are not mirrored
    // further.
    wait_until("all of them have ended", || {
        counts() == [before[0] + 2, before[1] + 4]
    });
    assert_eq!((of(&here, "/counted"), of(&there, "/counted")), (1, 2));
}
