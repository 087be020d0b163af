//! Tests the state machine against a simulated kernel, with every step failing.

use std::{
    collections::{BTreeSet, VecDeque},
    net::IpAddr,
    time::Duration,
};

use ambit_model::PodName;

use super::*;
use crate::source::RedirectionStatus;

mod any_order;
mod late_capture;
mod reports;

/// Simulation of an agent: state machine, kernel and clock.
struct TestAgent {
    machine: Enrolment<u32>,
    now: Instant,
    /// Namespaces of running pods by UID, as scans find them.
    running: BTreeMap<PodUid, u32>,
    /// Namespaces on the simulated node that have redirection.
    redirected: BTreeSet<u32>,
    served: BTreeMap<PodUid, u32>,
    probes: BTreeMap<PodUid, Vec<IpAddr>>,
    probe_ports: BTreeMap<PodUid, ProbePorts>,
    status: BTreeMap<String, RedirectionStatus>,
    /// Name of the step that fails; `None` if every step succeeds.
    failing_step: Option<&'static str>,
    /// Effects that have not been carried out yet.
    pending_effects: VecDeque<Effect<u32>>,
    log: Vec<String>,
    replies: BTreeMap<u64, PluginReply>,
    membership: BTreeMap<ArcStr, bool>,
    pruned_except: Option<BTreeSet<PodName>>,
    held_pods: Vec<PodUid>,
    /// Pods of the snapshot for node proxies: announced or held, and not withdrawn since.
    snapshot: BTreeSet<PodUid>,
    zds_open: bool,
    /// Failures that were reported to pods' owners; `None` reports that the failure has ended.
    reported_failures: Vec<(PodUid, Option<String>)>,
    /// Namespaces in which pre-capture connections were closed.
    closed_netns: Vec<u32>,
}

const AMBIENT_LABELS: &[(&str, &str)] = &[("istio.io/dataplane-mode", "ambient")];
const OPT_OUT_LABELS: &[(&str, &str)] = &[("istio.io/dataplane-mode", "none")];

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn pod_view(uid: &str, ip: &str) -> PodView {
    PodView {
        uid: uid.into(),
        name: PodName {
            name: uid.split('#').next().unwrap().into(),
            namespace: "shop".into(),
            service_account: "sa".into(),
        },
        addresses: ip.parse().into_iter().collect(),
        ..PodView::default()
    }
}

fn pod_ref(name: &str, uid: Option<&str>) -> PodRef {
    PodRef {
        namespace: "shop".into(),
        name: name.into(),
        uid: uid.map(Into::into),
    }
}

/// Creates the state machine of an agent that knows nothing yet.
fn new_machine() -> Enrolment<u32> {
    let enablement = Enablement::new(Vec::new(), [], "istio-system");
    Enrolment::new(Settings {
        enablement: enablement.unwrap(),
        redirection: RedirectionSpec::default(),
        exempt_probe_ports_only: true,
    })
}

impl TestAgent {
    fn new() -> Self {
        Self {
            machine: new_machine(),
            now: Instant::now(),
            running: BTreeMap::new(),
            redirected: BTreeSet::new(),
            served: BTreeMap::new(),
            probes: BTreeMap::new(),
            probe_ports: BTreeMap::new(),
            status: BTreeMap::new(),
            failing_step: None,
            pending_effects: VecDeque::new(),
            log: Vec::new(),
            replies: BTreeMap::new(),
            membership: BTreeMap::new(),
            pruned_except: None,
            held_pods: Vec::new(),
            snapshot: BTreeSet::new(),
            zds_open: false,
            reported_failures: Vec::new(),
            closed_netns: Vec::new(),
        }
    }

    /// Creates an agent for these pods in a namespace `shop` with these labels, all sent at the agent's start.
    fn start_with_pods(namespace: &[(&str, &str)], pods: Vec<PodView>) -> Self {
        let mut world = Self::new();
        world.label_namespace(namespace);
        for pod in pods {
            world.source_event(SourceEvent::Pod(pod));
        }
        world.source_event(SourceEvent::Synced);
        world.perform_all_effects();
        world
    }

    /// Replaces the agent by one that knows nothing yet; what it did on the node stays.
    fn restart(&mut self) {
        self.machine = new_machine();
        self.pending_effects.clear();
        self.held_pods.clear();
        self.snapshot.clear();
        self.zds_open = false;
    }

    fn handle_event(&mut self, event: Event<u32>) {
        let effects = self.machine.on_event(event, self.now);
        self.pending_effects.extend(effects);
    }

