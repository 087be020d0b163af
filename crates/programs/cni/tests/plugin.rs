//! Tests the plugin's executable, called as by a container runtime, with scripted agents.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy knows helpers of unit tests only"
)]

mod common;

use std::{
    collections::VecDeque,
    fs,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use common::wait_until_asleep;

const VERSIONS: [&str; 7] = [
    "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
];

/// Request that the scripted agent received.
#[derive(Clone, Debug)]
struct ReceivedRequest {
    line: String,
    body: String,
}

/// Reaction of the scripted agent to a request.
#[derive(Clone, Debug)]
enum AgentReaction {
    Response(u16, &'static str),
    /// Closes the connection without a response, like a killed agent.
    HangUp,
    /// Sends a byte of an endless response now and then.
    SlowEndlessResponse,
}

/// Scripted agent: reacts by one entry of the script to each request, and repeats the last one.
struct FakeAgent {
    dir: tempfile::TempDir,
    received_requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

fn member_response() -> AgentReaction {
    AgentReaction::Response(200, r#"{"mesh":true}"#)
}

fn outsider_response() -> AgentReaction {
    AgentReaction::Response(200, r#"{"mesh":false}"#)
}

impl FakeAgent {
    fn absent() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            received_requests: Arc::default(),
        }
    }

    fn with_script(script: impl IntoIterator<Item = AgentReaction>) -> Self {
        let agent = Self::absent();
        agent.start_listening(script);
        agent
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("pluginevent.sock")
    }

    fn start_listening(&self, script: impl IntoIterator<Item = AgentReaction>) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let seen = Arc::clone(&self.received_requests);
        let mut script: VecDeque<_> = script.into_iter().collect();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let does = if script.len() > 1 {
                    script.pop_front()
                } else {
                    script.front().cloned()
                };
                serve(stream.unwrap(), does.unwrap(), &seen);
            }
        });
    }

    fn received_requests(&self) -> Vec<ReceivedRequest> {
        self.received_requests.lock().unwrap().clone()
    }

    fn config(&self, version: &str) -> Value {
        json!({
            "cniVersion": version,
            "name": "k8s-pod-network",
            "type": "ambit-cni",
            "cni_agent_run_dir": self.dir.path(),
            "ambient_enabled": true,
            "pod_namespace": "istio-system",
            "exclude_namespaces": ["kube-system"],
            "agent_wait_seconds": 20,
            "plugin_log_level": "info",
            "enablement_selectors": [],
        })
    }
}

fn serve(mut stream: UnixStream, does: AgentReaction, seen: &Mutex<Vec<ReceivedRequest>>) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    let (head, body) = loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "))
                .map_or(0, |length| length.parse::<usize>().unwrap());
            if body.len() == length {
                break (head.to_owned(), body.to_owned());
            }
        }
        match stream.read(&mut buffer).unwrap() {
            0 => return,
            read => bytes.extend(&buffer[..read]),
        }
    };
    let line = head.lines().next().unwrap().to_owned();
    seen.lock().unwrap().push(ReceivedRequest { line, body });
    match does {
        AgentReaction::Response(status, body) => {
            let length = body.len();
            let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
        AgentReaction::HangUp => {}
        AgentReaction::SlowEndlessResponse => {
            let pause = Duration::from_millis(50);
            stream.set_read_timeout(Some(pause)).unwrap();
            // Until the plugin times out.
            while stream.write_all(b"H").is_ok() && stream.read(&mut [0]).is_err() {}
        }
    }
}

fn command(name: &str, config: &Value) -> Child {
    command_for(
        name,
        config,
        "K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop;K8S_POD_UID=u-1",
    )
}

fn command_for(name: &str, config: &Value, args: &str) -> Child {
    start(name, config.to_string().as_bytes(), args, |_| {})
}

fn start(name: &str, stdin: &[u8], args: &str, change: impl FnOnce(&mut Command)) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ambit-cni"));
    command
        .env_clear()
        .env("CNI_COMMAND", name)
        .env("CNI_CONTAINERID", "c0ffee")
        .env("CNI_NETNS", "/var/run/netns/cni-1")
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", "/opt/cni/bin")
        .env("CNI_ARGS", args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    change(&mut command);
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin).unwrap();
    child
}

