//! Tests that replacing or scaling down a waypoint fails no request, on existing and on new connections.

use std::{
    net::SocketAddr,
    sync::Mutex,
    time::{Duration, Instant},
};

use ambit_system_tests::{
    CLIENT_AND_SERVER, GATEWAY, Mesh, is_complete_response, wait_until, wait_until_via_waypoint,
};

use crate::waypoints::progress::Progress;

const SERVICE: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: shelf, namespace: shop}
spec:
  clusterIP: 10.96.0.80
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}]
";

/// Returns the Gateway with this number of replicas; another `revision` changes the pod template.
fn gateway(replicas: u32, revision: u32) -> String {
    GATEWAY.replace(
        "{name: waypoint, namespace: shop}\nspec:",
        &format!(
            "{{name: waypoint, namespace: shop, annotations: {{ambit.io/waypoint-replicas: '{replicas}'}}}}\nspec:\n  \
             infrastructure: {{labels: {{revision: r{revision}}}}}"
        ),
    )
}

fn waypoint_pod_names(mesh: &Mesh) -> Vec<String> {
    let pods = mesh.client().status().unwrap().pods;
    let of_waypoint = pods
        .into_iter()
        .filter(|pod| pod.namespace == "shop" && pod.name.starts_with("waypoint-"));
    of_waypoint.map(|pod| pod.name).collect()
}

/// Load of sequential requests until stopped: each on a new connection, or all on one connection as long as the server
/// keeps it open.
struct Load<'a> {
    mesh: &'a Mesh,
    progress: Progress,
    failures: Mutex<Vec<String>>,
}

impl Load<'_> {
    fn run(&self, to: SocketAddr, keeps: bool) {
        let request = if keeps {
            "GET / HTTP/1.1\r\nHost: shelf\r\n\r\n"
        } else {
            "GET / HTTP/1.1\r\nHost: shelf\r\nConnection: close\r\n\r\n"
        };
        let mut kept = None;
        while !self.progress.is_stopped() {
            let connection = kept
                .take()
                .map_or_else(|| self.mesh.dial("shop/client", to), Ok);
            let answered = connection.and_then(|mut connection| {
                let answer = connection.send_raw(request.as_bytes(), is_complete_response)?;
                Ok((connection, answer))
            });
            match answered {
                Ok((connection, answer))
                    if answer.starts_with("HTTP/1.1 200") && is_complete_response(&answer) =>
                {
                    let closes = answer
                        .to_ascii_lowercase()
                        .contains("\r\nconnection: close");
                    kept = Some(connection).filter(|_| keeps && !closes);
                    self.progress.count_response();
                }
                Ok((_, answer)) => self.failed(keeps, &answer),
                Err(error) => self.failed(keeps, &error.to_string()),
            }
        }
    }

    fn failed(&self, keeps: bool, why: &str) {
        self.failures
            .lock()
            .unwrap()
            .push(format!("kept {keeps}: {why:?}"));
    }
}

/// Starts a mesh whose waypoint has two pods; returns the mesh, and the addresses of a pod and of a service behind the
/// waypoint.
fn start_with_two_pods() -> (Mesh, [SocketAddr; 2]) {
    let mesh = Mesh::up(&manifests(2, 1));
    assert_eq!(waypoint_pod_names(&mesh).len(), 2);
    let direct = SocketAddr::new(mesh.ip("shop/server"), 8080);
    let service = SocketAddr::from(([10, 96, 0, 80], 80));
    let by_client = format!("called by {}\n", mesh.ip("shop/client"));
    for to in [direct, service] {
        wait_until("requests go through a waypoint", || {
            let answer = mesh.get("shop/client", &format!("http://{to}/"));
            answer.succeeded() && !answer.body.contains(by_client.trim())
        });
    }
    (mesh, [direct, service])
}

fn manifests(replicas: u32, revision: u32) -> String {
    format!(
        "{CLIENT_AND_SERVER}\n---{}{SERVICE}",
        gateway(replicas, revision)
    )
}

/// Asserts that no request fails during a change under load, on existing and new connections.
fn change_under_load(mesh: &Mesh, to: [SocketAddr; 2], change: impl FnOnce(&Progress)) {
    let load = Load {
        mesh,
        progress: Progress::default(),
        failures: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let _stop = load.progress.stop_at_end();
        for (to, keeps) in to.into_iter().flat_map(|to| [(to, true), (to, false)]) {
            let load = &load;
            scope.spawn(move || load.run(to, keeps));
        }
        load.progress.wait_for_additional(20);
        change(&load.progress);
        load.progress.wait_for_additional(20);
    });
    let failures = load.failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Waits until the waypoint has two pods, none of which is among `than`.
