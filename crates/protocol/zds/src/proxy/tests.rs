//! Tests of the node proxy's side: single requests, then random sequences of events.

use ambit_model::PodName;
use proptest::prelude::*;

use super::*;

type Effects = Vec<ProxyEffect<u32>>;

/// Node proxy's state under test, with a simulated agent and clock.
struct TestProxy {
    proxy: ProxySide<u32>,
    now: Instant,
}

fn workload_info(name: &str) -> WorkloadInfo {
    let pod = PodName {
        name: name.into(),
        namespace: "ns".into(),
        service_account: "sa".into(),
    };
    WorkloadInfo {
        pod,
        addresses: vec![],
    }
}

fn ack() -> ProxyEffect<u32> {
    ProxyEffect::Reply(Ok(()))
}

impl TestProxy {
    fn new() -> Self {
        Self {
            proxy: ProxySide::new(),
            now: Instant::now(),
        }
    }

    /// Creates a connected proxy that has started all pods of a snapshot, in the network namespaces 1, 2, and so on.
    fn with_pods(pods: &[&str]) -> Self {
        let mut pair = Self::new();
        pair.handle_event(ProxyEvent::Connected);
        for (netns, uid) in (1..).zip(pods) {
            pair.add_started(uid, netns);
        }
        assert_eq!(pair.send_request(Request::SnapshotSent), [ack()]);
        assert!(pair.proxy.is_ready());
        pair
    }

    fn handle_event(&mut self, event: ProxyEvent<u32>) -> Effects {
        self.proxy.on_event(event, self.now)
    }

    fn send_request(&mut self, request: Request) -> Effects {
        self.handle_event(ProxyEvent::Request(request, None))
    }

    fn send_del(&mut self, uid: &str) -> Effects {
        self.send_request(Request::Del { uid: uid.into() })
    }

    fn send_keep(&mut self, uid: &str) -> Effects {
        self.send_request(Request::Keep { uid: uid.into() })
    }

    fn send_add(&mut self, uid: &str, netns: u32) -> Effects {
        let add = Request::Add {
            uid: uid.into(),
            info: Some(workload_info(uid)),
        };
        self.handle_event(ProxyEvent::Request(add, Some(netns)))
    }

    fn add_started(&mut self, uid: &str, netns: u32) -> Generation {
        let generation = started_generation(&self.send_add(uid, netns), netns);
        assert_eq!(self.report_started(uid, generation), [ack()]);
        generation
    }

    fn report_started(&mut self, uid: &str, generation: Generation) -> Effects {
        self.handle_event(ProxyEvent::Started {
            uid: uid.into(),
            generation,
        })
    }

    fn report_start_failed(&mut self, uid: &str, generation: Generation) -> Effects {
        let error = "address in use".to_owned();
        self.handle_event(ProxyEvent::StartFailed {
            uid: uid.into(),
            generation,
            error,
        })
    }

    fn running_uids(&self) -> Vec<&str> {
        self.proxy
            .running_pods()
            .map(|(uid, ..)| uid.as_str())
            .collect()
    }

    fn pending_uids(&self) -> Vec<&str> {
        self.proxy
            .pending_pods()
            .map(|(uid, ..)| uid.as_str())
            .collect()
    }

    /// Advances the clock to the next retry and sends a tick.
    fn advance_to_retry(&mut self) -> Effects {
        self.now = self.proxy.deadline().unwrap();
        self.handle_event(ProxyEvent::Tick)
    }
}

/// Returns the generation of the only start among the effects. Checks that it has this network namespace.
fn started_generation(effects: &Effects, in_netns: u32) -> Generation {
    let mut starts = effects.iter().filter_map(|effect| match effect {
        ProxyEffect::Start {
            generation, netns, ..
        } => Some((*generation, *netns)),
        _ => None,
    });
    let (generation, netns) = starts.next().expect("a start");
    assert_eq!((netns, starts.next()), (in_netns, None));
    generation
}