    fn source_event(&mut self, event: SourceEvent) {
        self.handle_event(Event::Source(event));
    }

    fn label_namespace(&mut self, with: &[(&str, &str)]) {
        self.source_event(SourceEvent::Namespace("shop".into(), labels(with)));
    }

    fn cni_add(&mut self, request: u64, name: &str, netns: u32, ip: &str) {
        let addresses = ip.parse().into_iter().collect();
        let add = CniAdd {
            pod: pod_ref(name, None),
            netns,
            addresses,
        };
        self.handle_event(Event::CniAdd(RequestId(request), add));
    }

    /// Carries out one pending effect; false if there is none.
    fn perform_next_effect(&mut self) -> bool {
        let Some(effect) = self.pending_effects.pop_front() else {
            return false;
        };
        match effect {
            Effect::Step { uid, id, step } => {
                let name = self.perform_step(&uid, &step);
                let failed = self.failing_step == Some(name.as_str());
                let result = if failed {
                    Err(format!("{name} fails"))
                } else {
                    Ok(())
                };
                self.handle_event(Event::StepDone { uid, id, result });
            }
            Effect::Scan(target) => {
                self.log.push("scan".to_owned());
                if self.failing_step == Some("scan") {
                    self.handle_event(Event::ScanFailed);
                    return true;
                }
                let found = target.iter().filter_map(|target| {
                    let netns = self.running.get(&target.uid)?;
                    Some((target.uid.clone(), *netns))
                });
                let found = found.collect();
                self.handle_event(Event::Scanned(found));
            }
            Effect::Reply(request, reply) => {
                assert_eq!(
                    self.replies.insert(request.0, reply),
                    None,
                    "answered twice"
                );
            }
            Effect::HoldPod(uid) => {
                assert!(!self.zds_open, "held after the snapshot may have been sent");
                self.snapshot.insert(uid.clone());
                self.held_pods.push(uid);
            }
            Effect::OpenZds => {
                self.zds_open = true;
                self.served.retain(|uid, _| self.snapshot.contains(uid));
            }
            Effect::WriteMembership(membership) => self.membership = membership,
            Effect::SetProbeMembers(members) => {
                self.log.push(format!("probe members {}", members.len()));
                let addresses = members
                    .into_iter()
                    .map(|(uid, targets)| (uid, targets.addresses));
                self.probes = addresses.collect();
            }
            Effect::PruneStatus(keep) => self.pruned_except = Some(keep),
            Effect::ReportFailure { uid, failure, .. } => {
                self.reported_failures.push((uid, failure))
            }
        }
        true
    }

    /// Carries out a step, unless the test makes it fail, and checks the invariants; returns the step's name.
    fn perform_step(&mut self, uid: &PodUid, step: &Step<u32>) -> String {
        let name = match step {
            Step::Proxy(ProxyStep::Announce { .. }) => "announce",
            Step::Proxy(ProxyStep::Withdraw) => "withdraw",
            Step::Redirection(RedirectionStep::Apply { .. }) => "apply",
            Step::Redirection(RedirectionStep::Release { .. }) => "release",
            Step::Probes(ProbeStep::Exempt(_)) => "probe",
            Step::Probes(ProbeStep::Remove) => "unprobe",
            Step::Status(write) => match write.status {
                RedirectionStatus::None => "status none",
                RedirectionStatus::Pending => "status pending",
                RedirectionStatus::Enabled => "status enabled",
            },
        };
        self.log.push(format!("{uid} {name}"));
        match step {
            Step::Proxy(ProxyStep::Announce { .. }) => self.snapshot.insert(uid.clone()),
            Step::Proxy(ProxyStep::Withdraw) => self.snapshot.remove(uid),
            Step::Redirection(_) | Step::Probes(_) | Step::Status(_) => false,
        };
        if self.failing_step == Some(name) {
            return name.to_owned();
        }
        match step {
            Step::Proxy(ProxyStep::Announce { netns, .. }) => {
                self.served.insert(uid.clone(), *netns);
            }
            Step::Proxy(ProxyStep::Withdraw) => {
                self.served.remove(uid);
            }
            Step::Redirection(RedirectionStep::Apply {
                netns,
                close_pre_capture,
                ..
            }) => {
                assert_eq!(self.served.get(uid), Some(netns), "rules before listeners");
                if self.redirected.insert(*netns) && *close_pre_capture {
                    self.closed_netns.push(*netns);
                }
            }
            Step::Redirection(RedirectionStep::Release { netns }) => {
                self.redirected.remove(netns);
            }
            Step::Probes(ProbeStep::Exempt(ProbeTargets { addresses, ports })) => {
                self.probes.insert(uid.clone(), addresses.clone());
                self.probe_ports.insert(uid.clone(), ports.clone());
            }
            Step::Probes(ProbeStep::Remove) => {
                self.probes.remove(uid);
            }
            Step::Status(write) => {
                self.status.insert(write.pod.to_string(), write.status);
            }
        }
        name.to_owned()
    }