fn wait_for_replacement_pods(mesh: &Mesh, than: &[String]) {
    wait_until("both pods are new", || {
        let now = waypoint_pod_names(mesh);
        now.len() == 2 && !now.iter().any(|name| than.contains(name))
    });
}

#[test]
fn rollout_and_scale_down_fail_no_request() {
    let (mesh, to) = start_with_two_pods();
    let first = waypoint_pod_names(&mesh);
    change_under_load(&mesh, to, |progress| {
        mesh.apply("manifests", &manifests(2, 2));
        wait_for_replacement_pods(&mesh, &first);
        progress.wait_for_additional(20);
        mesh.apply("manifests", &manifests(1, 2));
        wait_until("one pod is left", || waypoint_pod_names(&mesh).len() == 1);
    });
    wait_until_via_waypoint(
        &mesh,
        &mesh.ip("shop/waypoint").to_string(),
        "shop/client",
        &format!("http://{}/", to[0]),
    );
}

/// Deletes or evicts both pods at once.
#[test]
fn both_pods_may_be_deleted_before_their_successors_start() {
    let (mesh, to) = start_with_two_pods();
    // In a lab, pods of another template have other names, and need not wait until the first are
    // gone.
    let all_leave = |revision| {
        mesh.apply("manifests", &manifests(0, revision));
        wait_until("both pods leave", || {
            let pods = mesh.client().status().unwrap().pods.into_iter();
            let mut pods = pods.filter(|pod| pod.name.starts_with("waypoint-"));
            pods.all(|pod| pod.phase == "Terminating")
        });
    };
    let first = waypoint_pod_names(&mesh);
    change_under_load(&mesh, to, |progress| {
        all_leave(1);
        let left = Instant::now();
        while left.elapsed() < Duration::from_secs(2) {
            progress.wait_for_additional(1);
        }
        mesh.apply("manifests", &manifests(2, 2));
        wait_for_replacement_pods(&mesh, &first);
    });
    // A client that was idle, for longer than a replaced pod waits for it.
    let second = waypoint_pod_names(&mesh);
    all_leave(2);
    let left = Instant::now();
    wait_until("a while passes", || left.elapsed() > Duration::from_secs(8));
    assert_eq!(waypoint_pod_names(&mesh), second);
    for to in to {
        let answer = mesh.get("shop/client", &format!("http://{to}/"));
        assert!(answer.succeeded(), "{to}: {answer:?}");
    }
    mesh.apply("manifests", &manifests(2, 3));
    wait_for_replacement_pods(&mesh, &second);
}

/// Checks that a terminating waypoint keeps active connections for up to an hour, and closes idle ones at once.
#[test]
fn only_the_pod_of_a_long_connection_outlives_a_rollout() {
    let with_grace = |revision| {
        let overlay =
            "{deployment: 'spec: {template: {spec: {terminationGracePeriodSeconds: 3600}}}'}";
        let reference = "infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: own}, ";
        format!(
            "{CLIENT_AND_SERVER}\n---{}{SERVICE}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: own, namespace: shop}}\ndata: {overlay}\n",
            gateway(2, revision).replace("infrastructure: {", reference)
        )
    };
    let mesh = Mesh::up(&with_grace(1));
    let first = waypoint_pod_names(&mesh);
    let server = mesh.ip("shop/server");
    let by_client = format!("called by {}", mesh.ip("shop/client"));
    wait_until("requests go through a waypoint", || {
        let answer = mesh.get("shop/client", &format!("http://{server}:8080/"));
        answer.succeeded() && !answer.body.contains(&by_client)
    });
    let mut long = mesh
        .dial("shop/client", SocketAddr::new(server, 9000))
        .unwrap();
    long.exchange_line("before").unwrap();
    // Idle connections of clients, most likely to both pods.
    let request = b"GET / HTTP/1.1\r\nHost: server\r\n\r\n";
    let idle: Vec<_> = (0..8)
        .map(|_| {
            let to = SocketAddr::new(server, 8080);
            let mut connection = mesh.dial("shop/client", to).unwrap();
            connection.send_raw(request, is_complete_response).unwrap();
            connection
        })
        .collect();
    mesh.apply("manifests", &with_grace(2));
    let left = || {
        waypoint_pod_names(&mesh)
            .into_iter()
            .filter(|name| first.contains(name))
            .count()
    };
    wait_until("one of the first pods is left", || {
        left() == 1 && waypoint_pod_names(&mesh).len() == 3
    });
    long.exchange_line("after").unwrap();
    assert_eq!(left(), 1);
    drop(long);
    wait_until("none of the first is left", || left() == 0);
    drop(idle);
}