/// Waits for a successful run of the plugin, and returns its standard output.
fn output_of_success(child: Child) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    let stdout = String::from_utf8(stdout).unwrap();
    assert!(
        status.success(),
        "{stdout} {}",
        String::from_utf8_lossy(&stderr)
    );
    stdout
}

/// Waits for a failed run of the plugin, and returns its error in CNI's format.
fn error_of_failure(child: Child) -> Value {
    let Output { status, stdout, .. } = child.wait_with_output().unwrap();
    assert_eq!(status.code(), Some(1));
    let error: Value = serde_json::from_slice(&stdout).unwrap();
    assert!(
        error["msg"].is_string() && error["cniVersion"].is_string(),
        "{error}"
    );
    error
}

fn result_of(version: &str) -> Value {
    match version {
        "0.1.0" | "0.2.0" => json!({"cniVersion": version, "ip4": {"ip": "10.0.0.5/24"}}),
        "1.0.0" | "1.1.0" => json!({
            "cniVersion": version,
            "interfaces": [{"name": "eth0", "mtu": 1450, "sandbox": "/x"}],
            "ips": [{"address": "10.0.0.5/24", "gateway": "10.0.0.1", "interface": 0},
                    {"address": "fd00::5/64"}],
            "routes": [{"dst": "0.0.0.0/0", "priority": 100}],
            "dns": {},
            "of-the-future": [1.50, null],
        }),
        _ => json!({"cniVersion": version, "ips": [{"version": "4", "address": "10.0.0.5/24"}]}),
    }
}

#[test]
fn mesh_pod_is_posted_and_result_passed_on_in_all_versions() {
    for version in VERSIONS {
        let agent = FakeAgent::with_script([member_response(), AgentReaction::Response(200, "")]);
        let mut config = agent.config(version);
        config["prevResult"] = result_of(version);
        let stdout = output_of_success(command("ADD", &config));
        let printed: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(printed, result_of(version), "{version}");
        let seen = agent.received_requests();
        assert_eq!(
            seen[0].line,
            "GET /v1/membership?namespace=shop&pod=web&uid=u-1 HTTP/1.1"
        );
        assert_eq!(seen[1].line, "POST /cmdadd HTTP/1.1");
        let event: Value = serde_json::from_str(&seen[1].body).unwrap();
        assert_eq!(event["Netns"], "/var/run/netns/cni-1");
        assert_eq!(event["PodName"], "web");
        assert_eq!(event["PodNamespace"], "shop");
        assert_eq!(event["PodUID"], "u-1");
        assert_eq!(
            event["IPs"][0]["Address"],
            json!({"IP": "10.0.0.5", "Mask": "////AA=="})
        );
    }
}

#[test]
fn previous_result_is_printed_byte_for_byte() {
    let agent = FakeAgent::with_script([outsider_response()]);
    let result = "{ \"ips\" :[], \"cniVersion\":\"1.0.0\",\"x\":1.500}";
    let config = agent.config("1.0.0").to_string();
    let config = format!(
        "{},\"prevResult\":{result}}}",
        config.strip_suffix('}').unwrap()
    );
    let args = "K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop";
    let stdout = output_of_success(start("ADD", config.as_bytes(), args, |_| {}));
    assert_eq!(stdout, format!("{result}\n"));
}

#[test]
fn without_a_previous_result_an_empty_one_is_printed() {
    let agent = FakeAgent::with_script([member_response(), AgentReaction::Response(200, "")]);
    let stdout = output_of_success(command("ADD", &agent.config("0.4.0")));
    assert_eq!(stdout, "{\"cniVersion\":\"0.4.0\",\"dns\":{}}\n");
    let event: Value = serde_json::from_str(&agent.received_requests()[1].body).unwrap();
    assert_eq!(event["IPs"], Value::Null);
}

#[test]
fn pods_outside_the_mesh_are_never_posted() {
    let agent = FakeAgent::with_script([outsider_response()]);
    output_of_success(command("ADD", &agent.config("1.0.0")));
    assert_eq!(agent.received_requests().len(), 1);
}