    fn perform_all_effects(&mut self) {
        for _ in 0..10_000 {
            if !self.perform_next_effect() {
                return;
            }
        }
        panic!("never settles: {:?}", &self.log[self.log.len() - 20..]);
    }

    /// Advances the clock by `duration`, with ticks where they are due.
    fn advance_time(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.perform_all_effects();
        for _ in 0..10_000 {
            match self.machine.deadline() {
                Some(deadline) if deadline <= end => {
                    self.now = deadline.max(self.now);
                    self.handle_event(Event::Tick);
                    self.perform_all_effects();
                }
                _ => {
                    self.now = end;
                    return;
                }
            }
        }
        panic!(
            "ticks without end: {:?}",
            &self.log[self.log.len().saturating_sub(20)..]
        );
    }

    fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    fn is_captured(&self, uid: &str, netns: u32) -> bool {
        let name = uid.split('#').next().unwrap();
        self.served.get(uid) == Some(&netns)
            && self.redirected.contains(&netns)
            && self.status.get(&format!("shop/{name}")) == Some(&RedirectionStatus::Enabled)
    }
}

#[test]
fn plugin_gets_its_response_after_listeners_rules_and_probes() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
    world.take_log();
    world.cni_add(1, "web", 7, "10.0.0.7");
    for expected in ["web announce", "web apply", "web probe"] {
        assert!(world.replies.is_empty());
        assert!(world.perform_next_effect());
        assert_eq!(world.log.last().unwrap(), expected);
    }
    world.perform_all_effects();
    assert_eq!(world.replies[&1], PluginReply::Captured);
    assert_eq!(world.take_log().last().unwrap(), "web status enabled");
    assert_eq!(world.probes["web"], ["10.0.0.7".parse::<IpAddr>().unwrap()]);
    // Once more, as runtimes do: nothing is left to do.
    world.cni_add(2, "web", 7, "10.0.0.7");
    world.perform_all_effects();
    assert_eq!(world.replies[&2], PluginReply::Captured);
    assert_eq!(world.take_log(), [""; 0]);
}

#[test]
fn running_pod_joins_and_leaves_with_its_namespaces_label() {
    let mut world = TestAgent::start_with_pods(&[], vec![pod_view("web", "10.0.0.7")]);
    world.running.insert("web".into(), 7);
    world.take_log();
    world.label_namespace(AMBIENT_LABELS);
    world.perform_all_effects();
    assert!(world.is_captured("web", 7));
    let log = world.take_log();
    assert_eq!(
        log,
        [
            "scan",
            "web announce",
            "web apply",
            "web probe",
            "web status enabled"
        ]
    );
    world.label_namespace(&[]);
    world.perform_all_effects();
    assert_eq!(
        world.take_log(),
        ["web release", "web status none"],
        "listeners stay a while"
    );
    world.advance_time(Duration::from_secs(5));
    assert_eq!(world.take_log(), ["web withdraw", "web unprobe"]);
    // Again, as often as they like.
    world.label_namespace(AMBIENT_LABELS);
    world.perform_all_effects();
    assert!(world.is_captured("web", 7));
}

#[test]
fn pods_own_label_decides_about_enrolment() {
    let mut out = pod_view("web", "10.0.0.7");
    out.labels = labels(OPT_OUT_LABELS);
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![out.clone()]);
    world.running.insert("web".into(), 7);
    world.advance_time(Duration::from_secs(60));
    assert!(world.served.is_empty() && world.redirected.is_empty());
    out.labels.clear();
    world.source_event(SourceEvent::Pod(out.clone()));
    world.perform_all_effects();
    assert!(world.is_captured("web", 7));
    out.labels = labels(OPT_OUT_LABELS);
    world.source_event(SourceEvent::Pod(out));
    world.advance_time(Duration::from_secs(5));
    assert!(world.served.is_empty() && world.redirected.is_empty() && world.probes.is_empty());
}

#[test]
fn host_network_pods_are_not_captured() {
    let mut host = pod_view("web", "10.0.0.7");
    host.host_network = true;
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![host]);
    world.running.insert("web".into(), 7);
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.advance_time(Duration::from_secs(60));
    assert!(matches!(world.replies[&1], PluginReply::Refused(_)));
    assert!(world.served.is_empty() && world.redirected.is_empty());
}

