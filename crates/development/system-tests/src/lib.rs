//! Lab for a test: the real binaries over a directory of manifests that the test may change.
//!
//! Every method panics with the condition that it waited for and the state of the mesh: this crate is for tests only.
#![forbid(unsafe_code)]
#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking"
)]

mod app;
mod connection_attempts;
mod east_west;
mod flows;
mod peer;
mod waypoints;

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

pub use ambit_lab::LAB_TOOL;
use ambit_lab::count_denials;
pub use ambit_lab::{
    Capture, Client, ExpectedOutcome, FlowKind, FlowReport, GetOutcome, IpFamily, LabNetns,
    LogSource, Options, PodStatus, PrimaryCni, Replacement, Status, Traffic,
};
pub use ambit_testkit::built_binary;

pub use app::{RecordedHeads, RecordedRequests, answer_ok, read_head};
pub use connection_attempts::ConnectionAttempts;
pub use east_west::through_gateway;
pub use flows::FlowsCommand;
pub use peer::{HbonePeer, TunnelOutcome};
pub use waypoints::{
    GATEWAY, idle_pod, is_complete_response, wait_until_via_waypoint, with_gateway, with_waypoint,
    with_waypoint_options,
};

/// Timeout of every operation, long enough for a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Two pods in the mesh on different nodes (`client` on node-1, `server` on node-2) with a Service
/// `server`, and one outside of the mesh on each node (`legacy/client`, `legacy/server`).
pub const CLIENT_AND_SERVER: &str = include_str!("pair.yaml");

/// Lab of real binaries, which is removed at the end of the test.
#[derive(Debug)]
pub struct Mesh {
    client: Client,
    manifests: tempfile::TempDir,
    base: tempfile::TempDir,
}

/// Returns the default options of a test's lab: two nodes, IPv4, the mesh, and waypoints that attach to Services at
/// once, so that no request of a test bypasses them.
pub fn options() -> Options {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let ambit = built_binary("ambit");
    Options {
        name: format!("test-{}-{number}", std::process::id()),
        manifests: PathBuf::new(),
        nodes: 2,
        ip_family: IpFamily::Ipv4,
        node_proxies: Default::default(),
        bin_dir: ambit
            .parent()
            .expect("the binaries are in a directory")
            .to_path_buf(),
        ambit,
        mesh: true,
        requires_waypoint: true,
        primary_cni: PrimaryCni::Lab,
        cni_dir: "/usr/lib/cni".into(),
        user_namespace: false,
        env: [("AMBIT_WAYPOINT_BINDING".to_owned(), "strict".to_owned())].into(),
    }
}

/// Sets the backend that all tests shall use, if the lab names none.
fn set_backend(options: &mut Options) {
    let Some(backend) = ambit_testkit::redirection_backend() else {
        return;
    };
    let setting = options.env.entry("REDIRECTION_BACKEND".into());
    setting.or_insert(backend);
}

impl Mesh {
    /// Starts a lab of two nodes with these manifests; returns when all pods are ready, and mesh pods captured.
    pub fn up(manifests: &str) -> Self {
        Self::up_with(manifests, options())
    }

