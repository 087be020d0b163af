//! Tests in which waypoints, node proxies and the control plane are killed or stopped under load.
//! Requests in flight fail and later ones succeed again; none reaches the covered pod without its
//! waypoint, as observed on the link to the pod, inside the pod, and by the application.

use std::net::IpAddr;

use ambit_system_tests::{
    CLIENT_AND_SERVER, Capture, FlowReport, GATEWAY, LabNetns, Mesh, RecordedHeads,
    is_complete_response, wait_until,
};

use crate::waypoints::progress::Progress;

/// Port of the application.
const PORT: u16 = 8081;
const SERVICE: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec:
  clusterIP: 10.96.0.81
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}]
";

struct FaultFixture {
    mesh: Mesh,
    server: IpAddr,
    heads: RecordedHeads,
}

impl FaultFixture {
    fn new(manifests: &str) -> Self {
        let mesh = Mesh::up(manifests);
        let (address, heads) = mesh.serve_heads("shop/server", PORT);
        Self {
            server: address.ip(),
            heads,
            mesh,
        }
    }

    /// Sends a request on a new connection, and returns the response, if there is one.
    fn ask(&self, client: &str, to: (IpAddr, u16), path: &str) -> Option<String> {
        let mut connection = self.mesh.dial(client, to.into()).ok()?;
        let request = format!("GET /{path} HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n");
        let answer = connection
            .send_raw(request.as_bytes(), is_complete_response)
            .ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    }

    fn service() -> (IpAddr, u16) {
        ([10, 96, 0, 81].into(), 80)
    }

    fn pod(&self) -> (IpAddr, u16) {
        (self.server, PORT)
    }

    /// Waits until every client gets a response, by the Service's address and by the pod's.
    fn wait_until_all_respond(&self, after: &str) {
        for client in ["shop/client", "legacy/client"] {
            for to in [Self::service(), self.pod()] {
                wait_until(&format!("{client} is answered by {to:?} {after}"), || {
                    self.ask(client, to, "works").is_some()
                });
            }
        }
    }

    fn waypoints(&self) -> Vec<(String, IpAddr)> {
        let pods = self.mesh.client().status().unwrap().pods;
        let all = pods.into_iter().filter(|pod| {
            pod.namespace == "shop" && pod.name.starts_with("waypoint-") && !pod.ips.is_empty()
        });
        all.map(|pod| (format!("shop/{}", pod.name), pod.ips[0]))
            .collect()
    }

    /// Kills a waypoint's process (SIGKILL), from inside its pod.
    fn kill_waypoint(&self, pod: &str) {
        let kill = "for process in /proc/[0-9]*; do \
                    grep -qz \"^AMBIT_POD_UID=$AMBIT_POD_UID$\" $process/environ 2>/dev/null \
                    && case $(readlink $process/exe) in *ambit-waypoint) kill -9 ${process#/proc/};; esac; done; true";
        self.mesh.run(pod, &["sh", "-c", kill]);
    }

    /// Kills the worker process of a waypoint (SIGKILL), but not its supervisor, which holds the sockets.
    fn kill_worker(&self, pod: &str) {
        let kill = "for process in /proc/[0-9]*; do \
                    grep -qz \"^AMBIT_POD_UID=$AMBIT_POD_UID$\" $process/environ 2>/dev/null || continue; \
                    case $(readlink $process/exe) in *ambit-waypoint) ;; *) continue;; esac; \
                    parent=$(grep ^PPid: $process/status | tr -dc 0-9); \
                    case $(readlink /proc/$parent/exe) in *ambit-waypoint) kill -9 ${process#/proc/} && echo killed;; esac; \
                    done; true";
        let output = self.mesh.run(pod, &["sh", "-c", kill]);
        assert_eq!(output.matches("killed").count(), 1, "{output}");
    }

