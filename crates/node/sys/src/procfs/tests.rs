//! Tests the search with real processes in real namespaces, listed in a fake `/proc`.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::*;

/// Process in a network namespace of its own, whose loopback interface has `address`.
struct Pod(Child);

impl Pod {
    fn start(uid: &str, address: &str) -> Self {
        let script =
            format!("ip link set lo up && ip addr add {address}/32 dev lo && exec sleep 60");
        let child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--net", "sh", "-c", &script])
            .env("TEST_POD_UID", uid)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pod = Self(child);
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::read_to_string(format!("/proc/{}/comm", pod.pid())).unwrap() != "sleep\n" {
            assert!(
                Instant::now() < deadline,
                "the pod's process does not come up"
            );
            std::thread::yield_now();
        }
        pod
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn target(uid: &str, addresses: &[&str]) -> PodTarget {
    let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
    PodTarget {
        uid: uid.to_owned(),
        cgroup_alias: None,
        addresses,
    }
}

fn environ_attribution() -> Attribution {
    Attribution::Environ("TEST_POD_UID".to_owned())
}

/// Fake `/proc` with selected real processes, each with a cgroup file of the test.
struct FakeProc(tempfile::TempDir);

impl FakeProc {
    fn new() -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        fake.add(1, std::process::id(), "0::/\n", 0);
        fake
    }

    fn add(&self, pid: u32, real: u32, cgroup: &str, started: u64) {
        let dir = self.0.path().join(pid.to_string());
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::symlink(format!("/proc/{real}/ns"), dir.join("ns")).unwrap();
        fs::write(dir.join("cgroup"), cgroup).unwrap();
        let zeros = "0 ".repeat(18);
        fs::write(
            dir.join("stat"),
            format!("{pid} (a) b)) S {zeros}{started} 0 0\n"),
        )
        .unwrap();
    }

    fn discover(&self, targets: &[PodTarget]) -> DiscoveredPods {
        discover(self.0.path(), &Attribution::Cgroup, targets).unwrap()
    }
}

const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";

fn cgroup() -> String {
    format!("0::/kubepods/burstable/pod{UID}/abc\n")
}

fn netns_of(pod: &Pod) -> Netns {
    Netns::open(format!("/proc/{}/ns/net", pod.pid())).unwrap()
}

#[test]
fn a_running_pod_is_found_by_its_variable_and_address() {
    let pod = Pod::start("uid-a", "10.9.8.7");
    let found = discover(
        Path::new("/proc"),
        &environ_attribution(),
        &[
            target("uid-a", &["fd00::1", "10.9.8.7"]),
            target("uid-b", &["10.9.8.7"]),
        ],
    )
    .unwrap()
    .namespaces;
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        [("uid-a".to_owned(), netns_of(&pod))]
    );
}

#[test]
fn a_namespace_without_the_pods_address_is_refused() {
    let _pod = Pod::start("uid-c", "10.9.8.6");
    let result = discover(
        Path::new("/proc"),
        &environ_attribution(),
        &[target("uid-c", &["10.9.8.5"])],
    )
    .unwrap();
    assert!(result.namespaces.is_empty());
    // The pod may have started another process.
    let mut rejected = result.rejected.iter();
    assert!(rejected.len() > 0);
    assert!(rejected.all(|one| matches!(one.reason, RejectReason::ForeignNamespace)));
}

#[test]
fn a_pod_without_addresses_waits() {
    let _pod = Pod::start("uid-d", "10.9.8.4");
    let result = discover(
        Path::new("/proc"),
        &environ_attribution(),
        &[target("uid-d", &[])],
    )
    .unwrap();
    assert!(result.namespaces.is_empty());
    assert!(matches!(
        result.rejected[..],
        [RejectedProcess {
            reason: RejectReason::NoAddresses,
            ..
        }]
    ));
}

