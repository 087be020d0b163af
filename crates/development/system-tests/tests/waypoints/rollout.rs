//! A waypoint that is replaced or made smaller fails no request, neither on kept connections nor on new ones.

use std::{net::SocketAddr, sync::Mutex};

use ambit_system_tests::{GATEWAY, Mesh, PAIR, is_whole, until, until_through};

use crate::progress::Progress;

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

/// The Gateway with so many replicas; another `revision` is another template of its pods.
fn gateway(replicas: u32, revision: u32) -> String {
    GATEWAY.replace(
        "{name: waypoint, namespace: shop}\nspec:",
        &format!(
            "{{name: waypoint, namespace: shop, annotations: {{ambit.io/waypoint-replicas: '{replicas}'}}}}\nspec:\n  \
             infrastructure: {{labels: {{revision: r{revision}}}}}"
        ),
    )
}

fn names(mesh: &Mesh) -> Vec<String> {
    let pods = mesh.client().status().unwrap().pods;
    let of_waypoint = pods
        .into_iter()
        .filter(|pod| pod.namespace == "shop" && pod.name.starts_with("waypoint-"));
    of_waypoint.map(|pod| pod.name).collect()
}

/// Requests one after the other until stopped: each on a connection of its own, or on one as long as the server
/// keeps it.
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
        while !self.progress.is_over() {
            let connection = kept
                .take()
                .map_or_else(|| self.mesh.dial("shop/client", to), Ok);
            let answered = connection.and_then(|mut connection| {
                let answer = connection.raw(request.as_bytes(), is_whole)?;
                Ok((connection, answer))
            });
            match answered {
                Ok((connection, answer))
                    if answer.starts_with("HTTP/1.1 200") && is_whole(&answer) =>
                {
                    let closes = answer
                        .to_ascii_lowercase()
                        .contains("\r\nconnection: close");
                    kept = Some(connection).filter(|_| keeps && !closes);
                    self.progress.answered();
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

#[test]
fn a_rollout_and_a_scale_down_fail_no_request() {
    let manifests =
        |replicas, revision| format!("{PAIR}\n---{}{SERVICE}", gateway(replicas, revision));
    let mesh = Mesh::up(&manifests(2, 1));
    let first = names(&mesh);
    assert_eq!(first.len(), 2);
    let direct = SocketAddr::new(mesh.ip("shop/server"), 8080);
    let service = SocketAddr::from(([10, 96, 0, 80], 80));
    let by_client = format!("called by {}\n", mesh.ip("shop/client"));
    for to in [direct, service] {
        until("requests go through a waypoint", || {
            let answer = mesh.get("shop/client", &format!("http://{to}/"));
            answer.succeeded() && !answer.body.contains(by_client.trim())
        });
    }
    let load = Load {
        mesh: &mesh,
        progress: Progress::default(),
        failures: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let _stop = load.progress.stop_at_end();
        for (to, keeps) in [
            (service, true),
            (direct, true),
            (service, false),
            (direct, false),
        ] {
            let load = &load;
            scope.spawn(move || load.run(to, keeps));
        }
        load.progress.go_on(20);
        mesh.apply("manifests", &manifests(2, 2));
        until("both pods are new", || {
            let now = names(&mesh);
            now.len() == 2 && !now.iter().any(|name| first.contains(name))
        });
        load.progress.go_on(20);
        mesh.apply("manifests", &manifests(1, 2));
        until("one pod is left", || names(&mesh).len() == 1);
        load.progress.go_on(20);
    });
    let failures = load.failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{failures:#?}");
    until_through(
        &mesh,
        &mesh.ip("shop/waypoint").to_string(),
        "shop/client",
        &format!("http://{direct}/"),
    );
}
