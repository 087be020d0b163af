//! Tests the waypoint's executable as its own supervisor: lifetimes of both processes, exit codes, and new connections.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use ambit_model::Identity;
use ambit_netlab::Host;
use ambit_testkit::{
    ISTIO_CSR_NAME, IstioCsr, OTLP_VARIABLES, OtlpCollector, Pki, SpiffeAgent, wait_until,
    wait_until_blocking,
};
use rustix::process::{Pid, Signal, kill_process};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ambit-waypoint"));
    command
        .args(["proxy", "waypoint"])
        .env_clear()
        .stdin(Stdio::null());
    command
}

/// Running supervisor with its worker, in a separate network namespace. The control plane is unavailable.
struct RunningSupervisor {
    host: Host,
    supervisor: Child,
}

impl RunningSupervisor {
    async fn start() -> Self {
        let host = Host::new("waypoint").await.unwrap();
        Self::start_on(host, &[])
    }

    fn start_on(host: Host, more: &[(&str, &str)]) -> Self {
        let mut command = program();
        command
            .envs([
                ("POD_NAME", "waypoint-1"),
                ("POD_NAMESPACE", "shop"),
                ("SERVICE_ACCOUNT", "waypoint"),
                ("GATEWAY_NAME", "waypoint"),
                ("XDS_ADDRESS", "https://127.0.0.1:1"),
                ("CA_ADDRESS", "https://127.0.0.1:1"),
                ("AMBIT_WAYPOINT_LINGER", "1ms"),
            ])
            .envs(more.iter().copied())
            .stdout(Stdio::null());
        let supervisor = host.run(|| command.spawn()).unwrap().unwrap();
        let running = Self { host, supervisor };
        wait_until_blocking("it listens", || running.connect().is_ok());
        // This port is opened last.
        wait_until_blocking("it serves", || running.try_connect(15021).is_ok());
        running
    }

    fn try_connect(&self, port: u16) -> std::io::Result<TcpStream> {
        self.host
            .run(|| TcpStream::connect(("127.0.0.1", port)))
            .unwrap()
    }

    /// Opens a TCP connection to the waypoint as clients do.
    fn connect(&self) -> std::io::Result<TcpStream> {
        self.try_connect(15008)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.supervisor)
    }

    fn worker(&self) -> Option<Pid> {
        let pid = self.supervisor.id();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(path).ok()?;
        Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
    }
}

impl Drop for RunningSupervisor {
    fn drop(&mut self) {
        // The test has ended the process already.
        let _ended = self.supervisor.kill();
        let _reaped = self.supervisor.wait();
    }
}

/// Whether a process has ended; it may still be a zombie.
fn has_exited(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    !stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn invalid_configuration_ends_the_process_once() {
    let output = program().output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(message.matches("POD_NAME").count(), 1, "{message}");
}

#[tokio::test]
async fn no_connection_is_refused_while_workers_are_killed() {
    let running = RunningSupervisor::start().await;
    let (over, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (opening, over, opened) = (&running, &over, &opened);
        let clients = scope.spawn(move || {
            while !over.load(Relaxed) {
                opening.connect().expect("nobody is refused");
                opened.fetch_add(1, Relaxed);
            }
        });
        let go_on = |from: usize| {
            wait_until_blocking("openings go on", || {
                clients.is_finished() || opened.load(Relaxed) > from + 20
            });
        };
        for _ in 0..3 {
            go_on(opened.load(Relaxed));
            let worker = running.worker().unwrap();
            kill_process(worker, Signal::KILL).unwrap();
            go_on(opened.load(Relaxed));
            wait_until_blocking("another worker serves", || {
                running.worker().is_some_and(|next| next != worker)
                    && running.try_connect(15021).is_ok()
            });
        }
        over.store(true, Relaxed);
    });
}

#[tokio::test]
async fn termination_is_passed_on_and_closes_the_listeners() {
    let mut running = RunningSupervisor::start().await;
    let worker = running.worker().unwrap();
    kill_process(running.pid(), Signal::TERM).unwrap();
    assert_eq!(running.supervisor.wait().unwrap().code(), Some(0));
    assert!(has_exited(worker));
    assert!(running.connect().is_err());
}

#[tokio::test]
async fn worker_ends_with_its_supervisor() {
    let mut running = RunningSupervisor::start().await;
    let worker = running.worker().unwrap();
    kill_process(running.pid(), Signal::KILL).unwrap();
    let _killed = running.supervisor.wait().unwrap();
    wait_until_blocking("the worker is gone", || has_exited(worker));
}

#[tokio::test]
async fn metrics_and_logs_reach_an_opentelemetry_collector() {
    let host = Host::new("waypoint").await.unwrap();
    let collector = host.run(OtlpCollector::start).unwrap().unwrap();
    let running = RunningSupervisor::start_on(host, &OTLP_VARIABLES);
    collector.wait_until_exported("ambit-waypoint", "istio_build", "serving");
    collector.wait_until_exported("shop.waypoint-1", "process_open_fds", "gateway");
    drop(running);
}