#[test]
fn the_plugin_may_come_before_the_source() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![]);
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.advance_time(Duration::from_secs(1));
    assert!(world.replies.is_empty());
    world.source_event(SourceEvent::Pod(pod_view("web", "")));
    world.perform_all_effects();
    assert_eq!(world.replies[&1], PluginReply::Captured);
    // And if the source never comes, the response reports it, in time for an Istio plugin.
    world.cni_add(2, "other", 8, "10.0.0.8");
    world.advance_time(Duration::from_secs(5));
    assert!(matches!(&world.replies[&2], PluginReply::TryLater(why) if why.contains("shop/other")));
}

#[test]
fn a_call_before_the_source_is_complete_waits() {
    let mut world = TestAgent::new();
    world.label_namespace(AMBIENT_LABELS);
    world.source_event(SourceEvent::Pod(pod_view("web", "")));
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.perform_all_effects();
    assert!(world.replies.is_empty() && world.log.is_empty());
    world.source_event(SourceEvent::Synced);
    world.perform_all_effects();
    assert_eq!(world.replies[&1], PluginReply::Captured);
    let mut world = TestAgent::new();
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.advance_time(Duration::from_secs(5));
    assert!(matches!(world.replies[&1], PluginReply::TryLater(_)));
}

#[test]
fn new_pod_of_an_old_name_is_distinguished_by_uid() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web#1", "10.0.0.7")]);
    let add = CniAdd {
        pod: pod_ref("web", Some("web#2")),
        netns: 8,
        addresses: vec![],
    };
    world.handle_event(Event::CniAdd(RequestId(1), add));
    world.perform_all_effects();
    assert!(world.replies.is_empty());
    world.source_event(SourceEvent::PodGone("web#1".into()));
    world.source_event(SourceEvent::Pod(pod_view("web#2", "")));
    world.perform_all_effects();
    assert_eq!(world.replies[&1], PluginReply::Captured);
    assert!(world.is_captured("web#2", 8));
}

#[test]
fn a_new_sandbox_of_the_same_uid_replaces_the_old_one() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.perform_all_effects();
    world.cni_add(2, "web", 8, "10.0.0.8");
    world.perform_all_effects();
    assert_eq!(world.replies[&2], PluginReply::Captured);
    assert!(world.is_captured("web", 8));
    assert_eq!(world.probes["web"], ["10.0.0.8".parse::<IpAddr>().unwrap()]);
}

#[test]
fn a_new_sandbox_wins_over_steps_under_way_for_the_old_one() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
    world.failing_step = Some("apply");
    world.cni_add(1, "web", 7, "10.0.0.7");
    assert!(world.perform_next_effect(), "announced in 7");
    world.cni_add(2, "web", 8, "10.0.0.8");
    world.failing_step = None;
    world.perform_all_effects();
    assert!(world.is_captured("web", 8));
    assert_eq!(
        (&world.replies[&1], &world.replies[&2]),
        (&PluginReply::Captured, &PluginReply::Captured)
    );
}

#[test]
fn a_proxy_that_is_away_is_worth_another_try_and_bad_rules_are_not() {
    for (failing, retryable) in [("announce", true), ("apply", false), ("probe", false)] {
        let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
        world.failing_step = Some(failing);
        world.cni_add(1, "web", 7, "10.0.0.7");
        world.perform_all_effects();
        let text = match (&world.replies[&1], retryable) {
            (PluginReply::TryLater(text), true) | (PluginReply::Failed(text), false) => text,
            other => panic!("{failing}: {other:?}"),
        };
        assert!(
            text.contains("shop/web") && text.contains(failing),
            "{text}"
        );
        // The sandbox is torn down; nothing goes on in it.
        world.take_log();
        world.advance_time(Duration::from_secs(60));
        assert!(world.take_log().iter().all(|line| line == "scan"));
        world.failing_step = None;
        world.cni_add(2, "web", 8, "10.0.0.8");
        world.perform_all_effects();
        assert_eq!(world.replies[&2], PluginReply::Captured);
        assert!(world.is_captured("web", 8));
    }
}