/// Checks that a search that runs out of descriptors at any open is an error: a pod that is not found counts as not
/// running. Runs in a process of its own, since the limit is the process'.
#[test]
fn scan_that_runs_out_of_descriptors_is_an_error() {
    const PROC_VARIABLE: &str = "TEST_EXHAUSTED_PROC";
    if let Some(proc) = std::env::var_os(PROC_VARIABLE) {
        let limit = rustix::process::Rlimit {
            current: Some(64),
            maximum: Some(64),
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        let find = || {
            discover(
                Path::new(&proc),
                &Attribution::Cgroup,
                &[target(UID, &["10.9.8.2"])],
            )
        };
        let mut held: Vec<_> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
        let mut failed = 0;
        while let Err(error) = find() {
            assert!(is_exhaustion(&error), "{error:?}");
            failed += 1;
            held.pop().expect("with enough descriptors it is found");
        }
        assert!(failed > 2, "only {failed} of its opens were tried");
        assert_eq!(find().unwrap().namespaces.len(), 1);
        return;
    }
    let pod = Pod::start("", "10.9.8.2");
    let fake = FakeProc::new();
    fake.add(10, pod.pid(), &cgroup(), 1);
    let name = std::thread::current().name().unwrap().to_owned();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(PROC_VARIABLE, fake.0.path())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{output}");
    assert!(output.contains("1 passed"), "{output}");
}

#[test]
fn the_oldest_process_wins() {
    let (old, new) = (Pod::start("", "10.9.8.3"), Pod::start("", "10.9.8.3"));
    for (first, second) in [(10, 20), (20, 10)] {
        let proc = FakeProc::new();
        proc.add(20, old.pid(), &cgroup(), first);
        proc.add(30, new.pid(), &cgroup(), second);
        let found = proc.discover(&[target(UID, &["10.9.8.3"])]).namespaces;
        let expected = if first < second { &old } else { &new };
        assert_eq!(found[UID], netns_of(expected));
    }
}

#[test]
fn a_foreign_process_does_not_hide_the_rightful_owner() {
    let (owner, foreign) = (Pod::start("", "10.9.8.2"), Pod::start("", "10.9.8.1"));
    let proc = FakeProc::new();
    proc.add(20, foreign.pid(), &cgroup(), 1);
    proc.add(30, owner.pid(), &cgroup(), 2);
    let result = proc.discover(&[target(UID, &["::ffff:10.9.8.2"])]);
    assert_eq!(result.namespaces[UID], netns_of(&owner));
    assert_eq!(result.rejected.len(), 1);
}

#[test]
fn the_nodes_namespace_is_never_a_pods() {
    let proc = FakeProc::new();
    proc.add(20, std::process::id(), &cgroup(), 1);
    let result = proc.discover(&[target(UID, &["127.0.0.1"])]);
    assert!(result.namespaces.is_empty());
    assert!(matches!(
        result.rejected[..],
        [RejectedProcess {
            reason: RejectReason::NodeNamespace,
            ..
        }]
    ));
}

#[test]
fn a_static_pod_is_found_by_its_configuration_hash() {
    let pod = Pod::start("", "10.9.7.9");
    let proc = FakeProc::new();
    proc.add(20, pod.pid(), &cgroup(), 1);
    let mut sought = target("mirror-uid", &["10.9.7.9"]);
    sought.cgroup_alias = Some(UID.to_owned());
    assert!(
        proc.discover(&[sought])
            .namespaces
            .contains_key("mirror-uid")
    );
}

#[test]
fn malformed_processes_are_skipped() {
    let proc = FakeProc::new();
    fs::create_dir(proc.0.path().join("20")).unwrap();
    fs::create_dir(proc.0.path().join("self")).unwrap();
    proc.add(30, std::process::id(), "garbage", 1);
    assert!(
        proc.discover(&[target(UID, &["10.0.0.1"])])
            .namespaces
            .is_empty()
    );
    assert_eq!(start_time("1 (x) S"), None);
    assert_eq!(start_time(""), None);
}

#[test]
fn a_variable_is_matched_whole() {
    let environ = b"XTEST=1\0TEST_X=2\0TEST=\0TEST=3\0";
    assert_eq!(environ_variable(environ, "TEST"), Some("3".to_owned()));
    assert_eq!(environ_variable(environ, "ABSENT"), None);
}