    /// Starts a lab like [`Self::up`], with other options.
    pub fn up_with(manifests: &str, mut options: Options) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the manifests");
        fs::write(
            directory.path().join("manifests.yaml"),
            with_lab_tool_path(manifests),
        )
        .unwrap();
        options.manifests = directory.path().to_path_buf();
        set_backend(&mut options);
        let base = tempfile::tempdir().expect("a directory for the lab");
        let state = ambit_lab::launch(base.path(), &options)
            .unwrap_or_else(|error| panic!("the lab does not come up: {error:?}"));
        let mesh = Self {
            client: Client::new(state),
            manifests: directory,
            base,
        };
        mesh.wait_for_status("all pods ready", |status| {
            !status.pods.is_empty() && status.pods.iter().all(|pod| pod.ready)
        });
        mesh
    }

    /// Returns the directory of the lab's state.
    fn directory(&self) -> &Path {
        self.base.path()
    }

    /// Returns the client of the lab's API.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Writes or replaces a manifest file, which the lab follows.
    pub fn apply(&self, file: &str, manifests: &str) {
        // Renamed into place, as editors and kubectl-like tools do.
        let scratch = self.manifests.path().join(format!(".{file}.new"));
        fs::write(&scratch, with_lab_tool_path(manifests)).unwrap();
        fs::rename(scratch, self.manifests.path().join(format!("{file}.yaml"))).unwrap();
    }

    /// Removes a manifest file.
    pub fn remove(&self, file: &str) {
        fs::remove_file(self.manifests.path().join(format!("{file}.yaml"))).unwrap();
    }

    /// Sets a namespace's label `istio.io/dataplane-mode`.
    pub fn label(&self, namespace: &str, mode: &str) {
        self.apply(
            &format!("label-{namespace}"),
            &format!(
                "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {namespace}\n  \
                 labels: {{istio.io/dataplane-mode: {mode}}}\n"
            ),
        );
    }

    /// Waits until the lab's status satisfies `condition`, and returns the status.
    pub fn wait_for_status(&self, what: &str, condition: impl FnMut(&Status) -> bool) -> Status {
        match self
            .client
            .wait_until(TIMEOUT, condition)
            .expect("the lab answers")
        {
            Ok(status) => status,
            Err(status) => panic!(
                "not within {TIMEOUT:?}: {what}\n{status:#?}\n{}",
                self.logs()
            ),
        }
    }

    /// Waits until a pod is captured (`captured`), or is no longer captured.
    pub fn wait_until_captured(&self, pod: &str, captured: bool) {
        self.wait_for_status(&format!("{pod} captured: {captured}"), |status| {
            // The agent reports a new pod before the lab knows that its network is ready.
            let stands = |pod: &PodStatus| !captured || !pod.ips.is_empty();
            find_pod(status, pod).is_some_and(|pod| pod.captured == captured && stands(pod))
        });
    }

    /// Returns a pod's status.
    pub fn pod(&self, name: &str) -> PodStatus {
        let status = self.client.status().expect("the lab answers");
        find_pod(&status, name)
            .unwrap_or_else(|| panic!("no pod {name} in {status:#?}"))
            .clone()
    }

    /// Returns the first address of a node.
    pub fn node_ip(&self, name: &str) -> IpAddr {
        let status = self.client.status().expect("the lab answers");
        let node = status.nodes.iter().find(|node| node.name == name);
        *node
            .and_then(|node| node.ips.first())
            .unwrap_or_else(|| panic!("no address of {name} in {status:#?}"))
    }

    /// Returns the first address of a pod.
    pub fn ip(&self, pod: &str) -> IpAddr {
        *self
            .pod(pod)
            .ips
            .first()
            .expect("a running pod has an address")
    }

    /// Runs a program in a pod, which must succeed; returns its output.
    pub fn run(&self, pod: &str, command: &[&str]) -> String {
        let output = self
            .client
            .output(pod, command)
            .unwrap_or_else(|error| panic!("cannot run {command:?} in {pod}: {error}"));
        assert_eq!(output.code, 0, "{command:?} in {pod}: {output:?}");
        output.stdout
    }

    /// Runs `ambit` with these arguments for this lab, and returns its output.
    pub fn ambit(&self, args: &[&str]) -> CommandOutput {
        let output = self.command(args).output();
        let output = output.expect("the command line runs");
        CommandOutput {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        }
    }

    /// Returns a command that runs `ambit` with these arguments for this lab.
    pub fn command(&self, args: &[&str]) -> std::process::Command {
        let lab = self.client.status().expect("the lab answers").name;
        let mut command = std::process::Command::new(built_binary("ambit"));
        command
            .args(args)
            .env("AMBIT_LAB_DIR", self.base.path())
            .env("AMBIT_LAB", lab);
        command
    }

    /// Sends a `GET` from inside a pod, with the lab's own client.
    pub fn get(&self, pod: &str, url: &str) -> CommandResponse {
        let tool = built_binary(LAB_TOOL);
        let tool = tool.to_str().expect("a path in UTF-8");
        let output = self
            .client
            .output(pod, &[tool, "get", url, "--timeout", "5000"])
            .unwrap_or_else(|error| panic!("cannot run in {pod}: {error}"));
        CommandResponse {
            code: output.code,
            body: output.stdout + &output.stderr,
        }
    }

    /// Repeats [`Self::get`] until the result is as expected: `true` for a response, `false` for a denial by a policy,
    /// which must be in the access log. Any other failure panics.
    #[track_caller]
    pub fn wait_for_get<'a>(
        &self,
        pod: &str,
        url: &str,
        expected: impl Into<ExpectedOutcome<'a>>,
    ) -> CommandResponse {
        let expected = expected.into();
        let denials = || match expected {
            ExpectedOutcome::Denial(policy) => Some(count_denials(
                &self.access_log(),
                &self.pod(pod).ips,
                policy,
            )),
            ExpectedOutcome::Success | ExpectedOutcome::Failure(_) => None,
        };
        let before = denials();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let answer = self.get(pod, url);
            // Logs are written after the response: the next attempt may find the line.
            if expected.matches(answer.get_outcome()) && (before.is_none() || denials() > before) {
                return answer;
            }
            assert!(
                Instant::now() < deadline,
                "{pod} -> {url} never came to {expected:?}: {answer:?}\n{}",
                self.logs()
            );
        }
    }

    /// Opens a TCP connection from inside a pod. Reading fails after ten seconds without data.
    pub fn dial(&self, pod: &str, address: SocketAddr) -> std::io::Result<EchoConnection> {
        self.dial_from(LabNetns::Pod(pod.to_owned()), address)
    }

    /// Opens a TCP connection from any network namespace of the lab.
    pub fn dial_from(
        &self,
        place: LabNetns,
        address: SocketAddr,
    ) -> std::io::Result<EchoConnection> {
        let stream = self
            .client
            .dial(place, address)
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        EchoConnection::from_stream(stream)
    }

    /// Returns the first address of a service, found by the beginning of its host name, with a port. Waits until the
    /// proxy of the first node knows the service.
    pub fn service_address(&self, host: &str, port: u16) -> SocketAddr {
        let mut address = None;
        wait_until(&format!("the service {host} is known"), || {
            address = self.known_service(host);
            address.is_some()
        });
        SocketAddr::new(address.expect("known"), port)
    }

    fn known_service(&self, host: &str) -> Option<IpAddr> {
        let dump = self.proxy_dump("node-1");
        let services = dump.pointer("/services").and_then(|all| all.as_array());
        let named = |service: &&serde_json::Value| {
            let name = service.pointer("/hostname").and_then(|name| name.as_str());
            name.is_some_and(|name| name.starts_with(host))
        };
        let mut vips = services
            .into_iter()
            .flatten()
            .filter(named)
            .filter_map(|one| one.pointer("/vips/0")?.as_str());
        vips.next()
            .and_then(|vip| vip.trim_start_matches('/').parse().ok())
    }

    /// Captures the packets between the nodes, and searches them for markers that must not be readable.
    pub fn capture_between_nodes(&self, markers: &[&str]) -> Capture {
        self.capture_in(LabNetns::Fabric, markers)
    }

    /// Captures the packets in a network namespace (a node's with all its pods, or a pod's with its loopback), and
    /// searches them for markers.
    pub fn capture_in(&self, place: LabNetns, markers: &[&str]) -> Capture {
        let markers = markers
            .iter()
            .map(|marker| marker.as_bytes().to_vec())
            .collect();
        self.client
            .capture(place, markers)
            .expect("a packet socket in the lab")
    }

    /// Kills a daemon of the mesh (SIGKILL), once it runs.
    pub fn kill(&self, name: &str, node: Option<&str>) {
        let daemon = name.trim_end_matches("-worker");
        self.wait_for_status(&format!("{name} of {node:?} runs"), |status| {
            status
                .daemons
                .iter()
                .any(|d| d.name == daemon && d.node.as_deref() == node && d.pid.is_some())
        });
        self.client
            .kill(name, node)
            .expect("a running process can be killed");
    }

    /// Suspends a daemon (SIGSTOP) until the value is dropped: the kernel still accepts connections to the daemon's
    /// sockets, but the daemon does not respond.
    #[must_use]
    pub fn suspend(&self, name: &'static str, node: Option<&'static str>) -> SuspendedDaemon<'_> {
        self.client
            .set_suspended(name, node, true)
            .expect("a running process can be stopped");
        let mesh = self;
        SuspendedDaemon { mesh, name, node }
    }

    /// Waits until a pod gets a response from an echo server.
    pub fn wait_until_echoed(&self, from: &str, address: SocketAddr) {
        wait_until(&format!("{address} answers {from}"), || {
            self.is_echoed(from, address)
        });
    }

    /// Returns whether a pod gets a response from an echo server.
    fn is_echoed(&self, from: &str, address: SocketAddr) -> bool {
        self.dial(from, address)
            .is_ok_and(|mut echo| echo.exchange_line("probe").is_ok())
    }

    /// Waits until new connections from a pod to the address carry only TLS. Capture takes effect at once, but each
    /// client's proxy must also have received that the server supports HBONE.
    pub fn wait_until_only_tls(&self, from: &str, address: SocketAddr) {
        wait_until(
            &format!("new connections from {from} to {address} are HBONE"),
            || {
                let wire = self.capture_between_nodes(&[]);
                let answered = self.is_echoed(from, address);
                let reports = wire.finish().reports();
                answered && !reports.iter().any(|report| report.server == address)
            },
        );
    }

    /// Returns the configuration dump of a node's node proxy.
    pub fn proxy_dump(&self, node: &str) -> serde_json::Value {
        let answer = self.get_from_proxy(node, 15000, "/config_dump");
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// Returns the metrics of a node's node proxy.
    pub fn proxy_metrics(&self, node: &str) -> String {
        self.get_from_proxy(node, 15020, "/metrics")
    }

    fn get_from_proxy(&self, node: &str, port: u16, path: &str) -> String {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let place = LabNetns::Node(node.to_owned());
        let mut stream = self.client.dial(place, address).unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        body.to_owned()
    }

    /// Waits until a node's node proxy has received from the control plane that a pod supports `protocol`.
    pub fn wait_until_protocol_known(&self, node: &str, pod: &str, protocol: &str) {
        let (namespace, name) = pod.split_once('/').expect("namespace/name");
        wait_until(&format!("{node}'s proxy knows {pod} by {protocol}"), || {
            let dump = self.proxy_dump(node);
            let workloads = dump.get("workloads").and_then(|all| all.as_array());
            let mut workloads = workloads.into_iter().flatten();
            workloads.any(|workload| {
                workload["namespace"] == namespace
                    && workload["name"] == name
                    && workload["protocol"] == protocol
            })
        });
    }

    /// Returns the access logs of all node proxies.
    pub fn access_log(&self) -> String {
        let log = LogSource::Daemon {
            name: "proxy".into(),
            node: None,
        };
        let text = self.client.log_text(log).expect("the proxies have a log");
        text.lines()
            .filter(|line| line.contains("\taccess\t"))
            .map(|l| format!("{l}\n"))
            .collect()
    }

    /// Returns the last log lines of all processes of the lab.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for name in ["control", "agent", "proxy"] {
            let source = LogSource::Daemon {
                name: name.into(),
                node: None,
            };
            let log = self
                .client
                .log_text(source)
                .unwrap_or_else(|error| error.to_string());
            let lines: Vec<_> = log.lines().collect();
            let tail = lines
                .get(lines.len().saturating_sub(30)..)
                .unwrap_or_default();
            text += &format!("--- {name}\n{}\n", tail.join("\n"));
        }
        text
    }
}