fn refusal_text(effects: &Effects) -> &str {
    match &effects[..] {
        [ProxyEffect::Reply(Err(text)), ProxyEffect::Disconnect] => text,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn surrendered_pod_is_started_when_added_again() {
    let mut pair = TestProxy::with_pods(&["a"]);
    pair.handle_event(ProxyEvent::Disconnected);
    let effects = pair.proxy.surrender(&"a".into());
    assert!(
        matches!(
            &effects[..],
            [ProxyEffect::Stop {
                reason: StopReason::Surrendered,
                ..
            }]
        ),
        "{effects:?}"
    );
    assert_eq!(pair.proxy.surrender(&"a".into()), []);
    pair.handle_event(ProxyEvent::Connected);
    pair.add_started("a", 1);
}

#[test]
fn pods_from_before_the_process_are_served_and_the_snapshot_decides() {
    let mut pair = TestProxy::new();
    for (netns, uid) in (1..).zip(["a", "b", "c"]) {
        pair.proxy.restore(uid.into(), workload_info(uid), netns);
    }
    assert_eq!(pair.proxy.running_pods().count(), 3);
    assert!(!pair.proxy.is_ready(), "the agent has not spoken yet");
    pair.handle_event(ProxyEvent::Connected);
    assert_eq!(pair.send_add("a", 1), [ack()], "stands already");
    let effects = pair.send_add("b", 7);
    assert!(
        matches!(
            &effects[..],
            [
                ProxyEffect::Stop {
                    reason: StopReason::Replaced,
                    ..
                },
                ProxyEffect::Start { .. }
            ]
        ),
        "{effects:?}"
    );
    let generation = pair.proxy.pods["b"].generation;
    assert_eq!(pair.report_started("b", generation), [ack()]);
    let effects = pair.send_request(Request::SnapshotSent);
    assert!(
        matches!(&effects[..], [ProxyEffect::Stop { uid, reason: StopReason::NotInSnapshot, .. }, ProxyEffect::Reply(Ok(()))] if uid == "c"),
        "{effects:?}"
    );
    assert!(pair.proxy.is_ready());
}

#[test]
fn adds_are_acknowledged_once_listeners_are_bound() {
    let mut pair = TestProxy::with_pods(&[]);
    let effects = pair.send_add("a", 1);
    assert!(!effects.contains(&ack()));
    let generation = started_generation(&effects, 1);
    assert_eq!(pair.report_started("a", generation), [ack()]);
    assert_eq!(pair.running_uids(), ["a"]);
}

#[test]
fn adding_twice_makes_one_proxy() {
    let mut pair = TestProxy::with_pods(&["a"]);
    assert_eq!(pair.send_add("a", 1), [ack()]);
    assert_eq!(pair.running_uids(), ["a"]);
}

#[test]
fn a_new_namespace_replaces_the_old_proxy() {
    let mut pair = TestProxy::with_pods(&["a"]);
    let old = pair.proxy.running_pods().next().unwrap().2;
    let effects = pair.send_add("a", 9);
    let reason = StopReason::Replaced;
    assert_eq!(
        effects[0],
        ProxyEffect::Stop {
            uid: "a".into(),
            generation: old,
            reason
        }
    );
    let generation = started_generation(&effects, 9);
    assert_eq!(pair.report_started("a", generation), [ack()]);
}

#[test]
fn description_of_a_pod_changes_without_a_restart() {
    let mut pair = TestProxy::with_pods(&["a"]);
    let mut changed = workload_info("a");
    changed.addresses.push([10, 0, 0, 1].into());
    let add = Request::Add {
        uid: "a".into(),
        info: Some(changed.clone()),
    };
    let effects = pair.handle_event(ProxyEvent::Request(add, Some(1)));
    assert!(matches!(&effects[0], ProxyEffect::Update { info, .. } if *info == changed));
    assert_eq!(effects[1..], [ack()]);
}

#[test]
fn a_failed_start_is_rejected_and_retried() {
    let mut pair = TestProxy::with_pods(&[]);
    let generation = started_generation(&pair.send_add("a", 1), 1);
    let effects = pair.report_start_failed("a", generation);
    assert_eq!(
        effects,
        [ProxyEffect::Reply(Err(
            "failure to start proxy : address in use".to_owned()
        ))]
    );
    assert_eq!(
        (pair.pending_uids(), pair.proxy.is_ready()),
        (vec!["a"], false)
    );
    assert_eq!(
        pair.proxy.deadline(),
        Some(pair.now + PENDING_RETRY_INTERVAL)
    );
    assert_eq!(
        pair.handle_event(ProxyEvent::Tick),
        [],
        "not before its time"
    );
    let second = started_generation(&pair.advance_to_retry(), 1);
    assert_eq!(pair.pending_uids(), ["a"], "until it stands");
    assert_eq!(
        pair.report_start_failed("a", second),
        [],
        "nobody waits for this answer"
    );
    let third = started_generation(&pair.advance_to_retry(), 1);
    assert_eq!(pair.report_started("a", third), []);
    assert!(pair.proxy.is_ready());
}

#[test]
fn a_later_add_wins_over_a_pending_one() {
    let mut pair = TestProxy::with_pods(&[]);
    let first = started_generation(&pair.send_add("a", 1), 1);
    pair.report_start_failed("a", first);
    let second = started_generation(&pair.send_add("a", 2), 2);
    assert_eq!(pair.report_started("a", second), [ack()]);
    assert_eq!(pair.proxy.deadline(), None, "nothing is retried");
    assert_eq!(
        (pair.running_uids(), pair.pending_uids()),
        (vec!["a"], vec![])
    );
}

#[test]
fn a_retry_in_flight_cannot_undo_a_later_add() {
    let mut pair = TestProxy::with_pods(&[]);
    let first = started_generation(&pair.send_add("a", 1), 1);
    pair.report_start_failed("a", first);
    let retry = started_generation(&pair.advance_to_retry(), 1);
    let effects = pair.send_add("a", 2);
    assert!(matches!(&effects[0], ProxyEffect::Stop { generation, .. } if *generation == retry));
    let newest = started_generation(&effects, 2);
    assert_eq!(pair.report_start_failed("a", retry), [], "an old outcome");
    assert_eq!(pair.report_started("a", newest), [ack()]);
    assert_eq!(
        (pair.running_uids(), pair.pending_uids()),
        (vec!["a"], vec![])
    );
}

#[test]
fn an_add_of_the_same_namespace_joins_a_retry_in_flight() {
    let mut pair = TestProxy::with_pods(&[]);
    let first = started_generation(&pair.send_add("a", 1), 1);
    pair.report_start_failed("a", first);
    let retry = started_generation(&pair.advance_to_retry(), 1);
    assert_eq!(pair.send_add("a", 1), []);
    assert_eq!(pair.report_started("a", retry), [ack()]);
}

#[test]
fn deleting_a_pod_clears_its_pending_start() {
    let mut pair = TestProxy::with_pods(&[]);
    let first = started_generation(&pair.send_add("a", 1), 1);
    pair.report_start_failed("a", first);
    assert_eq!(pair.send_del("a"), [ack()]);
    assert!(pair.proxy.is_ready() && pair.proxy.deadline().is_none());
}

#[test]
fn a_deleted_pod_is_stopped_and_an_unknown_one_is_no_error() {
    let mut pair = TestProxy::with_pods(&["a"]);
    let effects = pair.send_del("a");
    assert!(matches!(
        &effects[0],
        ProxyEffect::Stop {
            reason: StopReason::Deleted,
            ..
        }
    ));
    assert_eq!(effects[1..], [ack()]);
    assert_eq!(pair.send_del("a"), [ack()]);
    let generation = pair.add_started("a", 1);
    assert_eq!(pair.proxy.running_pods().next().unwrap().2, generation);
}

#[test]
fn a_start_that_ends_after_its_pod_is_deleted_changes_nothing() {
    let mut pair = TestProxy::with_pods(&[]);
    let first = started_generation(&pair.send_add("a", 1), 1);
    pair.report_start_failed("a", first);
    let retry = started_generation(&pair.advance_to_retry(), 1);
    let effects = pair.send_del("a");
    assert!(matches!(&effects[0], ProxyEffect::Stop { generation, .. } if *generation == retry));
    assert_eq!(pair.report_started("a", retry), []);
    assert_eq!(pair.running_uids(), [""; 0]);
}

#[test]
fn snapshot_stops_pods_that_it_omits() {
    let mut pair = TestProxy::with_pods(&["a", "b", "c"]);
    pair.handle_event(ProxyEvent::Disconnected);
    assert_eq!(pair.running_uids().len(), 3, "served without the agent");
    assert!(!pair.proxy.is_ready());
    pair.handle_event(ProxyEvent::Connected);
    assert_eq!(pair.send_add("a", 1), [ack()]);
    assert_eq!(pair.send_keep("b"), [ack()]);
    let effects = pair.send_request(Request::SnapshotSent);
    assert!(matches!(&effects[0],
        ProxyEffect::Stop { uid, reason: StopReason::NotInSnapshot, .. } if uid == "c"));
    assert_eq!(effects[1..], [ack()]);
    assert_eq!(pair.running_uids(), ["a", "b"]);
    assert!(pair.proxy.is_ready());
}

#[test]
fn a_delete_within_the_snapshot_takes_effect_at_its_end() {
    let mut pair = TestProxy::with_pods(&["a"]);
    pair.handle_event(ProxyEvent::Disconnected);
    pair.handle_event(ProxyEvent::Connected);
    pair.send_keep("a");
    assert_eq!(pair.send_del("a"), [ack()]);
    assert_eq!(pair.running_uids(), ["a"]);
    pair.send_request(Request::SnapshotSent);
    assert_eq!(pair.running_uids(), [""; 0]);
}

#[test]
fn add_delete_add_within_a_snapshot_ends_with_the_pod() {
    let mut pair = TestProxy::new();
    pair.handle_event(ProxyEvent::Connected);
    pair.add_started("a", 1);
    pair.send_del("a");
    assert_eq!(pair.send_add("a", 1), [ack()]);
    assert_eq!(pair.send_request(Request::SnapshotSent), [ack()]);
    assert_eq!(pair.running_uids(), ["a"]);
}

#[test]
fn pending_pods_survive_a_reconnect_if_the_snapshot_has_them() {
    for keep in [true, false] {
        let mut pair = TestProxy::with_pods(&[]);
        let first = started_generation(&pair.send_add("a", 1), 1);
        pair.report_start_failed("a", first);
        pair.handle_event(ProxyEvent::Disconnected);
        pair.handle_event(ProxyEvent::Connected);
        if keep {
            pair.send_keep("a");
        }
        assert_eq!(pair.send_request(Request::SnapshotSent), [ack()]);
        assert_eq!(pair.pending_uids(), if keep { vec!["a"] } else { vec![] });
    }
}

#[test]
fn an_answer_never_goes_to_another_connection() {
    let mut pair = TestProxy::with_pods(&[]);
    let generation = started_generation(&pair.send_add("a", 1), 1);
    pair.handle_event(ProxyEvent::Disconnected);
    pair.handle_event(ProxyEvent::Connected);
    assert_eq!(pair.report_started("a", generation), []);
    // The new connection's snapshot finds it established.
    assert_eq!(pair.send_add("a", 1), [ack()]);
}

#[test]
fn contract_violations_are_reported_and_end_the_connection() {
    let no_info = Request::Add {
        uid: "a".into(),
        info: None,
    };
    let add = Request::Add {
        uid: "a".into(),
        info: Some(workload_info("a")),
    };
    let cases: [(&str, ProxyEvent<u32>); 6] = [
        ("has no workload", ProxyEvent::Request(no_info, Some(1))),
        (
            "without a network namespace",
            ProxyEvent::Request(add, None),
        ),
        (
            "not an add",
            ProxyEvent::Request(Request::Del { uid: "a".into() }, Some(1)),
        ),
        (
            "after the snapshot",
            ProxyEvent::Request(Request::Keep { uid: "a".into() }, None),
        ),
        (
            "second end",
            ProxyEvent::Request(Request::SnapshotSent, None),
        ),
        ("garbage", ProxyEvent::Malformed("garbage".to_owned())),
    ];
    for (expected, event) in cases {
        let mut pair = TestProxy::with_pods(&["b"]);
        let effects = pair.handle_event(event);
        let text = refusal_text(&effects);
        assert!(text.starts_with("failure to process message : "), "{text}");
        assert!(text.contains(expected), "{text}");
        assert_eq!(pair.running_uids(), ["b"], "pods stay");
        assert_eq!(
            pair.send_del("b"),
            [],
            "nothing is taken from a connection given up"
        );
    }
}

#[test]
fn pipelined_request_violates_the_contract() {
    let mut pair = TestProxy::with_pods(&[]);
    let generation = started_generation(&pair.send_add("a", 1), 1);
    refusal_text(&pair.send_del("b"));
    assert_eq!(
        pair.report_started("a", generation),
        [],
        "nobody is there to hear it"
    );
    assert_eq!(pair.running_uids(), ["a"]);
}

#[test]
fn a_long_error_fits_into_a_record() {
    let mut pair = TestProxy::with_pods(&[]);
    let generation = started_generation(&pair.send_add("a", 1), 1);
    let error = "é".repeat(4000);
    let effects = pair.handle_event(ProxyEvent::StartFailed {
        uid: "a".into(),
        generation,
        error,
    });
    assert!(
        matches!(&effects[..], [ProxyEffect::Reply(Err(text))] if text.len() <= MAX_ACK_TEXT_BYTES)
    );
}

#[derive(Clone, Debug)]
enum RandomStep {
    Add(u8, u32),
    Keep(u8),
    Del(u8),
    SnapshotSent,
    Reconnect,
    Tick,
    FinishStart(bool),
}

fn random_step() -> impl Strategy<Value = RandomStep> {
    prop_oneof![
        4 => (0..3u8, 1..4u32).prop_map(|(uid, netns)| RandomStep::Add(uid, netns)),
        1 => (0..3u8).prop_map(RandomStep::Keep),
        2 => (0..3u8).prop_map(RandomStep::Del),
        1 => Just(RandomStep::SnapshotSent),
        1 => Just(RandomStep::Reconnect),
        1 => Just(RandomStep::Tick),
        4 => any::<bool>().prop_map(RandomStep::FinishStart),
    ]
}

proptest! {
    /// Checks that exactly one instance runs for each served pod, each request gets at most one
    /// acknowledgement, and a valid snapshot results in the pods that it names.
    #[test]
    fn any_order_of_events_keeps_one_instance_per_pod(
        moves in proptest::collection::vec(random_step(), 0..60),
    ) {
        let mut pair = TestProxy::new();
        let mut alive: BTreeMap<Generation, (PodUid, u32)> = BTreeMap::new();
        let mut starting: Vec<(PodUid, Generation)> = Vec::new();
        let mut connected = false;
        let mut owed = 0;
        let absorb = |effects: Effects,
                          alive: &mut BTreeMap<Generation, (PodUid, u32)>,
                          starting: &mut Vec<(PodUid, Generation)>,
                          connected: &mut bool,
                          owed: &mut i32| {
            for effect in effects {
                match effect {
                    ProxyEffect::Start { uid, generation, netns, .. } => {
                        starting.push((uid.clone(), generation));
                        assert!(alive.insert(generation, (uid, netns)).is_none());
                    }
                    ProxyEffect::Stop { uid, generation, .. } => {
                        assert_eq!(alive.remove(&generation).map(|(of, _)| of), Some(uid));
                    }
                    ProxyEffect::Reply(_) => {
                        *owed -= 1;
                        assert!(*owed >= 0, "an answer to nothing");
                    }
                    ProxyEffect::Disconnect => {
                        *connected = false;
                        *owed = 0;
                    }
                    ProxyEffect::Update { .. } => {}
                }
            }
        };
        for one in moves {
            let effects = match one {
                RandomStep::Reconnect => {
                    owed = 0;
                    connected = true;
                    pair.handle_event(ProxyEvent::Disconnected);
                    pair.handle_event(ProxyEvent::Connected)
                }
                RandomStep::Tick => {
                    pair.now += PENDING_RETRY_INTERVAL;
                    pair.handle_event(ProxyEvent::Tick)
                }
                RandomStep::FinishStart(ok) => {
                    let Some((uid, generation)) = starting.pop() else { continue };
                    if ok {
                        pair.report_started(&uid, generation)
                    } else {
                        alive.remove(&generation);
                        pair.report_start_failed(&uid, generation)
                    }
                }
                // The agent waits for answers.
                _ if owed > 0 || !connected => continue,
                request => {
                    owed += 1;
                    match request {
                        RandomStep::Add(uid, netns) => pair.send_add(&uid.to_string(), netns),
                        RandomStep::Keep(uid) => pair.send_keep(&uid.to_string()),
                        RandomStep::Del(uid) => pair.send_del(&uid.to_string()),
                        _ => pair.send_request(Request::SnapshotSent),
                    }
                }
            };
            absorb(effects, &mut alive, &mut starting, &mut connected, &mut owed);
            let mut by_pod = BTreeSet::new();
            for (uid, _) in alive.values() {
                prop_assert!(by_pod.insert(uid.clone()), "two instances of {}", uid);
            }
            for uid in pair.running_uids() {
                prop_assert!(by_pod.contains(uid));
            }
        }
        // A complete snapshot of one pod in namespace 7.
        pair.handle_event(ProxyEvent::Disconnected);
        pair.handle_event(ProxyEvent::Connected);
        owed = 1;
        let effects = pair.send_add("0", 7);
        absorb(effects, &mut alive, &mut starting, &mut connected, &mut owed);
        while let Some((uid, generation)) = starting.pop() {
            let effects = pair.report_started(&uid, generation);
            absorb(effects, &mut alive, &mut starting, &mut connected, &mut owed);
        }
        prop_assert_eq!(owed, 0);
        owed = 1;
        let effects = pair.send_request(Request::SnapshotSent);
        absorb(effects, &mut alive, &mut starting, &mut connected, &mut owed);
        prop_assert_eq!(alive.into_values().collect::<Vec<_>>(), [(PodUid::from("0"), 7)]);
        prop_assert!(pair.proxy.is_ready());
    }
}