/// Requests a page of the waypoint's process with the host name `name`, and returns the HTTP status.
fn request_status(
    running: &RunningSupervisor,
    port: u16,
    method: &str,
    path: &str,
    name: &str,
) -> u16 {
    let answer = request_text(running, port, method, path, name);
    let status = answer.split(' ').nth(1).unwrap_or_default();
    status.parse().unwrap()
}

/// Requests a page of the waypoint's process with the host name `name`, and returns the response as text.
fn request_text(
    running: &RunningSupervisor,
    port: u16,
    method: &str,
    path: &str,
    name: &str,
) -> String {
    let mut stream = running.try_connect(port).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {name}\r\nAuthorization: Bearer any\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test]
async fn dumps_and_log_levels_are_for_the_pod_only() {
    let running = RunningSupervisor::start().await;
    let pages = [
        ("GET", "/config_dump"),
        ("GET", "/workload_state"),
        ("GET", "/logging"),
        ("POST", "/logging?level=trace"),
        ("POST", "/quitquitquit"),
        ("GET", "/"),
    ];
    // The port on the pod's address serves none of these pages.
    for port in [15020, 15021] {
        for (method, path) in pages {
            let answered = request_status(&running, port, method, path, "localhost");
            assert_eq!(answered, 404, "{port} {method} {path}");
        }
    }
    assert_eq!(
        request_status(&running, 15020, "GET", "/stats/prometheus", "any"),
        200
    );
    // The admin port is on loopback, and rejects host names of web pages.
    let listening = running
        .host
        .run(|| std::fs::read_to_string("/proc/thread-self/net/tcp"));
    let listening = listening.unwrap().unwrap();
    let admin = format!(":{:04X}", 15000);
    let mut addresses = listening
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    let admin = addresses.find(|address| address.ends_with(&admin));
    assert_eq!(admin, Some("0100007F:3A98"));
    for (method, path) in pages {
        for name in ["waypoint.shop.svc", "10.0.0.3", "attacker.example:15000"] {
            let answered = request_status(&running, 15000, method, path, name);
            assert_eq!(answered, 403, "{method} {path} of {name}");
        }
    }
    assert_eq!(
        request_status(&running, 15000, "GET", "/config_dump", "localhost:15000"),
        200
    );
}

/// Checks that a waypoint gets its certificate from `CA_ADDRESS`, while the control plane is unavailable.
#[tokio::test]
async fn certificates_come_from_the_ca_at_ca_address() {
    let host = Host::new("waypoint").await.unwrap();
    let own = Identity::new("cluster.local", "shop", "waypoint");
    let listener = host.run(|| std::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let csr = IstioCsr::start_on(listener, &[("token-of-waypoint", &own)], &[]);
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (roots, token) = (path("root-cert.pem"), path("token"));
    // The control plane's root comes first, as in istio-ca-root-cert.
    let text = Pki::new().root_pem() + csr.root_pem();
    std::fs::write(&roots, text).unwrap();
    std::fs::write(&token, "token-of-waypoint").unwrap();
    let address = format!("https://{}", csr.address);
    let variables = [
        ("CA_ADDRESS", address.as_str()),
        ("ALT_CA_HOSTNAME", ISTIO_CSR_NAME),
        ("CA_ROOT_CA", &roots),
        ("AUTH_TOKEN", &token),
    ];
    let running = RunningSupervisor::start_on(host, &variables);

    wait_until("the waypoint has a certificate", || {
        !csr.issued().is_empty()
    })
    .await;
    assert_eq!(csr.issued(), std::slice::from_ref(&own));
    wait_until("the certificate is used", || {
        let dump = request_text(&running, 15000, "GET", "/config_dump", "localhost");
        let dump = dump.replace(char::is_whitespace, "");
        dump.contains(&own.to_string()) && dump.contains("\"state\":\"Available\"")
    })
    .await;
}

/// Checks that a waypoint gets its certificate from a SPIFFE agent (Workload API), while CA and control plane are
/// unavailable.
#[tokio::test]
async fn certificates_come_from_the_spiffe_workload_api() {
    let host = Host::new("waypoint").await.unwrap();
    let own = Identity::new("cluster.local", "shop", "waypoint");
    let (agent, pki) = (SpiffeAgent::start(), Pki::new());
    let socket = agent.workload_socket();
    let running = RunningSupervisor::start_on(host, &[("SPIFFE_ENDPOINT_SOCKET", &socket)]);
    let dump = || request_text(&running, 15000, "GET", "/config_dump", "localhost");
    wait_until("the missing entry is reported", || {
        dump().contains("no identity issued; create a registration entry")
    })
    .await;
    let svid = pki.svid(&own, Duration::from_secs(3600));
    let key = ambit_tls::pem::encode_pem("KEY", &svid.key);
    let key = key.lines().nth(1).unwrap().to_owned();
    agent.change(|entries| {
        let domain = "cluster.local".to_owned();
        entries.bundles.insert(domain, pki.bundle());
        entries.workload_svids = vec![svid];
    });
    wait_until("the certificate is used", || {
        let dump = dump().replace(char::is_whitespace, "");
        dump.contains(&own.to_string()) && dump.contains("\"state\":\"Available\"")
    })
    .await;
    assert!(!dump().contains(&key), "the dump has the key");
}