/// Exit code and output of a run of `ambit`.
#[derive(Debug)]
pub struct CommandOutput {
    /// Exit code of the program.
    pub code: i32,
    /// Text on standard output.
    pub stdout: String,
}

/// Suspended daemon of the lab, which resumes when this value is dropped.
#[derive(Debug)]
pub struct SuspendedDaemon<'a> {
    mesh: &'a Mesh,
    name: &'static str,
    node: Option<&'static str>,
}

impl Drop for SuspendedDaemon<'_> {
    fn drop(&mut self) {
        let Self { mesh, name, node } = self;
        if let Err(error) = mesh.client.set_suspended(name, *node, false) {
            eprintln!("{name} of {node:?} may still hang: {error}");
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        if let Err(error) = self.client.down() {
            eprintln!("the lab does not go down: {error}");
        }
    }
}

/// Exit code and output of a `GET` by curl.
#[derive(Debug)]
pub struct CommandResponse {
    /// Exit code of curl; 0 for success.
    pub code: i32,
    /// Output of curl: the response body.
    pub body: String,
}

impl CommandResponse {
    /// Returns whether the response status was 200.
    pub fn succeeded(&self) -> bool {
        self.code == 0
    }

    /// Returns the body; fails the test unless the request succeeded.
    #[track_caller]
    pub fn ok(&self) -> &str {
        assert!(self.succeeded(), "{self:?}");
        &self.body
    }