#[test]
fn failed_capture_of_a_running_pod_is_pending_and_retried() {
    for failing in ["announce", "apply", "probe"] {
        let mut world = TestAgent::start_with_pods(&[], vec![pod_view("web", "10.0.0.7")]);
        world.running.insert("web".into(), 7);
        world.failing_step = Some(failing);
        world.label_namespace(AMBIENT_LABELS);
        world.advance_time(Duration::from_secs(3));
        assert!(!world.is_captured("web", 7));
        let tries = world
            .take_log()
            .iter()
            .filter(|line| line.ends_with(failing))
            .count();
        assert!((3..10).contains(&tries), "{failing}: {tries}");
        world.failing_step = None;
        world.advance_time(Duration::from_secs(20));
        assert!(world.is_captured("web", 7), "{failing}");
    }
}

#[test]
fn steps_that_lacked_a_proxy_are_retried_when_one_connects() {
    let mut world = TestAgent::start_with_pods(&[], vec![pod_view("web", "10.0.0.7")]);
    world.running.insert("web".into(), 7);
    world.failing_step = Some("announce");
    world.label_namespace(AMBIENT_LABELS);
    world.advance_time(Duration::from_secs(100));
    world.failing_step = None;
    world.handle_event(Event::ProxySynced);
    world.perform_all_effects();
    assert!(world.is_captured("web", 7));
}

#[test]
fn peers_are_not_downgraded_while_the_repair_of_a_captured_pod_fails() {
    for failing in ["apply", "probe"] {
        let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
        world.cni_add(1, "web", 7, "10.0.0.7");
        world.perform_all_effects();
        world.failing_step = Some(failing);
        world.handle_event(Event::Reconcile);
        world.source_event(SourceEvent::Pod(pod_view("web", "10.0.0.9")));
        world.take_log();
        world.advance_time(Duration::from_secs(60));
        assert!(world.take_log().contains(&format!("web {failing}")));
        assert_eq!(
            world.status["shop/web"],
            RedirectionStatus::Enabled,
            "{failing}"
        );
        assert_eq!(world.machine.counts().failing, 1, "{failing}");
        world.failing_step = None;
        world.advance_time(Duration::from_secs(20));
        assert!(world.is_captured("web", 7), "{failing}");
    }
}

#[test]
fn a_new_sandbox_that_cannot_be_captured_is_not_called_captured() {
    for failing in ["announce", "apply", "probe"] {
        let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
        world.cni_add(1, "web", 7, "10.0.0.7");
        world.perform_all_effects();
        world.failing_step = Some(failing);
        world.cni_add(2, "web", 8, "10.0.0.8");
        world.advance_time(Duration::from_secs(3));
        assert_eq!(
            world.status["shop/web"],
            RedirectionStatus::Pending,
            "{failing}"
        );
    }
}

#[test]
fn failed_status_writes_are_retried_with_delay() {
    for failing in ["status enabled", "status pending"] {
        let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
        world.failing_step = Some(failing);
        world.cni_add(1, "web", 7, "10.0.0.7");
        world.advance_time(Duration::from_secs(10));
        assert_eq!(
            world.replies[&1],
            PluginReply::Captured,
            "the pod is captured all the same"
        );
        world.failing_step = None;
        world.advance_time(Duration::from_secs(20));
        assert!(world.is_captured("web", 7));
    }
}

#[test]
fn an_earlier_agents_probe_members_stay_until_their_pod_is_served() {
    let captured = PodView {
        reported: RedirectionStatus::Enabled,
        ..pod_view("web", "10.0.0.7")
    };
    let mut world = TestAgent::new();
    world.running.insert("web".into(), 7);
    // As while no proxy is there.
    world.failing_step = Some("announce");
    world.label_namespace(AMBIENT_LABELS);
    world.source_event(SourceEvent::Pod(captured));
    world.source_event(SourceEvent::Synced);
    world.perform_all_effects();
    world.handle_event(Event::Reconcile);
    world.perform_all_effects();
    let sets = |world: &TestAgent| {
        world
            .log
            .iter()
            .any(|line| line.starts_with("probe members"))
    };
    assert!(!sets(&world), "{:?}", world.log);
    world.failing_step = None;
    world.advance_time(Duration::from_secs(20));
    world.handle_event(Event::Reconcile);
    world.perform_all_effects();
    assert!(sets(&world));
}

#[test]
fn drift_is_looked_for_regularly() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.perform_all_effects();
    world.redirected.clear();
    world.handle_event(Event::Reconcile);
    world.perform_all_effects();
    assert!(world.is_captured("web", 7));
    assert!(world.log.contains(&"probe members 1".to_owned()));
}

