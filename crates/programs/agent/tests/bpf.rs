//! Tests which pods the agent captures by BPF programs, and which by rules instead.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::{
    collections::BTreeSet,
    fs,
    net::TcpListener,
    os::unix::fs::symlink,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use ambit_agent::{
    actions::{Actions, KernelActions, NodePrograms},
    capture::{BpfReadiness, CaptureMethod, CaptureTarget},
};
use ambit_bpf::{Pins, Role};
use ambit_bpf_testkit::{Bpffs, attach, cgroup_root, remove_cgroup, tools};
use ambit_netlab::Host;
use ambit_netplan::{Backend, RedirectionSpec};
use ambit_sys::{netns::Netns, procfs::Attribution, redirection::bpf::cookie_of};
use rustix::process::{Resource, Rlimit, setrlimit};

const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";
const ACKNOWLEDGED: BpfReadiness = BpfReadiness::Prepared { acknowledged: true };

/// Node with one pod, whose cgroup is named as kubelet does.
struct Node {
    actions: KernelActions,
    pod: Host,
    cgroups: PathBuf,
    _proc: tempfile::TempDir,
    _bpffs: Bpffs,
}

impl Node {
    async fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ambit-agent-test-{}-{number}", std::process::id());
        // A hierarchy of its own: pods of several tests have one UID.
        let root = cgroup_root().join(name);
        let cgroups = root.join("kubepods");
        fs::create_dir_all(cgroups.join(format!("pod{UID}"))).unwrap();
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("1/root/sys/fs")).unwrap();
        symlink(root, proc.path().join("1/root/sys/fs/cgroup")).unwrap();
        let bpffs = Bpffs::new();
        Self {
            actions: KernelActions {
                procfs: proc.path().to_owned(),
                attribution: Attribution::Cgroup,
                netns_prefix: PathBuf::new(),
                node_netns: Netns::current().unwrap(),
                host: None,
                kubelet_cgroup: None,
                programs: NodePrograms::at(Pins::at(bpffs.path().join("ambit"))),
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

    /// Returns the listeners of the pod's proxy.
    fn listen(&self) -> [TcpListener; 2] {
        let listen = |port| TcpListener::bind(("0.0.0.0", port)).unwrap();
        [15001, 15006].map(|port| self.pod.run(|| listen(port)).unwrap())
    }

    fn has_pins(&self) -> bool {
        let cookie = cookie_of(self.pod.netns()).unwrap();
        self.actions.programs.pins().path_of(cookie).exists()
    }

    fn prepare(&self) {
        self.actions
            .prepare_bpf(&self.target(UID), &spec())
            .unwrap();
    }

    /// Enters listeners as the node proxy does.
    fn enter(&self, listeners: &[TcpListener; 2]) {
        let cookie = cookie_of(self.pod.netns()).unwrap();
        let mut map = self.actions.programs.pins().of(cookie).listeners().unwrap();
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
        remove_cgroup(&self.cgroups.join(format!("pod{UID}")));
        remove_cgroup(&self.cgroups);
        remove_cgroup(self.cgroups.parent().unwrap());
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
    let listeners = node.listen();

    let refused = node.actions.prepare_bpf(&node.target("another"), &spec());
    let reason = refused.unwrap_err().to_string();
    assert!(reason.contains("no cgroup of version 2"), "{reason}");
    node.assert_rules(node.apply(&BpfReadiness::Impossible(reason)), "no cgroup");

    // A proxy of another version acknowledges without listeners.
    node.prepare();
    node.assert_rules(node.apply(&ACKNOWLEDGED), "has not entered its listeners");

    // The agent does not prepare the pod again before another proxy connects.
    let known = node.actions.prepare_bpf(&node.target(UID), &spec());
    let reason = known.unwrap_err().to_string();
    assert!(reason.contains("has not entered its listeners"), "{reason}");
    assert!(!node.has_pins());
    node.actions.forget_missing_listeners();
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
    node.actions.forget_missing_listeners();

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
    assert!(!node.has_pins());
}

#[tokio::test]
async fn released_pod_is_not_captured_by_programs() {
    let node = Node::new().await;
    let listeners = node.listen();
    node.prepare();
    node.enter(&listeners);
    assert_eq!(node.apply(&ACKNOWLEDGED), CaptureMethod::Bpf);
    let cookie = cookie_of(node.pod.netns()).unwrap();
    let capture = node.actions.programs.pins().of(cookie);
    assert!(!capture.is_paused().unwrap());
    node.actions.release_rules(node.pod.netns()).unwrap();
    assert!(capture.is_paused().unwrap());
    assert_eq!(node.rules(), "");
    // Openings from just before still reach the proxy; later the programs go.
    let pods = BTreeSet::from([UID.into()]);
    node.actions.sweep_bpf(&pods);
    assert!(node.has_pins());
    node.prepare();
    node.actions.sweep_bpf(&pods);
    assert!(node.has_pins(), "the pod is being captured again");
    node.enter(&listeners);
    assert_eq!(node.apply(&ACKNOWLEDGED), CaptureMethod::Bpf);
    node.actions.release_rules(node.pod.netns()).unwrap();
    for is_left in [true, false] {
        node.actions.sweep_bpf(&pods);
        assert_eq!(node.has_pins(), is_left);
    }
}

#[tokio::test]
async fn pod_with_more_addresses_than_a_map_holds_gets_rules() {
    let node = Node::new().await;
    let listeners = node.listen();
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

#[tokio::test]
async fn pod_with_a_program_that_permits_no_others_gets_rules() {
    let node = Node::new().await;
    let listeners = node.listen();
    node.prepare();
    node.enter(&listeners);
    let cgroup = node.cgroups.join(format!("pod{UID}"));
    attach(&cgroup, "alone", None);
    let expected = "cannot attach the BPF program connecting_v4";
    node.assert_rules(node.apply(&ACKNOWLEDGED), expected);
    assert!(!node.has_pins());
}

/// Variable with the text that a pod's report must have, in a process whose calls of bpf(2) the kernel refuses.
const REFUSED: &str = "AMBIT_TEST_REFUSED_BPF";

#[tokio::test]
async fn pod_gets_rules_where_the_kernel_refuses_bpf() {
    if let Ok(expected) = std::env::var(REFUSED) {
        return refused_bpf(&expected).await;
    }
    // Commands of bpf(2), of which -1 stands for all.
    for (command, expected) in [
        ("-1", "cannot query the BPF programs"),
        ("0", "cannot load the BPF programs"),
        ("2", "cannot use the BPF map PROXY"),
        ("5", "cannot load the BPF programs"),
        ("6", "cannot load the BPF programs"),
        ("7", "cannot use the BPF map PROXY"),
        ("16", "cannot query the BPF programs"),
        ("28", "cannot attach the BPF program steer"),
    ] {
        let own = std::env::current_exe().unwrap();
        let mut test = Command::new(tools());
        test.args(["without", command])
            .arg(own)
            .env(REFUSED, expected);
        test.args(["--exact", "pod_gets_rules_where_the_kernel_refuses_bpf"]);
        let output = test.output().unwrap();
        let [out, error] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{command}: {out}{error}");
        assert!(out.contains("1 passed"), "{out}");
    }
}

async fn refused_bpf(expected: &str) {
    let node = Node::new().await;
    let listeners = node.listen();
    let readiness = match node.actions.prepare_bpf(&node.target(UID), &spec()) {
        Ok(()) => {
            node.enter(&listeners);
            ACKNOWLEDGED
        }
        Err(error) => BpfReadiness::Impossible(ambit_rt::ErrorChain(&error).to_string()),
    };
    node.assert_rules(node.apply(&readiness), expected);
    assert!(!node.has_pins());
}

#[tokio::test]
async fn limit_of_locked_memory_does_not_count() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Memlock, none).unwrap();
    let node = Node::new().await;
    let listeners = node.listen();
    node.prepare();
    node.enter(&listeners);
    assert_eq!(node.apply(&ACKNOWLEDGED), CaptureMethod::Bpf);
}

/// Security products attach such programs to the cgroup of all pods.
#[tokio::test]
async fn program_above_the_pod_is_not_switched_off() {
    let node = Node::new().await;
    let listeners = node.listen();
    node.prepare();
    node.enter(&listeners);
    attach(&node.cgroups, "overridable", None);
    let expected = "would switch off a BPF program that is attached to the cgroup";
    node.assert_rules(node.apply(&ACKNOWLEDGED), expected);
    let refused = node.actions.prepare_bpf(&node.target(UID), &spec());
    let reason = ambit_rt::ErrorChain(&refused.unwrap_err()).to_string();
    assert!(reason.contains(expected), "{reason}");
    assert!(!node.has_pins());
}

#[tokio::test]
async fn refusal_is_forgotten_with_the_pod() {
    let node = Node::new().await;
    let listeners = node.listen();
    node.prepare();
    node.enter(&listeners);
    let cgroup = node.cgroups.join(format!("pod{UID}"));
    attach(&cgroup, "alone", None);
    node.assert_rules(node.apply(&ACKNOWLEDGED), "cannot attach");
    let prepared = || node.actions.prepare_bpf(&node.target(UID), &spec());
    node.actions.sweep_bpf(&BTreeSet::from([UID.into()]));
    let reason = prepared().unwrap_err().to_string();
    assert!(reason.contains("cannot attach"), "{reason}");
    node.actions.sweep_bpf(&BTreeSet::new());
    prepared().unwrap();
}

#[tokio::test]
async fn programs_are_removed_with_the_mesh_except_of_pods_that_stay_captured() {
    let node = Node::new().await;
    let listeners = node.listen();
    node.prepare();
    node.enter(&listeners);
    assert_eq!(node.apply(&ACKNOWLEDGED), CaptureMethod::Bpf);
    node.actions.remove_bpf(&[node.pod.netns().clone()]);
    assert!(node.has_pins());
    node.actions.remove_bpf(&[]);
    assert!(!node.actions.programs.pins().root().exists());
}

#[tokio::test]
async fn maps_of_a_pod_that_is_being_prepared_are_not_swept() {
    let node = Node::new().await;
    let listeners = node.listen();
    node.prepare();
    node.actions.sweep_bpf(&BTreeSet::new());
    assert!(node.has_pins());
    node.enter(&listeners);
    assert_eq!(node.apply(&ACKNOWLEDGED), CaptureMethod::Bpf);
    // An agent that ended before it applied redirection has left the maps of a pod.
    let other = Host::new("other").await.unwrap();
    let cookie = cookie_of(other.netns()).unwrap();
    let left = node.actions.programs.pins().of(cookie);
    left.prepare().unwrap();
    node.actions.sweep_bpf(&BTreeSet::new());
    assert!(!left.exists() && node.has_pins());
}