    /// Returns the outcome: the response, or the kind of failure.
    pub fn get_outcome(&self) -> GetOutcome {
        GetOutcome::from_exit_code(self.code)
    }

    /// Fails the test unless the connection was refused, reset or timed out: a DNS failure, an HTTP
    /// error or a client that does not run is not a refusal.
    #[track_caller]
    pub fn assert_refused(&self) {
        let refused = [GetOutcome::Refused, GetOutcome::TimedOut].contains(&self.get_outcome());
        assert!(refused || self.get_outcome().is_terminated(), "{self:?}");
    }

    /// Fails the test unless the connection was established and then reset, as the mesh does with
    /// denied connections.
    #[track_caller]
    pub fn assert_terminated(&self) {
        assert!(self.get_outcome().is_terminated(), "{self:?}");
    }
}

/// Connection to an echo server.
#[derive(Debug)]
pub struct EchoConnection(TcpStream);

impl EchoConnection {
    /// Wraps a connection that a test has opened. Reading fails after ten seconds without data.
    ///
    /// # Errors
    ///
    /// When the connection is closed already.
    pub fn from_stream(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self(stream))
    }

    /// Sends a line, and reads its echo.
    pub fn exchange_line(&mut self, text: &str) -> std::io::Result<()> {
        self.0.write_all(text.as_bytes())?;
        let mut received = vec![0; text.len()];
        self.0.read_exact(&mut received)?;
        if received == text.as_bytes() {
            Ok(())
        } else {
            Err(std::io::Error::other("a wrong echo"))
        }
    }

    /// Sends bytes, and returns the received text once the other side closes, or `enough` is true for the text.
    pub fn send_raw(
        &mut self,
        bytes: &[u8],
        enough: impl Fn(&str) -> bool,
    ) -> std::io::Result<String> {
        self.0.write_all(bytes)?;
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let text = String::from_utf8_lossy(&answer).into_owned();
            if enough(&text) {
                return Ok(text);
            }
            match self.0.read(&mut piece) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(0) => return Ok(text),
                Ok(read) => answer.extend_from_slice(piece.get(..read).unwrap_or_default()),
            }
        }
    }

    /// Waits until the other side has closed or reset the connection. A connection that stays open without data fails
    /// the test.
    #[track_caller]
    pub fn wait_until_closed(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        let error = loop {
            match self.exchange_line("still there?") {
                Ok(()) => assert!(Instant::now() < deadline, "the connection is still open"),
                Err(error) => break error,
            }
        };
        assert!(is_closed(&error), "the connection is not closed: {error}");
    }
}