#[test]
fn ended_sandbox_of_a_deleted_pod_is_not_repaired() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.perform_all_effects();
    world.running.insert("web".into(), 7);
    world.source_event(SourceEvent::Pod(PodView {
        deleting: true,
        ..pod_view("web", "10.0.0.7")
    }));
    // Granted an hour, it is looked after as any other.
    world.redirected.clear();
    world.handle_event(Event::Reconcile);
    world.perform_all_effects();
    assert!(world.is_captured("web", 7));
    // The runtime takes the sandbox down: what is missing there is not put back.
    world.running.clear();
    world.redirected.clear();
    world.failing_step = Some("apply");
    world.take_log();
    world.handle_event(Event::Reconcile);
    world.perform_all_effects();
    let log = world.take_log();
    assert!(!log.contains(&"web apply".to_owned()), "{log:?}");
    assert_eq!(world.reported_failures, []);
    world.source_event(SourceEvent::PodGone("web".into()));
    world.perform_all_effects();
    assert!(world.served.is_empty() && world.probes.is_empty());
}

#[test]
fn ended_and_deleted_pods_leave_no_state() {
    let ended = PodView {
        terminal: true,
        addresses: vec![],
        ..pod_view("web", "")
    };
    for last in [SourceEvent::Pod(ended), SourceEvent::PodGone("web".into())] {
        let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
        world.cni_add(1, "web", 7, "10.0.0.7");
        world.perform_all_effects();
        world.take_log();
        world.source_event(last);
        world.perform_all_effects();
        assert_eq!(
            world.take_log(),
            ["web status none", "web withdraw", "web unprobe"]
        );
        assert_eq!(world.machine.counts(), PodCounts::default());
    }
}

#[test]
fn failing_removals_are_tried_until_they_succeed() {
    for failing in ["status none", "withdraw", "unprobe"] {
        let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
        world.cni_add(1, "web", 7, "10.0.0.7");
        world.perform_all_effects();
        world.failing_step = Some(failing);
        world.source_event(SourceEvent::PodGone("web".into()));
        world.advance_time(Duration::from_secs(5));
        world.failing_step = None;
        world.advance_time(Duration::from_secs(20));
        assert!(
            world.served.is_empty() && world.probes.is_empty(),
            "{failing}"
        );
        assert!(world.machine.pod_uids().is_empty());
    }
}

#[test]
fn a_failing_release_keeps_the_listeners() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.perform_all_effects();
    world.failing_step = Some("release");
    world.label_namespace(&[]);
    world.advance_time(Duration::from_secs(30));
    assert!(world.served.contains_key("web") && world.redirected.contains(&7));
    world.failing_step = None;
    world.advance_time(Duration::from_secs(30));
    assert!(world.served.is_empty() && world.redirected.is_empty());
}

#[test]
fn a_restarted_agent_finds_pods_and_keeps_their_redirection() {
    let mut world = TestAgent::new();
    world.running.insert("web".into(), 7);
    world.redirected.insert(7);
    world.label_namespace(AMBIENT_LABELS);
    world.source_event(SourceEvent::Pod(pod_view("web", "10.0.0.7")));
    world.source_event(SourceEvent::Synced);
    assert!(!world.zds_open);
    world.perform_all_effects();
    assert!(world.zds_open && world.is_captured("web", 7));
    assert_eq!(
        world.pruned_except,
        Some(BTreeSet::from([pod_view("web", "").name]))
    );
    assert_eq!(world.held_pods, [""; 0]);
}

#[test]
fn proxies_connect_only_after_found_pods_are_announced() {
    let mut world = TestAgent::new();
    world.running.insert("web".into(), 7);
    world.label_namespace(AMBIENT_LABELS);
    world.source_event(SourceEvent::Pod(pod_view("web", "10.0.0.7")));
    world.source_event(SourceEvent::Pod(pod_view("kata", "10.0.0.8")));
    world.source_event(SourceEvent::Synced);
    while !world.log.contains(&"scan".to_owned()) {
        assert!(world.perform_next_effect());
    }
    let order: Vec<_> = world
        .pending_effects
        .iter()
        .map(|effect| match effect {
            Effect::Step {
                step: Step::Proxy(ProxyStep::Announce { .. }),
                ..
            } => "announce",
            Effect::HoldPod(_) => "hold",
            Effect::OpenZds => "open",
            _ => "other",
        })
        .filter(|kind| *kind != "other")
        .collect();
    assert_eq!(order.last(), Some(&"open"));
    assert!(order.contains(&"announce") && order.contains(&"hold"));
}

