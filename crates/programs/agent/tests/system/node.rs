//! Node of network namespaces for tests, with the agent's executable and pods.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use ambit_netlab::{Link, Namespace, connect_by_veth};
use ambit_netplan::{HostSpec, ProbePorts, RedirectionSpec};
use ambit_sys::redirection;
pub use ambit_testkit::wait_until_blocking as until;

static NUMBER: AtomicU32 = AtomicU32::new(0);

pub struct Node {
    pub namespace: Namespace,
    pub dir: tempfile::TempDir,
    agent: Option<Child>,
    args: Vec<String>,
    /// Environment variables of the agent besides those of the test.
    pub env: Vec<(&'static str, &'static str)>,
}

pub struct Pod {
    pub name: String,
    pub uid: String,
    pub ip: String,
    pub namespace: Namespace,
}

impl Node {
    pub fn new() -> Self {
        let namespace = Namespace::new("node", &[]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for sub in ["manifests", "status", "run"] {
            fs::create_dir(dir.path().join(sub)).unwrap();
        }
        Self {
            namespace,
            dir,
            agent: None,
            args: Vec::new(),
            env: Vec::new(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn zds_socket(&self) -> PathBuf {
        self.path("zds.sock")
    }

    /// Starts an agent that reads manifests, with the further arguments `more`, and waits until it is ready.
    pub fn start_agent(&mut self, more: &[&str]) {
        self.args = more.iter().map(|arg| (*arg).to_owned()).collect();
        let text = |name: &str| self.path(name).to_str().unwrap().to_owned();
        let (manifests, status) = (text("manifests"), text("status"));
        let args = [
            "--manifests",
            &manifests,
            "--manifests",
            &status,
            "--status-dir",
            &status,
        ];
        self.start_agent_with(&[&args, more].concat(), "127.0.0.1:8000");
    }

    /// Starts an agent with these arguments, and waits until it is ready.
    pub fn start_agent_with(&mut self, args: &[&str], health: &str) {
        let text = |name: &str| self.path(name).to_str().unwrap().to_owned();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ambit-agent"));
        command
            .args(["--node", "n1", "--discover", "environ"])
            .args(["--run-dir", &text("run")])
            .args(["--zds-socket", &text("zds.sock")])
            .args(args)
            .env("RUST_LOG", "info")
            .envs(self.env.iter().copied())
            .stdin(Stdio::null())
            .stdout(
                fs::File::options()
                    .append(true)
                    .create(true)
                    .open(self.path("log"))
                    .unwrap(),
            );
        self.agent = Some(self.namespace.spawn(&mut command).unwrap());
        until("the agent is ready", || {
            self.http_get(health, "/readyz").0 == 200
        });
    }

    /// Returns the running agent and forgets it, so that another can be started.
    pub fn take_agent(&mut self) -> Child {
        self.agent.take().unwrap()
    }

    /// Kills the agent with SIGKILL.
    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    pub fn restart_agent(&mut self) {
        let args = std::mem::take(&mut self.args);
        self.start_agent(&args.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Terminates the agent with SIGTERM; returns whether its exit code is 0.
    pub fn stop_agent(&mut self) -> bool {
        Self::terminate(self.take_agent())
    }

    pub fn terminate(mut agent: Child) -> bool {
        let pid = rustix::process::Pid::from_child(&agent);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        agent.wait().unwrap().success()
    }

    /// Sends a GET request over TCP within the node; returns status 0 without a response.
    pub fn http_get(&self, address: &str, path: &str) -> (u16, String) {
        let stream = self
            .namespace
            .run_inside(|| std::net::TcpStream::connect(address))
            .unwrap();
        stream.map_or((0, String::new()), |stream| {
            exchange_http(
                stream,
                &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
            )
        })
    }

    /// Sends a request to the agent's socket for the CNI plugin.
    pub fn plugin_request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let stream = UnixStream::connect(self.path("run/pluginevent.sock")).unwrap();
        let length = body.len();
        exchange_http(
            stream,
            &format!(
                "{method} {path} HTTP/1.1\r\nHost: unix\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            ),
        )
    }

    pub fn post_cmdadd(&self, pod: &Pod) -> (u16, String) {
        let body = format!(
            r#"{{"Netns":"{}","PodName":"{}","PodNamespace":"shop","IPs":[{{"Interface":null,"Address":{{"IP":"{}","Mask":"////AA=="}},"Gateway":""}}]}}"#,
            pod.namespace.path(),
            pod.name,
            pod.ip
        );
        self.plugin_request("POST", "/cmdadd", &body)
    }

    /// Writes the manifest of the namespace `shop`, with or without the label that makes its pods mesh pods.
    pub fn label_namespace(&self, ambient: bool) {
        let labels = if ambient {
            "{istio.io/dataplane-mode: ambient}"
        } else {
            "{}"
        };
        let text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {labels}}}\n"
        );
        self.write_manifest("shop.yaml", &text);
    }

    pub fn write_manifest(&self, name: &str, text: &str) {
        let temporary = self.path("manifests").join(format!("{name}.tmp"));
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.path("manifests").join(name)).unwrap();
    }

    /// Creates a pod's network namespace and connects it to the node, without publishing the pod.
    pub fn create_pod_network(&self, name: &str) -> Pod {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        // Uids must be this run's own: /proc shows the whole machine.
        let uid = format!("uid-{}-{number}", std::process::id());
        let (ip, veth) = (format!("10.7.{number}.2"), format!("veth{number}"));
        let namespace = Namespace::new(name, &[("AMBIT_POD_UID", &uid)]).unwrap();
        connect_by_veth(
            Link {
                namespace: &self.namespace,
                interface: &veth,
                addresses: &[&format!("10.7.{number}.1/24")],
            },
            Link {
                namespace: &namespace,
                interface: "eth0",
                addresses: &[&format!("{ip}/24")],
            },
        )
        .unwrap();
        Pod {
            name: name.to_owned(),
            uid,
            ip,
            namespace,
        }
    }

    /// Writes the pod's manifest; with the pod's address if it is running.
    pub fn publish_pod(&self, pod: &Pod, running: bool, labels: &BTreeMap<&str, &str>) {
        let Pod { name, uid, ip, .. } = pod;
        let labels: String = labels
            .iter()
            .map(|(k, v)| format!("    {k}: {v}\n"))
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("  labels:\n{labels}")
        };
        let status = if running {
            format!("status:\n  phase: Running\n  podIPs: [{{ip: {ip}}}]\n")
        } else {
            String::new()
        };
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: shop\n  uid: {uid}\n\
             {labels}spec: {{nodeName: n1, serviceAccountName: sa, containers: [{{name: main, readinessProbe: {{tcpSocket: {{port: 8080}}}}}}]}}\n{status}"
        );
        self.write_manifest(&format!("pod-{name}.yaml"), &text);
    }

