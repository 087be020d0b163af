//! Tests that any order of events converges: of labels, sandboxes, failures, and restarts of the agent.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum TestAction {
    Label(bool),
    OptOut(bool),
    CallCniAdd,
    PerformEffects(u8),
    PassTime(u8),
    Reconcile,
    FailStep(Option<&'static str>),
    ProxySynced,
    RestartSandbox,
    EndProcesses,
    RestartAgent,
}

/// State of the pod after the last event.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Enrolled,
    Unenrolled,
    Deleted,
}

fn any_test_action() -> impl Strategy<Value = TestAction> {
    prop_oneof![
        any::<bool>().prop_map(TestAction::Label),
        any::<bool>().prop_map(TestAction::OptOut),
        Just(TestAction::CallCniAdd),
        (1..5u8).prop_map(TestAction::PerformEffects),
        (0..100u8).prop_map(TestAction::PassTime),
        Just(TestAction::Reconcile),
        prop_oneof![
            Just(None),
            Just(Some("announce")),
            Just(Some("apply")),
            Just(Some("release")),
            Just(Some("status enabled")),
            Just(Some("withdraw")),
        ]
        .prop_map(TestAction::FailStep),
        Just(TestAction::ProxySynced),
        Just(TestAction::RestartSandbox),
        Just(TestAction::EndProcesses),
        Just(TestAction::RestartAgent),
    ]
}

/// One pod `web` of the simulated agent, as the Kubernetes API shows it.
struct TestPod {
    world: TestAgent,
    view: PodView,
    is_labelled: bool,
    next_netns: u32,
    /// Namespaces of the plugin's calls by request.
    calls: BTreeMap<u64, u32>,
    /// Requests whose response was lost with an agent.
    lost_calls: BTreeSet<u64>,
}

impl TestPod {
    fn new() -> Self {
        let view = pod_view("web", "10.0.0.7");
        let mut world = TestAgent::start_with_pods(&[], vec![view.clone()]);
        world.running.insert("web".into(), 1);
        Self {
            world,
            view,
            is_labelled: false,
            next_netns: 2,
            calls: BTreeMap::new(),
            lost_calls: BTreeSet::new(),
        }
    }

    fn label(&mut self, on: bool) {
        self.is_labelled = on;
        self.world
            .label_namespace(if on { AMBIENT_LABELS } else { &[] });
    }

    fn act(&mut self, action: TestAction) {
        match action {
            TestAction::Label(on) => self.label(on),
            TestAction::OptOut(on) => {
                self.view.labels = labels(if on { OPT_OUT_LABELS } else { &[] });
                self.world.source_event(SourceEvent::Pod(self.view.clone()));
            }
            TestAction::CallCniAdd => {
                self.create_sandbox();
                let netns = self.world.running["web"];
                let request = u64::from(netns);
                self.calls.insert(request, netns);
                self.world.cni_add(request, "web", netns, "10.0.0.7");
            }
            TestAction::PerformEffects(times) => {
                for _ in 0..times {
                    self.world.perform_next_effect();
                }
            }
            TestAction::PassTime(tenths) => self
                .world
                .advance_time(Duration::from_millis(u64::from(tenths) * 100)),
            TestAction::Reconcile => self.world.handle_event(Event::Reconcile),
            TestAction::FailStep(step) => self.world.failing_step = step,
            TestAction::ProxySynced => self.world.handle_event(Event::ProxySynced),
            // Into a namespace that the plugin does not report, as by a reboot of the node.
            TestAction::RestartSandbox => self.create_sandbox(),
            TestAction::EndProcesses => {
                self.world.running.remove("web");
            }
            TestAction::RestartAgent => self.restart_agent(),
        }
    }

    fn create_sandbox(&mut self) {
        self.world.running.insert("web".into(), self.next_netns);
        self.next_netns += 1;
    }

    /// Whether the runtime tears the pod's sandbox down, since the plugin's call for it failed.
    fn is_torn_down(&self) -> bool {
        let is_failed = |request: &u64| match self.world.replies.get(request) {
            Some(PluginReply::Failed(_) | PluginReply::TryLater(_)) => true,
            Some(_) => false,
            None => self.lost_calls.contains(request),
        };
        let running = self.world.running.get("web");
        let mut calls = self.calls.iter();
        calls.any(|(request, netns)| Some(netns) == running && is_failed(request))
    }

    fn restart_agent(&mut self) {
        let replies = &self.world.replies;
        let lost = self
            .calls
            .keys()
            .filter(|request| !replies.contains_key(request));
        self.lost_calls.extend(lost);
        self.world.restart();
        let written = self.world.status.get("shop/web").copied();
        self.view.reported = written.unwrap_or_default();
        self.world.label_namespace(if self.is_labelled {
            AMBIENT_LABELS
        } else {
            &[]
        });
        self.world.source_event(SourceEvent::Pod(self.view.clone()));
        self.world.source_event(SourceEvent::Synced);
    }
}

proptest! {
    /// Checks that once nothing fails, the pod is captured or not as its labels demand, in its newest namespace; that
    /// nothing is left of a deleted pod; and that every call whose agent lives has got exactly one response.
    #[test]
    fn every_order_of_events_ends_where_the_labels_say(
        actions in proptest::collection::vec(any_test_action(), 0..40),
        end in prop_oneof![Just(End::Enrolled), Just(End::Unenrolled), Just(End::Deleted)],
    ) {
        let mut pod = TestPod::new();
        for action in actions {
            pod.act(action);
        }
        pod.world.failing_step = None;
        pod.act(TestAction::OptOut(false));
        if end == End::Deleted {
            pod.act(TestAction::EndProcesses);
            pod.world.source_event(SourceEvent::PodGone("web".into()));
        } else {
            pod.world.perform_all_effects();
            if pod.is_torn_down() || pod.world.running.is_empty() {
                pod.create_sandbox();
            }
            pod.label(end == End::Enrolled);
        }
        let world = &mut pod.world;
        world.advance_time(Duration::from_secs(40));
        for _ in 0..3 {
            world.handle_event(Event::Reconcile);
            world.advance_time(Duration::from_secs(40));
        }
        let replied = world.replies.keys();
        let settled: BTreeSet<_> = replied.chain(&pod.lost_calls).copied().collect();
        prop_assert!(settled.iter().eq(pod.calls.keys()), "{:?}", world.log);
        if end == End::Enrolled {
            prop_assert!(world.is_captured("web", world.running["web"]), "{:?}", world.log);
        } else {
            prop_assert!(world.served.is_empty(), "{:?}", world.log);
            prop_assert!(world.probes.is_empty(), "{:?}", world.log);
        }
        if end == End::Unenrolled {
            prop_assert_ne!(world.status.get("shop/web"), Some(&RedirectionStatus::Enabled));
            prop_assert!(!world.redirected.contains(&world.running["web"]), "{:?}", world.log);
        }
    }
}