#[test]
fn earlier_agents_redirection_outside_the_mesh_is_removed() {
    let mut world = TestAgent::new();
    world.running.insert("web".into(), 7);
    world.redirected.insert(7);
    world.label_namespace(&[]);
    world.source_event(SourceEvent::Pod(pod_view("web", "10.0.0.7")));
    world.source_event(SourceEvent::Synced);
    world.perform_all_effects();
    assert!(world.redirected.is_empty());
    assert_eq!(world.pruned_except, Some(BTreeSet::new()));
}

#[test]
fn pod_that_left_without_an_agent_is_still_served_for_a_while() {
    let mut world = TestAgent::new();
    world.running.insert("web".into(), 7);
    world.redirected.insert(7);
    world.served.insert("web".into(), 7);
    world.label_namespace(&[]);
    world.source_event(SourceEvent::Pod(PodView {
        reported: RedirectionStatus::Enabled,
        ..pod_view("web", "10.0.0.7")
    }));
    world.source_event(SourceEvent::Synced);
    world.perform_all_effects();
    assert!(world.redirected.is_empty() && world.zds_open);
    assert_eq!(world.held_pods, ["web"]);
    assert!(world.served.contains_key("web") && world.machine.is_unenrolling());
    world.advance_time(Duration::from_secs(3));
    assert!(world.served.is_empty() && !world.machine.is_unenrolling());
}

#[test]
fn pod_kept_for_proxies_is_withdrawn_when_it_is_deleted() {
    let mut world = kept_pod();
    world.source_event(SourceEvent::PodGone("web".into()));
    world.perform_all_effects();
    assert!(world.served.is_empty(), "{:?}", world.log);
}

#[test]
fn pod_kept_for_proxies_is_served_until_it_is_released() {
    let mut world = kept_pod();
    world.label_namespace(OPT_OUT_LABELS);
    world.advance_time(Duration::from_secs(10));
    assert!(world.served.contains_key("web"), "{:?}", world.log);
    // A scan missed its processes.
    world.running.insert("web".into(), 7);
    world.advance_time(Duration::from_secs(40));
    assert!(world.redirected.is_empty(), "{:?}", world.log);
    assert!(world.served.is_empty(), "{:?}", world.log);
}

/// Starts an agent that does not find a pod's processes, while an earlier agent's redirection captures the pod and a
/// proxy serves it.
fn kept_pod() -> TestAgent {
    let mut world = TestAgent::new();
    world.served.insert("web".into(), 7);
    world.redirected.insert(7);
    world.label_namespace(AMBIENT_LABELS);
    world.source_event(SourceEvent::Pod(pod_view("web", "10.0.0.7")));
    world.source_event(SourceEvent::Synced);
    world.perform_all_effects();
    assert_eq!(world.held_pods, ["web"]);
    assert!(world.served.contains_key("web"));
    world
}

#[test]
fn network_namespace_changed_without_the_plugin_counts_at_second_look() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "10.0.0.7")]);
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.advance_time(Duration::from_secs(1));
    // A process of the old sandbox is seen once, the right one afterwards.
    world.running.insert("web".into(), 6);
    world.handle_event(Event::Reconcile);
    assert!(world.perform_next_effect());
    while !world.pending_effects.is_empty() {
        world.perform_next_effect();
    }
    world.running.insert("web".into(), 7);
    world.advance_time(Duration::from_secs(5));
    assert!(world.is_captured("web", 7));
    // After a reboot of the sandbox it is another for good.
    world.running.insert("web".into(), 8);
    world.handle_event(Event::Reconcile);
    world.advance_time(Duration::from_secs(5));
    assert!(world.is_captured("web", 8));
}

#[test]
fn pods_that_were_not_found_are_searched_again() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "10.0.0.7")]);
    world.advance_time(Duration::from_secs(600));
    let scans = world.take_log().len();
    assert!((10..60).contains(&scans), "{scans} scans in ten minutes");
    world.running.insert("web".into(), 7);
    world.advance_time(Duration::from_secs(31));
    assert!(world.is_captured("web", 7));
}

#[test]
fn only_the_ports_that_a_pods_probes_name_are_exempt() {
    let probed = |ports: &[u16]| PodView {
        probe_ports: Some(ports.to_vec()),
        ..pod_view("web", "10.0.0.7")
    };
    // As an earlier agent's record has it: the ports are not known.
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "10.0.0.7")]);
    world.running.insert("web".into(), 7);
    world.advance_time(Duration::from_secs(31));
    assert_eq!(world.probe_ports["web"], ProbePorts::All);
    world.take_log();
    world.source_event(SourceEvent::Pod(probed(&[8080])));
    world.perform_all_effects();
    assert_eq!(world.probe_ports["web"], ProbePorts::Only(vec![8080]));
    let log = world.take_log();
    assert_eq!(
        log,
        ["web apply", "web probe"],
        "its own rules name the ports too"
    );
    world.source_event(SourceEvent::Pod(probed(&[])));
    world.perform_all_effects();
    assert_eq!(world.probe_ports["web"], ProbePorts::Only(Vec::new()));
}