#[test]
fn some_pods_start_without_an_agent() {
    let agent = FakeAgent::absent();
    let config = agent.config("1.0.0");
    for args in [
        "K8S_POD_NAME=web;K8S_POD_NAMESPACE=kube-system",
        "K8S_POD_NAME=istio-cni-node-x;K8S_POD_NAMESPACE=istio-system",
        "K8S_POD_NAME=ambit-agent-x;K8S_POD_NAMESPACE=istio-system",
        "IgnoreUnknown=1",
        "",
    ] {
        output_of_success(command_for("ADD", &config, args));
    }
    let mut off = config;
    off["ambient_enabled"] = json!(false);
    output_of_success(command("ADD", &off));
}

#[test]
fn agent_failure_fails_the_pod_with_its_cause() {
    let agent = FakeAgent::with_script([
        member_response(),
        AgentReaction::Response(500, "pod shop/web: no such module xt_mark\n"),
    ]);
    let error = error_of_failure(command("ADD", &agent.config("1.0.0")));
    assert_eq!(
        (error["code"].as_u64(), error["cniVersion"].as_str()),
        (Some(999), Some("1.0.0"))
    );
    let details = error["details"].as_str().unwrap();
    assert!(
        error["msg"].as_str().unwrap().contains("shop/web"),
        "{error}"
    );
    assert!(
        details.contains("500") && details.contains("no such module xt_mark"),
        "{error}"
    );
    assert_eq!(
        agent.received_requests().len(),
        2,
        "not tried again: the runtime does that"
    );
}

#[test]
fn retry_after_of_the_agent_is_honoured() {
    let agent = FakeAgent::with_script([
        AgentReaction::Response(503, "starting"),
        member_response(),
        AgentReaction::Response(503, "no node proxy is connected"),
        AgentReaction::HangUp,
        AgentReaction::Response(200, ""),
    ]);
    output_of_success(command("ADD", &agent.config("1.0.0")));
    assert_eq!(agent.received_requests().len(), 5);
}

#[test]
fn mesh_pod_waits_for_an_unavailable_agent() {
    let agent = FakeAgent::absent();
    fs::write(
        agent.dir.path().join("membership.json"),
        r#"{"version":1,"namespaces":{"shop":true}}"#,
    )
    .unwrap();
    let mut child = command("ADD", &agent.config("1.0.0"));
    // The plugin has started, and sleeps between attempts.
    wait_until_asleep(child.id());
    assert!(child.try_wait().unwrap().is_none());
    agent.start_listening([member_response(), AgentReaction::Response(200, "")]);
    output_of_success(child);
}

