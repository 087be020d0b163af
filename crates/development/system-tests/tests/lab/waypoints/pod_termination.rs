//! Tests of servers that are deleted under load, and of a waypoint's only pod that is killed or
//! terminated: no request hangs, none gets 503, and only requests in flight at that moment break.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use ambit_system_tests::{CLIENT_AND_SERVER, GATEWAY, Mesh, wait_until};

use crate::waypoints::progress::Progress;

/// Namespaces of the servers, with the Services' addresses: one behind a waypoint, one behind node proxies alone.
const NAMESPACES: [(&str, &str); 2] = [("shop", "10.96.0.70"), ("plain", "10.96.0.71")];

fn servers(replicas: u32) -> String {
    let mut all =
        "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: plain, labels: {istio.io/dataplane-mode: ambient}}\n"
            .to_owned();
    for (namespace, address) in NAMESPACES {
        all += &format!(
            "---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: many, namespace: {namespace}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: many}}}}
  template:
    metadata: {{labels: {{app: many}}}}
    spec:
      containers:
      - name: web
        image: none
        command: [$LAB_TOOL, serve, --port, '8080', --name, many]
        ports: [{{name: http, containerPort: 8080}}]
        readinessProbe: {{tcpSocket: {{port: 8080}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: many, namespace: {namespace}}}
spec:
  clusterIP: {address}
  selector: {{app: many}}
  ports: [{{name: http, port: 80, targetPort: http}}]
"
        );
    }
    all
}

fn manifests(replicas: u32) -> String {
    let reference =
        "spec:\n  infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: own}}\n";
    let gateway = GATEWAY.replace("spec:\n", reference);
    // A terminating pod serves only for a short time.
    let short = "{deployment: 'spec: {template: {spec: {terminationGracePeriodSeconds: 5}}}'}";
    format!(
        "{CLIENT_AND_SERVER}\n---{gateway}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: own, namespace: shop}}\ndata: {short}\n{}",
        servers(replicas)
    )
}

/// Returns whether a response is complete, including its last line.
fn is_complete(answer: &str) -> bool {
    answer.contains("called by ") && answer.ends_with('\n')
}

/// Load of sequential requests to one address, each on a new connection, until stopped.
pub(crate) struct RequestLoad<'a> {
    mesh: &'a Mesh,
    to: SocketAddr,
    pub(crate) progress: Progress,
    /// Number of requests whose connection was closed or reset before the response.
    pub(crate) broken_requests: AtomicUsize,
    /// Failures of any other kind, of which there must be none.
    pub(crate) failures: Mutex<Vec<String>>,
}

impl<'a> RequestLoad<'a> {
    pub(crate) fn new(mesh: &'a Mesh, to: SocketAddr) -> Self {
        Self {
            mesh,
            to,
            progress: Progress::default(),
            broken_requests: AtomicUsize::new(0),
            failures: Mutex::default(),
        }
    }

    pub(crate) fn run(&self) {
        let request = b"GET / HTTP/1.1\r\nHost: many\r\nConnection: close\r\n\r\n";
        while !self.progress.is_stopped() {
            let connection = self.mesh.dial("shop/client", self.to);
            let answer =
                connection.and_then(|mut connection| connection.send_raw(request, is_complete));
            match answer {
                Ok(answer) if answer.starts_with("HTTP/1.1 200") && is_complete(&answer) => {
                    self.progress.count_response();
                }
                Ok(answer) if answer.is_empty() => drop(self.broken_requests.fetch_add(1, Relaxed)),
                Ok(answer) => self.failed(&answer),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    self.failed("no answer in ten seconds");
                }
                Err(_broken) => drop(self.broken_requests.fetch_add(1, Relaxed)),
            }
        }
    }

    fn failed(&self, why: &str) {
        self.failures.lock().unwrap().push(why.to_owned());
    }
}

/// Performs a change under load, and asserts that each load lost at most `under_way` requests, the number in flight.
fn change_under_load(
    loads: &[RequestLoad<'_>],
    what: &str,
    under_way: usize,
    change: impl FnOnce(),
) {
    let broken = || loads.iter().map(|load| load.broken_requests.load(Relaxed));
    let before: Vec<_> = broken().collect();
    let wait_for_more = || {
        loads
            .iter()
            .for_each(|load| load.progress.wait_for_additional(20))
    };
    wait_for_more();
    change();
    wait_for_more();
    for ((load, before), now) in loads.iter().zip(before).zip(broken()) {
        let (to, broken) = (load.to, now - before);
        let failures = load.failures.lock().unwrap().clone();
        assert!(failures.is_empty(), "{what}, {to}: {failures:#?}");
        assert!(
            broken <= under_way,
            "{what}, {to}: {broken} requests were broken"
        );
    }
}

fn count_pods(mesh: &Mesh, prefix: &str) -> usize {
    let pods = mesh.client().status().unwrap().pods;
    let all = pods.iter().filter(|pod| pod.name.starts_with(prefix));
    all.count()
}

/// Sends a signal to the first process of the waypoint's pod, and waits until another process has
/// started.
fn signal_waypoint(mesh: &Mesh, signal: &str) {
    let waypoint = || {
        let pods = mesh.client().status().unwrap().pods.into_iter();
        let mut pods = pods.filter(|pod| pod.name.starts_with("waypoint-"));
        pods.next().unwrap()
    };
    let restarts = || -> u32 {
        let containers = waypoint().containers;
        containers.iter().map(|container| container.restarts).sum()
    };
    let (name, before) = (format!("shop/{}", waypoint().name), restarts());
    let kill = format!(
        "for process in /proc/[0-9]*; do \
         grep -qz \"^AMBIT_POD_UID=$AMBIT_POD_UID$\" $process/environ 2>/dev/null || continue; \
         case $(readlink $process/exe) in *ambit-waypoint) ;; *) continue;; esac; \
         parent=$(grep ^PPid: $process/status | tr -dc 0-9); \
         case $(readlink /proc/$parent/exe) in *ambit-waypoint) ;; *) kill -{signal} ${{process#/proc/}};; esac; \
         done; true"
    );
    mesh.run(&name, &["sh", "-c", &kill]);
    wait_until("the waypoint's container is started again", || {
        restarts() > before
    });
}

#[test]
fn deleted_servers_and_waypoints_hang_no_request() {
    let mesh = Mesh::up(&manifests(3));
    for (_, address) in NAMESPACES {
        wait_until("requests are answered", || {
            mesh.get("shop/client", &format!("http://{address}/"))
                .succeeded()
        });
    }
    let loads = NAMESPACES
        .map(|(_, address)| RequestLoad::new(&mesh, SocketAddr::new(address.parse().unwrap(), 80)));
    let loads = &loads;
    std::thread::scope(|scope| {
        let _stop = loads.each_ref().map(|load| load.progress.stop_at_end());
        for load in loads {
            for _ in 0..2 {
                scope.spawn(move || load.run());
            }
        }
        // Each of the two deleted servers may have one request of each client in flight.
        change_under_load(loads, "scale down", 4, || {
            mesh.apply("manifests", &manifests(1));
            wait_until("one server of each is left", || {
                count_pods(&mesh, "many-") == 2
            });
        });
        for signal in ["KILL", "TERM"] {
            let what = format!("the only pod of the waypoint gets SIG{signal}");
            change_under_load(loads, &what, 2, || signal_waypoint(&mesh, signal));
        }
    });
}
