//! Tests the node proxy's executable as its own supervisor: lifetimes of both processes, and exit codes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
};

use ambit_netlab::Host;
use ambit_testkit::{OTLP_VARIABLES, OtlpCollector, wait_until};
use rustix::process::{Pid, Signal, kill_process};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ambit-node-proxy"));
    command
        .args(["proxy", "ztunnel"])
        .env_clear()
        .stdin(Stdio::null());
    command
}

/// Network namespace of a pod, and a directory that the pod's containers share.
struct Testbed {
    host: Host,
    directory: tempfile::TempDir,
}

impl Testbed {
    async fn new() -> Self {
        Self {
            host: Host::new("proxy").await.unwrap(),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// Starts a supervisor that may become active or standby of the pair, with its worker.
    fn start(&self) -> RunningSupervisor {
        self.start_with(&[])
    }

    fn start_with(&self, more: &[(&str, &str)]) -> RunningSupervisor {
        let mut command = program();
        command
            .env("LOCAL_XDS", "{}")
            .env("CA_ADDRESS", "https://127.0.0.1:1")
            .env("INPOD_UDS", self.directory.path().join("zds.sock"))
            .env("AMBIT_PAIR_UDS", self.start_pair())
            .envs(more.iter().copied())
            .stdout(Stdio::null());
        RunningSupervisor {
            supervisor: self.host.run(|| command.spawn()).unwrap().unwrap(),
        }
    }

    async fn start_serving(&self) -> RunningSupervisor {
        let running = self.start();
        running.wait_until_serving().await;
        running
    }

    fn start_pair(&self) -> std::path::PathBuf {
        self.directory.path().join("pair.sock")
    }

    /// Whether a standby supervisor is connected to the serving one.
    fn has_standby(&self) -> bool {
        let sockets = self
            .host
            .run(|| std::fs::read_to_string("/proc/thread-self/net/unix"));
        let sockets = sockets.unwrap().unwrap();
        let states = sockets.lines().filter_map(|line| {
            let mut words = line.split_whitespace().skip(5);
            let (state, _inode, path) = (words.next()?, words.next()?, words.next()?);
            // The socket is bound under another name first, which the kernel keeps.
            path.starts_with(self.start_pair().with_extension("").to_str()?)
                .then_some(state)
        });
        // unix(7): 01 listens, 03 is connected.
        states.filter(|state| *state == "03").count() > 0
    }
}

/// Running supervisor with its worker.
struct RunningSupervisor {
    supervisor: Child,
}

impl RunningSupervisor {
    async fn wait_until_serving(&self) {
        wait_until("the worker serves", || self.is_serving().unwrap_or(false)).await;
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.supervisor)
    }

    fn is_serving(&self) -> Option<bool> {
        let worker = self.worker()?;
        let path = format!("/proc/{}/net/tcp6", worker.as_raw_nonzero());
        // The readiness port, 15021, is opened last.
        Some(std::fs::read_to_string(path).ok()?.contains(":3AAD "))
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
    let output = program().env("PACKET_MARK", "x").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(message.matches("PACKET_MARK").count(), 1, "{message}");
}

#[tokio::test]
async fn metrics_and_logs_reach_an_opentelemetry_collector() {
    let testbed = Testbed::new().await;
    let collector = testbed.host.run(OtlpCollector::start).unwrap().unwrap();
    let running = testbed.start_with(&OTLP_VARIABLES);
    collector.wait_until_exported("ambit-node-proxy", "tokio_num_workers", "serving");
    drop(running);
}

#[tokio::test]
async fn killed_worker_is_replaced_and_its_exit_code_passed_on() {
    let testbed = Testbed::new().await;
    let mut running = testbed.start_serving().await;
    let first = running.worker().unwrap();
    kill_process(first, Signal::KILL).unwrap();
    let another = || running.worker().filter(|worker| *worker != first);
    wait_until("a second worker", || another().is_some()).await;
    let second = running.worker().unwrap();
    let supervisor = running.pid();
    kill_process(supervisor, Signal::KILL).unwrap();
    let status = running.supervisor.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));
    wait_until("the worker is gone", || has_exited(second)).await;
}

#[tokio::test]
async fn termination_is_passed_on_and_ends_with_the_workers_code() {
    let testbed = Testbed::new().await;
    let mut running = testbed.start_serving().await;
    let worker = running.worker().unwrap();
    kill_process(running.pid(), Signal::TERM).unwrap();
    assert_eq!(running.supervisor.wait().unwrap().code(), Some(0));
    assert!(has_exited(worker));
}

#[tokio::test]
async fn standby_takes_over_from_every_killed_supervisor() {
    let testbed = Testbed::new().await;
    let mut serving = testbed.start_serving().await;
    for _ in 0..3 {
        let standby = testbed.start();
        wait_until("it stands by", || testbed.has_standby()).await;
        assert_eq!(standby.worker(), None);
        kill_process(serving.pid(), Signal::KILL).unwrap();
        standby.wait_until_serving().await;
        serving = standby;
    }
}

#[tokio::test]
async fn standby_ends_when_terminated() {
    let testbed = Testbed::new().await;
    let _serving = testbed.start_serving().await;
    let mut standby = testbed.start();
    wait_until("it stands by", || testbed.has_standby()).await;
    kill_process(standby.pid(), Signal::TERM).unwrap();
    assert_eq!(standby.supervisor.wait().unwrap().code(), Some(0));
}