#[test]
fn changed_addresses_reach_all_records() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.perform_all_effects();
    world.take_log();
    let mut both = pod_view("web", "10.0.0.7");
    both.addresses.push("fd00::7".parse().unwrap());
    world.source_event(SourceEvent::Pod(both.clone()));
    world.perform_all_effects();
    assert_eq!(world.probes["web"], both.addresses);
    assert_eq!(world.take_log(), ["web announce", "scan", "web probe"]);
    world.source_event(SourceEvent::Pod(both));
    world.perform_all_effects();
    assert_eq!(world.take_log(), [""; 0], "an unchanged pod costs nothing");
}

#[test]
fn the_plugins_addresses_hold_until_the_status_has_new_ones() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "10.0.0.6")]);
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.perform_all_effects();
    // Still the address of the sandbox before.
    world.source_event(SourceEvent::Pod(pod_view("web", "10.0.0.6")));
    world.perform_all_effects();
    assert_eq!(world.probes["web"], ["10.0.0.7".parse::<IpAddr>().unwrap()]);
    world.source_event(SourceEvent::Pod(pod_view("web", "10.0.0.8")));
    world.perform_all_effects();
    assert_eq!(world.probes["web"], ["10.0.0.8".parse::<IpAddr>().unwrap()]);
}

#[test]
fn membership_queries_are_decided_by_labels() {
    let mut out = pod_view("out", "");
    out.labels = labels(OPT_OUT_LABELS);
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", ""), out]);
    for (request, name, expected) in [(1, "web", true), (2, "out", false)] {
        world.handle_event(Event::IsMember(RequestId(request), pod_ref(name, None)));
        world.perform_all_effects();
        assert_eq!(world.replies[&request], PluginReply::Member(expected));
    }
    // Not known: in a mesh namespace that is a reason to wait, in another one not.
    world.handle_event(Event::IsMember(RequestId(3), pod_ref("new", None)));
    world.advance_time(Duration::from_secs(5));
    assert!(matches!(world.replies[&3], PluginReply::TryLater(_)));
    let mut world = TestAgent::start_with_pods(&[], vec![]);
    world.handle_event(Event::IsMember(RequestId(4), pod_ref("new", None)));
    world.advance_time(Duration::from_secs(5));
    assert_eq!(world.replies[&4], PluginReply::Member(false));
}

#[test]
fn the_membership_file_knows_namespaces_and_pods_that_opt_in() {
    let mut world = TestAgent::start_with_pods(&[], vec![]);
    assert_eq!(world.membership, BTreeMap::from([("shop".into(), false)]));
    let mut opted = pod_view("web", "");
    opted.labels = labels(AMBIENT_LABELS);
    world.source_event(SourceEvent::Pod(opted));
    world.perform_all_effects();
    assert_eq!(world.membership, BTreeMap::from([("shop".into(), true)]));
    world.source_event(SourceEvent::PodGone("web".into()));
    world.perform_all_effects();
    assert_eq!(world.membership, BTreeMap::from([("shop".into(), false)]));
    world.label_namespace(AMBIENT_LABELS);
    world.perform_all_effects();
    assert_eq!(world.membership, BTreeMap::from([("shop".into(), true)]));
}

#[test]
fn unusable_annotation_is_named_and_delays_no_other_pod() {
    let mut bad = pod_view("bad", "");
    bad.annotations = labels(&[("istio.io/reroute-virtual-interfaces", "no such name")]);
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![bad, pod_view("web", "")]);
    world.cni_add(1, "bad", 6, "10.0.0.6");
    world.cni_add(2, "web", 7, "10.0.0.7");
    world.perform_all_effects();
    assert!(
        matches!(&world.replies[&1], PluginReply::Refused(why) if why.contains("no such name"))
    );
    assert_eq!(world.replies[&2], PluginReply::Captured);
}

#[test]
fn calls_that_wait_are_bounded() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![]);
    for request in 0..2000 {
        world.cni_add(request, "nobody", 7, "");
    }
    world.perform_all_effects();
    assert_eq!(world.replies.len(), 2000 - 1024);
    assert!(
        world
            .replies
            .values()
            .all(|reply| matches!(reply, PluginReply::TryLater(_)))
    );
}