    /// Returns the captured flows to the pod's application or node proxy.
    fn flows_to_pod(&self, capture: Capture) -> Vec<FlowReport> {
        let reports = capture.finish().reports();
        let to_pod = reports.into_iter().filter(|report| {
            report.server.ip() == self.server && [PORT, 15008].contains(&report.server.port())
        });
        to_pod.collect()
    }
}

/// Load of sequential requests of both clients to both addresses, until stopped.
struct RequestLoad<'a> {
    fixture: &'a FaultFixture,
    progress: Progress,
}

impl RequestLoad<'_> {
    fn run(&self, client: &str) {
        let targets = [FaultFixture::service(), self.fixture.pod()];
        for target in targets.iter().cycle() {
            if self.progress.is_stopped() {
                return;
            }
            if self.fixture.ask(client, *target, "load").is_some() {
                self.progress.count_response();
            }
        }
    }
}

#[test]
fn no_request_bypasses_the_waypoint_whatever_dies() {
    let two = GATEWAY.replace(
        "{name: waypoint, namespace: shop}",
        "{name: waypoint, namespace: shop, annotations: {ambit.io/waypoint-replicas: '2'}}",
    );
    let scene = FaultFixture::new(&format!("{CLIENT_AND_SERVER}\n---{two}{SERVICE}"));
    let waypoints = scene.waypoints();
    let [first, second] = waypoints.as_slice() else {
        panic!("two waypoints, not {waypoints:?}")
    };
    let is_of_waypoint = |ip: &IpAddr| *ip == first.1 || *ip == second.1;
    let called_by_waypoint = |answer: &str| {
        waypoints
            .iter()
            .any(|(_, ip)| answer.contains(&format!("called by {ip}\n")))
    };
    for client in ["shop/client", "legacy/client"] {
        for to in [FaultFixture::service(), scene.pod()] {
            wait_until("requests go through a waypoint", || {
                scene
                    .ask(client, to, "before")
                    .is_some_and(|answer| called_by_waypoint(&answer))
            });
        }
    }
    let before = scene.heads.recorded().len();
    let mesh = &scene.mesh;
    let on_wire = mesh.capture_in(LabNetns::Node("node-2".into()), &[]);
    let in_pod = mesh.capture_in(LabNetns::Pod("shop/server".into()), &[]);
    let load = RequestLoad {
        fixture: &scene,
        progress: Progress::default(),
    };
    std::thread::scope(|scope| {
        let _stop = load.progress.stop_at_end();
        for client in ["shop/client", "legacy/client"] {
            let load = &load;
            scope.spawn(move || load.run(client));
        }
        load.progress.wait_for_additional(4);
        scene.kill_waypoint(&first.0);
        scene.wait_until_all_respond("after one waypoint was killed");
        scene.kill_waypoint(&first.0);
        scene.kill_waypoint(&second.0);
        scene.wait_until_all_respond("after all waypoints were killed");
        for node in ["node-1", "node-2"] {
            mesh.kill("proxy", Some(node));
            scene.wait_until_all_respond(&format!("after the node proxy of {node} was killed"));
        }
        // The pod that must serve alone has the state of the mesh again.
        wait_until("the second waypoint serves", || {
            let answer = scene.ask("shop/client", FaultFixture::service(), "both");
            answer.is_some_and(|answer| answer.contains(&format!("called by {}\n", second.1)))
        });
        {
            let _away = mesh.suspend("control", None);
            load.progress.wait_for_additional(4);
            scene.kill_waypoint(&first.0);
            // The other pod still serves; the one killed with its supervisor cannot report
            // anything.
            load.progress.wait_for_additional(4);
        }
        mesh.kill("control", None);
        scene.wait_until_all_respond("after the control plane came back");
        scene.kill_waypoint(&second.0);
        scene.wait_until_all_respond("after another waypoint was killed");
    });
    let on_wire = scene.flows_to_pod(on_wire);
    assert!(!on_wire.is_empty());
    for report in &on_wire {
        // Connections from outside of the mesh are plaintext, and the pod's proxy redirects them to
        // the waypoint.
        let from_outside =
            report.client == mesh.ip("legacy/client") && report.server.port() == PORT;
        let from_waypoint = is_of_waypoint(&report.client) && report.server.port() == 15008;
        assert!(from_outside || from_waypoint, "{report:?}");
    }
    let in_pod = scene.flows_to_pod(in_pod);
    let to_application: Vec<_> = in_pod
        .iter()
        .filter(|report| is_of_waypoint(&report.client))
        .collect();
    assert!(
        to_application
            .iter()
            .any(|report| report.server.port() == PORT),
        "{in_pod:#?}"
    );
    for report in &in_pod {
        let own = is_of_waypoint(&report.client);
        assert!(
            own || report.client == mesh.ip("legacy/client"),
            "{report:?}"
        );
    }
    let heads = scene.heads.recorded();
    assert!(heads.len() > before);
    for head in &heads[before..] {
        for made in ["x-request-id: ", "traceparent: ", "x-forwarded-for: "] {
            assert!(head.contains(made), "{head}");
        }
    }
}

