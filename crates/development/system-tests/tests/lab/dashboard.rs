//! Tests of `ambit dashboard` in a real Chromium, driven by scripts in `web/test`: over a lab, and
//! over a mesh of a thousand workloads that a mock server describes. With `AMBIT_IMAGES=DIRECTORY`
//! they save screenshots there.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use ambit_system_tests::{Mesh, with_waypoint};

/// Policy at the waypoint that denies requests from outside the mesh.
const POLICY: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-legacy, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules: [{from: [{source: {notNamespaces: [shop]}}]}]
";

/// Route that splits requests to `server` with another pod.
const SPLIT_ROUTE: &str = "
---
apiVersion: v1
kind: Pod
metadata: {name: server-v2, namespace: shop, labels: {app: server-v2}}
spec:
  nodeName: node-1
  serviceAccountName: server
  containers:
  - name: web
    image: none
    command: [$LAB_TOOL, serve, --port, '8080', --name, server-v2]
    readinessProbe: {tcpSocket: {port: 8080}}
---
apiVersion: v1
kind: Service
metadata: {name: server-v2, namespace: shop}
spec:
  selector: {app: server-v2}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: split, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: server}]
  rules:
  - backendRefs: [{name: server, port: 80, weight: 3}, {name: server-v2, port: 80, weight: 1}]
";

fn web_test_directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../web")
}

/// Returns a command that runs a script in `web/test`.
fn script_command(name: &str, argument: &str) -> Command {
    let mut node = Command::new("node");
    node.arg(format!("test/{name}.mjs"))
        .arg(argument)
        .args(std::env::var_os("AMBIT_IMAGES"))
        .current_dir(web_test_directory());
    node
}

/// Process that is killed when the test ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

#[test]
fn page_shows_a_thousand_workloads_and_hostile_names() {
    let bundle = web_test_directory().join("../crates/programs/cli/src/dashboard/bundle");
    let status = script_command("large", bundle.to_str().unwrap())
        .status()
        .unwrap();
    assert!(status.success(), "the script failed: {status}");
}

#[test]
fn page_shows_a_lab_and_rejects_other_origins() {
    let (mesh, _) = with_waypoint(SPLIT_ROUTE);
    let (mut dashboard, url) = start_dashboard(&mesh);
    let mut driver = script_command("lab", &url);
    driver.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut driver = Process(driver.spawn().unwrap());
    let mut answers = driver.0.stdin.take().unwrap();
    for line in BufReader::new(driver.0.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        println!("{line}");
        let Some(action) = line.strip_prefix("do ") else {
            continue;
        };
        perform_action(&mesh, action, &mut dashboard);
        answers.write_all(b"done\n").unwrap();
    }
    let status = driver.0.wait().unwrap();
    assert!(status.success(), "the script failed: {status}");
}

/// Starts a dashboard over a lab; returns it with its address.
fn start_dashboard(mesh: &Mesh) -> (Process, String) {
    let mut dashboard = mesh.command(&["dashboard", "--no-open"]);
    let mut dashboard = Process(dashboard.stdout(Stdio::piped()).spawn().unwrap());
    let output = dashboard.0.stdout.take().unwrap();
    let line = BufReader::new(output).lines().next().unwrap().unwrap();
    let url = line.strip_prefix("dashboard: ").unwrap().to_owned();
    (dashboard, url)
}

/// Performs an action in the mesh that the script requests.
fn perform_action(mesh: &Mesh, action: &str, dashboard: &mut Process) {
    let direct = format!("http://{}:8080/", mesh.ip("shop/server"));
    match action {
        "traffic" => {
            for _ in 0..20 {
                mesh.get("shop/client", "http://server.shop/orders").ok();
                mesh.get("legacy/client", &direct);
            }
        }
        "policy" => {
            mesh.apply("policy", POLICY);
            ambit_system_tests::wait_until("the policy is enforced", || {
                !mesh.get("legacy/client", &direct).succeeded()
            });
        }
        "denial" => assert!(!mesh.get("legacy/client", &direct).succeeded()),
        "hang" | "resume" => {
            for node in ["node-1", "node-2"] {
                let hangs = action == "hang";
                mesh.client()
                    .set_suspended("proxy", Some(node), hangs)
                    .unwrap();
            }
        }
        "end" => dashboard.0.kill().unwrap(),
        _ => panic!("what is {action:?}?"),
    }
}
