//! Tests which pods the agent captures by BPF programs, and which by rules instead.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::{
    fs,
    net::TcpListener,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::symlink,
    },
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use ambit_agent::{
    actions::{Actions, KernelActions},
    capture::{BpfReadiness, CaptureMethod, CaptureTarget},
};
use ambit_bpf::{Pins, Role};
use ambit_netlab::Host;
use ambit_netplan::{Backend, RedirectionSpec};
use ambit_sys::{netns::Netns, procfs::Attribution, redirection::bpf::cookie_of};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";
const ACKNOWLEDGED: BpfReadiness = BpfReadiness::Prepared { acknowledged: true };

/// Node with one pod, whose cgroup is named as kubelet does.
struct Node {
    actions: KernelActions,
    pod: Host,
    cgroups: PathBuf,
    _proc: tempfile::TempDir,
    _bpffs: OwnedFd,
}

impl Node {
    async fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut mounts = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let root = mounts.find(|fields| fields[2] == "cgroup2").unwrap()[1].to_owned();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let cgroups =
            PathBuf::from(&root).join(format!("kubepods-test-{}-{number}", std::process::id()));
        fs::create_dir_all(cgroups.join(format!("pod{UID}"))).unwrap();
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("1/root/sys/fs")).unwrap();
        symlink(root, proc.path().join("1/root/sys/fs/cgroup")).unwrap();
        let context = fsopen("bpf", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        fsconfig_create(context.as_fd()).unwrap();
        let (flags, none) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
        let bpffs = fsmount(context.as_fd(), flags, none).unwrap();
        let pins = format!(
            "/proc/{}/fd/{}/ambit",
            std::process::id(),
            bpffs.as_raw_fd()
        );
        Self {
            actions: KernelActions {
                procfs: proc.path().to_owned(),
                attribution: Attribution::Cgroup,
                netns_prefix: PathBuf::new(),
                node_netns: Netns::current().unwrap(),
                host: None,
                kubelet_cgroup: None,
                pins: Pins::at(pins),
                refused: Default::default(),
            },
            pod: Host::new("pod").await.unwrap(),
            cgroups,
            _proc: proc,
            _bpffs: bpffs,
        }
    }

    fn target(&self, uid: &str) -> CaptureTarget {
        CaptureTarget {
            uid: uid.into(),
            cgroup_alias: None,
            netns: self.pod.netns().clone(),
        }
    }

    fn prepare(&self) {
        self.actions
            .prepare_bpf(&self.target(UID), &spec())
            .unwrap();
    }

    /// Enters listeners as the node proxy does.
    fn enter(&self, listeners: &[TcpListener; 2]) {
        let cookie = cookie_of(self.pod.netns()).unwrap();
        let mut map = self.actions.pins.of(cookie).listeners().unwrap();
        map.put(Role::Outbound, 0, &listeners[0]).unwrap();
        map.put(Role::Inbound, 0, &listeners[1]).unwrap();
        map.confirm().unwrap();
    }

    fn apply(&self, bpf: &BpfReadiness) -> CaptureMethod {
        let applied = self.actions.apply_rules(&self.target(UID), &spec(), bpf);
        applied.unwrap().method
    }

    fn rules(&self) -> String {
        let list = || Command::new("nft").args(["list", "ruleset"]).output();
        let output = self.pod.run(list).unwrap().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn assert_rules(&self, method: CaptureMethod, expected_reason: &str) {
        let CaptureMethod::RulesInsteadOfBpf(reason) = method else {
            panic!("{method:?}")
        };
        assert!(reason.contains(expected_reason), "{reason}");
        assert!(self.rules().contains("redirect to :15001"));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(10);
        let pod = self.cgroups.join(format!("pod{UID}"));
        while fs::remove_dir(&pod).is_err() && Instant::now() < until {
            std::thread::yield_now();
        }
        let _left = fs::remove_dir(&self.cgroups);
    }
}