#[test]
fn agent_that_stays_unavailable_fails_the_pod() {
    for membership in [
        None,
        Some(r#"{"version":1,"namespaces":{"shop":true}}"#),
        Some("{"),
    ] {
        let agent = FakeAgent::absent();
        if let Some(text) = membership {
            fs::write(agent.dir.path().join("membership.json"), text).unwrap();
        }
        // A socket without a listener, as after `kill -9`.
        drop(UnixListener::bind(agent.socket()).unwrap());
        let mut config = agent.config("1.1.0");
        config["agent_wait_seconds"] = json!(0);
        let error = error_of_failure(command("ADD", &config));
        assert_eq!(error["code"], 11);
        assert!(
            error["msg"].as_str().unwrap().contains("shop/web"),
            "{error}"
        );
        assert!(
            error["details"].as_str().unwrap().contains("ambit-agent"),
            "{error}"
        );
    }
}

/// Fills the accept queue of the agent's socket with connections.
fn fill_accept_queue(agent: &FakeAgent) -> Vec<rustix::fd::OwnedFd> {
    let mut waiting = Vec::new();
    let full = loop {
        let address = rustix::net::SocketAddrUnix::new(agent.socket()).unwrap();
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let family = rustix::net::AddressFamily::UNIX;
        let stream = rustix::net::SocketType::STREAM;
        let socket = rustix::net::socket_with(family, stream, flags, None).unwrap();
        match rustix::net::connect(&socket, &address) {
            Ok(()) => waiting.push(socket),
            Err(error) => break error,
        }
    };
    assert_eq!(full, rustix::io::Errno::AGAIN);
    waiting
}

#[test]
fn hanging_agent_is_timed_out() {
    let agent = FakeAgent::absent();
    // The backlog is full, and no connection is accepted.
    let _hung = UnixListener::bind(agent.socket()).unwrap();
    let waiting = fill_accept_queue(&agent);
    let mut config = agent.config("1.0.0");
    config["agent_wait_seconds"] = json!(0);
    assert_eq!(error_of_failure(command("ADD", &config))["code"], 11);
    // With room in the backlog, there is no response.
    drop(waiting);
    let agent = FakeAgent::absent();
    let _hung = UnixListener::bind(agent.socket()).unwrap();
    let mut config = agent.config("1.0.0");
    config["agent_wait_seconds"] = json!(0);
    assert_eq!(error_of_failure(command("ADD", &config))["code"], 11);
    let agent = FakeAgent::with_script([AgentReaction::SlowEndlessResponse]);
    let mut config = agent.config("1.0.0");
    config["agent_wait_seconds"] = json!(0);
    assert_eq!(error_of_failure(command("ADD", &config))["code"], 11);
}

/// Checks that a pod recorded as outside of the mesh waits half a second for an unavailable agent, and not
/// `agent_wait_seconds` like other pods.
fn assert_starts_outside_mesh(agent: &FakeAgent) {
    let text = r#"{"version":1,"namespaces":{"shop":false}}"#;
    fs::write(agent.dir.path().join("membership.json"), text).unwrap();
    let started = Instant::now();
    output_of_success(command("ADD", &agent.config("1.0.0")));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn outside_pods_do_not_wait_for_the_agent() {
    // Agent that is not running.
    assert_starts_outside_mesh(&FakeAgent::absent());
    // Stopped agent: connections are queued, but not accepted.
    let agent = FakeAgent::absent();
    let _hung = UnixListener::bind(agent.socket()).unwrap();
    assert_starts_outside_mesh(&agent);
    // Stopped agent with a full backlog.
    let _waiting = fill_accept_queue(&agent);
    assert_starts_outside_mesh(&agent);
    for does in [
        AgentReaction::HangUp,
        AgentReaction::SlowEndlessResponse,
        AgentReaction::Response(503, "not yet"),
    ] {
        assert_starts_outside_mesh(&FakeAgent::with_script([does]));
    }
    let log = fs::read_to_string(agent.dir.path().join("ambit-cni.log")).unwrap();
    assert!(
        log.contains("starts outside the mesh, as recorded"),
        "{log}"
    );
}

#[test]
fn possible_mesh_pods_wait_for_a_hanging_agent() {
    for record in [r#"{"shop":true}"#, r#"{"other":false}"#] {
        let agent = FakeAgent::with_script([AgentReaction::SlowEndlessResponse]);
        let text = format!(r#"{{"version":1,"namespaces":{record}}}"#);
        fs::write(agent.dir.path().join("membership.json"), text).unwrap();
        let mut config = agent.config("1.0.0");
        config["agent_wait_seconds"] = json!(1);
        assert_eq!(
            error_of_failure(command("ADD", &config))["code"],
            11,
            "{record}"
        );
    }
}

#[test]
fn agent_without_membership_api_is_replaced_by_the_file() {
    let file = |mesh: bool| format!(r#"{{"version":1,"namespaces":{{"shop":{mesh}}}}}"#);
    let agent = FakeAgent::with_script([
        AgentReaction::Response(404, "404 page not found\n"),
        AgentReaction::Response(200, ""),
    ]);
    fs::write(agent.dir.path().join("membership.json"), file(true)).unwrap();
    output_of_success(command("ADD", &agent.config("1.0.0")));
    assert_eq!(agent.received_requests().len(), 2);
    let agent = FakeAgent::with_script([AgentReaction::Response(404, "")]);
    fs::write(agent.dir.path().join("membership.json"), file(false)).unwrap();
    output_of_success(command("ADD", &agent.config("1.0.0")));
    let agent = FakeAgent::with_script([AgentReaction::Response(404, "")]);
    let error = error_of_failure(command("ADD", &agent.config("1.0.0")));
    assert!(
        error["details"]
            .as_str()
            .unwrap()
            .contains("membership.json"),
        "{error}"
    );
}

#[test]
fn version_lists_supported_versions() {
    let stdout = output_of_success(command("VERSION", &json!({"cniVersion": "0.4.0"})));
    let printed: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        printed,
        json!({"cniVersion": "0.4.0", "supportedVersions": VERSIONS})
    );
    // Runtimes that send nothing get a response, too.
    output_of_success(start("VERSION", b"", "", |_| {}));
}

#[test]
fn other_commands_do_nothing_if_the_version_has_them() {
    let agent = FakeAgent::absent();
    for (command_name, since) in [("DEL", 0), ("CHECK", 4), ("STATUS", 6), ("GC", 6)] {
        for (index, version) in VERSIONS.iter().enumerate() {
            let child = command(command_name, &agent.config(version));
            if index >= since {
                assert_eq!(output_of_success(child), "", "{command_name} {version}");
            } else {
                let error = error_of_failure(child);
                assert_eq!(error["code"], 1, "{command_name} {version}");
            }
        }
    }
}

#[test]
fn deleting_never_fails() {
    for stdin in ["", "junk", r#"{"cniVersion":"9.9.9"}"#] {
        assert_eq!(
            output_of_success(start("DEL", stdin.as_bytes(), "", |c| {
                c.env_remove("CNI_NETNS");
            })),
            ""
        );
    }
}

#[test]
fn invalid_stdin_is_an_error_with_its_code() {
    for (stdin, code) in [
        ("", 6),
        ("junk", 6),
        ("[]", 6),
        (r#"{"cniVersion":5}"#, 6),
        (r#"{"cniVersion":"9.9.9"}"#, 1),
        (r#"{"cniVersion":"1.0.0","agent_wait_seconds":-1}"#, 6),
        (r#"{"cniVersion":"1.0.0","prevResult":[1]}"#, 6),
        (
            r#"{"cniVersion":"1.0.0","prevResult":{"cniVersion":"8"}}"#,
            1,
        ),
        (
            r#"{"cniVersion":"1.0.0","prevResult":{"cniVersion":"0.2.0"}}"#,
            1,
        ),
    ] {
        let error = error_of_failure(start("ADD", stdin.as_bytes(), "", |_| {}));
        assert_eq!(error["code"], code, "{stdin}: {error}");
    }
    let mut deep = "[".repeat(100_000);
    deep.insert_str(0, r#"{"cniVersion":"1.0.0","prevResult":"#);
    assert_eq!(
        error_of_failure(start("ADD", deep.as_bytes(), "", |_| {}))["code"],
        6
    );
}

#[test]
fn result_without_valid_addresses_fails_only_mesh_pods() {
    for (membership, code) in [(member_response(), Some(6)), (outsider_response(), None)] {
        let agent = FakeAgent::with_script([membership, AgentReaction::Response(200, "")]);
        let mut config = agent.config("1.0.0");
        config["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": "nowhere"}]});
        match code {
            Some(code) => assert_eq!(error_of_failure(command("ADD", &config))["code"], code),
            None => drop(output_of_success(command("ADD", &config))),
        }
    }
}

#[test]
fn missing_or_invalid_variables_are_named() {
    let config = FakeAgent::absent().config("1.1.0").to_string();
    for (name, value) in [
        ("CNI_CONTAINERID", None),
        ("CNI_NETNS", None),
        ("CNI_IFNAME", None),
        ("CNI_PATH", None),
        ("CNI_CONTAINERID", Some("../x")),
        ("CNI_IFNAME", Some("a/b")),
        ("CNI_IFNAME", Some("sixteen-letters-")),
    ] {
        let error = error_of_failure(start("ADD", config.as_bytes(), "", |command| {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }));
        assert_eq!(error["code"], 4);
        assert!(error["msg"].as_str().unwrap().contains(name), "{error}");
    }
    let error = error_of_failure(start("PAINT", config.as_bytes(), "", |_| {}));
    assert!(error["msg"].as_str().unwrap().contains("PAINT"));
}