    pub fn running_pod(&self, name: &str) -> Pod {
        let pod = self.create_pod_network(name);
        self.publish_pod(&pod, true, &BTreeMap::new());
        pod
    }

    pub fn remove_pod_manifest(&self, pod: &Pod) {
        fs::remove_file(
            self.path("manifests")
                .join(format!("pod-{}.yaml", pod.name)),
        )
        .unwrap();
    }

    /// Returns the value of the pod's status annotation, if any.
    pub fn status(&self, pod: &Pod) -> Option<String> {
        let text =
            fs::read_to_string(self.path("status").join(format!("shop.{}.yaml", pod.name))).ok()?;
        let value = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("ambient.istio.io/redirection: "));
        value.map(str::to_owned)
    }

    /// Returns the addresses of the pods whose probes the node exempts.
    pub fn exempt_addresses(&self) -> Vec<String> {
        let members = redirection::host::members(self.namespace.netns(), &HostSpec::default());
        members
            .unwrap()
            .into_iter()
            .map(|member| member.ip.to_string())
            .collect()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().ok();
            agent.wait().ok();
        }
        if std::thread::panicking() {
            eprintln!(
                "node: nsenter --net=/proc/{}/ns/net\n{}",
                self.namespace.pid(),
                self.log()
            );
        }
    }
}

impl Pod {
    /// Whether the pod's redirection is exactly the desired one.
    pub fn is_redirected(&self) -> bool {
        let usual = RedirectionSpec {
            dns_capture: true,
            probe_interfaces: vec!["eth0".to_owned()],
            probe_ports: ProbePorts::Only(vec![8080]),
            ..RedirectionSpec::default()
        };
        redirection::observe(self.namespace.netns(), &usual)
            .unwrap()
            .is_empty()
    }

    /// Returns the pod's nftables rules as text.
    pub fn rules(&self) -> String {
        let output = self.namespace.run("nft", ["list", "ruleset"]).unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

fn exchange_http(mut stream: impl std::io::Read + std::io::Write, request: &str) -> (u16, String) {
    // A server that refuses early may close before it has read everything.
    stream.write_all(request.as_bytes()).ok();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or(0);
    let body = text
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned())
        .unwrap_or_default();
    (status, body)
}