/// Returns whether the error means that the connection was closed, reset or destroyed, rather than a read timeout.
pub fn is_closed(error: &std::io::Error) -> bool {
    let kinds = [
        ErrorKind::UnexpectedEof,
        ErrorKind::ConnectionReset,
        ErrorKind::ConnectionAborted,
        ErrorKind::BrokenPipe,
    ];
    kinds.contains(&error.kind())
}

/// Asserts that the packets between nodes contained neither plaintext of captured pods nor markers.
#[track_caller]
pub fn assert_only_tls(traffic: &Traffic, captured: &[IpAddr]) {
    let reports = traffic.reports();
    for report in &reports {
        let concerned = captured.contains(&report.client) && captured.contains(&report.server.ip());
        if concerned {
            assert_eq!(report.kind, FlowKind::Hbone, "{report:?} in {reports:#?}");
            assert_eq!(report.server.port(), 15008, "{report:?}");
            assert_eq!(report.clear_bytes, 0, "{report:?}");
        }
        assert!(!concerned || report.markers == 0, "readable: {report:?}");
    }
    assert!(
        reports
            .iter()
            .any(|report| report.kind == FlowKind::Hbone && report.bytes > 0),
        "nothing was captured: {reports:#?}"
    );
}

/// Finds the pod `namespace/name` in the lab's status; the name may be its Deployment's.
pub fn find_pod<'a>(status: &'a Status, name: &str) -> Option<&'a PodStatus> {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    status.pods.iter().find(|pod| {
        pod.namespace == namespace
            && (pod.name == name || pod.name.starts_with(&format!("{name}-")))
    })
}

/// Waits until `condition` holds; panics with `what` at the timeout.
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    ambit_testkit::wait_until_within(TIMEOUT, what, condition);
}

/// Replaces `$LAB_TOOL` in manifests by the path of the program that pods run.
fn with_lab_tool_path(manifests: &str) -> String {
    manifests.replace("$LAB_TOOL", &built_binary(LAB_TOOL).to_string_lossy())
}