#[test]
fn killed_parts_continue_from_known_state() {
    let scene = FaultFixture::new(&format!("{CLIENT_AND_SERVER}\n---{GATEWAY}{SERVICE}"));
    scene.wait_until_all_respond("at first");
    let [waypoint] = scene.waypoints().try_into().unwrap();
    let called_by_waypoint = format!("called by {}\n", waypoint.1);
    for client in ["shop/client", "legacy/client"] {
        wait_until("requests go through the waypoint", || {
            let answer = scene.ask(client, scene.pod(), "before");
            answer.is_some_and(|answer| answer.contains(&called_by_waypoint))
        });
    }
    let away = scene.mesh.suspend("control", None);
    scene.kill_worker(&waypoint.0);
    scene.wait_until_all_respond("after the waypoint's worker was killed");
    for node in ["node-1", "node-2"] {
        scene.mesh.kill("proxy-worker", Some(node));
        scene.wait_until_all_respond(&format!("after the worker of {node}'s proxy was killed"));
    }
    for client in ["shop/client", "legacy/client"] {
        let answer = scene.ask(client, scene.pod(), "after").unwrap();
        assert!(answer.contains(&called_by_waypoint), "{answer}");
    }
    // Later changes are applied: the service loses its endpoint. (If two files define an object,
    // the first by name applies.)
    drop(away);
    let of_nobody = SERVICE.replace("app: server", "app: nobody");
    scene.mesh.apply("app", &of_nobody);
    wait_until("the waypoint finds no endpoint of the service", || {
        scene
            .ask("shop/client", FaultFixture::service(), "gone")
            .is_none()
    });
    scene.mesh.remove("app");
    scene.wait_until_all_respond("after the service has its endpoint again");
}

/// Checks that the packet capture of the first test detects direct requests: here, a mesh without a Gateway sends them.
#[test]
fn without_a_gateway_the_same_capture_sees_direct_requests() {
    let scene = FaultFixture::new(&format!("{CLIENT_AND_SERVER}{SERVICE}"));
    scene.wait_until_all_respond("at first");
    let client = scene.mesh.ip("shop/client");
    wait_until("the client's proxy knows the pod as captured", || {
        let on_wire = scene.mesh.capture_in(LabNetns::Node("node-2".into()), &[]);
        let in_pod = scene
            .mesh
            .capture_in(LabNetns::Pod("shop/server".into()), &[]);
        let answer = scene.ask("shop/client", scene.pod(), "direct");
        let (on_wire, in_pod) = (scene.flows_to_pod(on_wire), scene.flows_to_pod(in_pod));
        let saw = |reports: &[FlowReport], port: u16| {
            reports
                .iter()
                .any(|report| report.client == client && report.server.port() == port)
        };
        answer.is_some() && saw(&in_pod, PORT) && (saw(&on_wire, 15008) || saw(&in_pod, 15008))
    });
    let heads = scene.heads.recorded();
    assert!(!heads.last().unwrap().contains("x-request-id"));
}