fn spec() -> RedirectionSpec {
    RedirectionSpec {
        backend: Backend::Bpf,
        ..RedirectionSpec::default()
    }
}

#[tokio::test]
async fn programs_capture_where_they_can_and_rules_elsewhere() {
    let node = Node::new().await;
    let listen = |port| TcpListener::bind(("0.0.0.0", port)).unwrap();
    let listeners = [15001, 15006].map(|port| node.pod.run(|| listen(port)).unwrap());

    let refused = node.actions.prepare_bpf(&node.target("another"), &spec());
    let reason = refused.unwrap_err().to_string();
    assert!(reason.contains("no cgroup of version 2"), "{reason}");
    node.assert_rules(node.apply(&BpfReadiness::Impossible(reason)), "no cgroup");

    // A proxy of another version acknowledges without listeners.
    node.prepare();
    node.assert_rules(node.apply(&ACKNOWLEDGED), "has not entered its listeners");

    node.prepare();
    node.enter(&listeners);
    assert_eq!(node.apply(&ACKNOWLEDGED), CaptureMethod::Bpf);
    assert!(!node.rules().contains("redirect"));

    // Its proxy is away for a while: it stays captured, and refused.
    node.prepare();
    let silent = BpfReadiness::Prepared {
        acknowledged: false,
    };
    assert_eq!(node.apply(&silent), CaptureMethod::Bpf);
    assert!(!node.rules().contains("redirect"));

    // Another proxy has taken its place.
    node.prepare();
    node.assert_rules(node.apply(&ACKNOWLEDGED), "has not entered its listeners");

    let virtual_interface = RedirectionSpec {
        virtual_interfaces: vec!["docker0".to_owned()],
        ..spec()
    };
    let refused = node
        .actions
        .prepare_bpf(&node.target(UID), &virtual_interface);
    let reason = ambit_rt::ErrorChain(&refused.unwrap_err()).to_string();
    let expected = "capture of virtual interfaces is not possible";
    assert!(reason.contains(expected), "{reason}");

    assert_eq!(
        node.apply(&BpfReadiness::NotRequested),
        CaptureMethod::Rules
    );
    let cookie = cookie_of(node.pod.netns()).unwrap();
    assert!(!node.actions.pins.path_of(cookie).exists());
}

#[tokio::test]
async fn released_pod_is_not_captured_by_programs() {
    let node = Node::new().await;
    let listen = |port| TcpListener::bind(("0.0.0.0", port)).unwrap();
    let listeners = [15001, 15006].map(|port| node.pod.run(|| listen(port)).unwrap());
    node.prepare();
    node.enter(&listeners);
    assert_eq!(node.apply(&ACKNOWLEDGED), CaptureMethod::Bpf);
    let cookie = cookie_of(node.pod.netns()).unwrap();
    let capture = node.actions.pins.of(cookie);
    assert!(!capture.is_paused().unwrap());
    node.actions.release_rules(node.pod.netns()).unwrap();
    assert!(capture.is_paused().unwrap());
    assert_eq!(node.rules(), "");
}

#[tokio::test]
async fn pod_with_more_addresses_than_a_map_holds_gets_rules() {
    let node = Node::new().await;
    let listen = |port| TcpListener::bind(("0.0.0.0", port)).unwrap();
    let listeners = [15001, 15006].map(|port| node.pod.run(|| listen(port)).unwrap());
    let script = "seq 257 | while read i; do echo address add 10.7.$((i / 200)).$((i % 200))/32 dev lo; done | ip -batch -";
    let add = || Command::new("sh").args(["-ec", script]).status();
    assert!(node.pod.run(add).unwrap().unwrap().success());
    node.prepare();
    node.enter(&listeners);
    node.assert_rules(node.apply(&ACKNOWLEDGED), "has room for 256");
    // The agent does not try again.
    let refused = node.actions.prepare_bpf(&node.target(UID), &spec());
    let reason = refused.unwrap_err().to_string();
    assert!(reason.contains("has room for 256"), "{reason}");
}
