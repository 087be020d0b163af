//! Tests of the registry with the state machines of real proxies: rollouts, timeouts, refusals, random sequences of
//! events.

use std::collections::VecDeque;

use ambit_model::PodName;
use proptest::prelude::*;

use super::*;
use crate::{ProxyEffect, ProxyEvent, ProxySide};

/// Node with the agent's registry, and with the state machines of the proxies that are connected to it.
struct TestNode {
    registry: Registry<u32>,
    now: Instant,
    proxies: BTreeMap<u64, ProxySide<u32>>,
    /// Requests that were sent to each proxy, but not processed yet.
    requests_in_flight: BTreeMap<u64, VecDeque<(Request, Option<u32>)>>,
    /// Proxies that process no requests.
    stuck_proxies: BTreeSet<u64>,
    /// Proxies whose instances fail to start.
    failing_proxies: BTreeSet<u64>,
    completed_orders: BTreeMap<u64, Result<(), OrderError>>,
    close_reasons: BTreeMap<u64, CloseReason>,
    synced: Vec<u64>,
    refusals: Vec<String>,
    last_order: u64,
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

impl TestNode {
    fn new() -> Self {
        Self {
            registry: Registry::new(),
            now: Instant::now(),
            proxies: BTreeMap::new(),
            requests_in_flight: BTreeMap::new(),
            stuck_proxies: BTreeSet::new(),
            failing_proxies: BTreeSet::new(),
            completed_orders: BTreeMap::new(),
            close_reasons: BTreeMap::new(),
            synced: Vec::new(),
            refusals: Vec::new(),
            last_order: 0,
        }
    }

    fn handle_event(&mut self, event: RegistryEvent<u32>) {
        for effect in self.registry.on_event(event, self.now) {
            match effect {
                RegistryEffect::Send(ConnectionId(id), request, netns) => {
                    let is_add = matches!(request, Request::Add { .. });
                    assert_eq!(is_add, netns.is_some(), "a descriptor belongs to an add");
                    let wire = self
                        .requests_in_flight
                        .get_mut(&id)
                        .expect("an open connection");
                    wire.push_back((request, netns));
                    assert_eq!(wire.len(), 1, "lockstep");
                }
                RegistryEffect::Close(ConnectionId(id), reason) => {
                    self.requests_in_flight.remove(&id);
                    self.close_reasons.insert(id, reason);
                    let now = self.now;
                    self.proxies
                        .get_mut(&id)
                        .unwrap()
                        .on_event(ProxyEvent::Disconnected, now);
                }
                RegistryEffect::OrderCompleted(OrderId(ticket), outcome) => {
                    let twice = self.completed_orders.insert(ticket, outcome);
                    assert_eq!(twice, None, "ticket {ticket} ended twice");
                }
                RegistryEffect::Refused(_, uid, text) => {
                    self.refusals.push(format!("{uid}: {text}"))
                }
                RegistryEffect::Synced(ConnectionId(id)) => self.synced.push(id),
            }
        }
    }

    fn accept(&mut self, id: u64) {
        self.requests_in_flight.insert(id, VecDeque::new());
        self.proxies.insert(id, ProxySide::new());
        self.handle_event(RegistryEvent::Accepted(ConnectionId(id)));
    }

    fn hello(&mut self, id: u64) {
        self.proxies
            .get_mut(&id)
            .unwrap()
            .on_event(ProxyEvent::Connected, self.now);
        self.handle_event(RegistryEvent::Hello(ConnectionId(id)));
    }

    fn connect(&mut self, id: u64) {
        self.accept(id);
        self.hello(id);
        self.process_all_requests();
    }

    fn disconnect(&mut self, id: u64) {
        self.requests_in_flight.remove(&id);
        self.proxies.remove(&id);
        self.handle_event(RegistryEvent::Closed(ConnectionId(id)));
    }

    /// Lets one proxy process its next request. Returns false if there is none, or if the proxy is stuck.
    fn process_request(&mut self, id: u64) -> bool {
        if self.stuck_proxies.contains(&id) {
            return false;
        }
        let Some((request, netns)) = self
            .requests_in_flight
            .get_mut(&id)
            .and_then(VecDeque::pop_front)
        else {
            return false;
        };
        let mut todo = VecDeque::from([ProxyEvent::Request(request, netns)]);
        while let Some(event) = todo.pop_front() {
            let effects = self.proxies.get_mut(&id).unwrap().on_event(event, self.now);
            for effect in effects {
                match effect {
                    ProxyEffect::Start {
                        uid, generation, ..
                    } if self.failing_proxies.contains(&id) => {
                        let error = "no".to_owned();
                        todo.push_back(ProxyEvent::StartFailed {
                            uid,
                            generation,
                            error,
                        });
                    }
                    ProxyEffect::Start {
                        uid, generation, ..
                    } => {
                        todo.push_back(ProxyEvent::Started { uid, generation });
                    }
                    ProxyEffect::Reply(ack) => {
                        self.handle_event(RegistryEvent::Ack(ConnectionId(id), ack));
                    }
                    ProxyEffect::Disconnect => panic!("the agent broke the contract"),
                    ProxyEffect::Stop { .. } | ProxyEffect::Update { .. } => {}
                }
            }
        }
        true
    }

    fn process_all_requests(&mut self) {
        let ids: Vec<_> = self.proxies.keys().copied().collect();
        while ids.iter().any(|id| self.process_request(*id)) {}
    }

    fn add(&mut self, uid: &str, netns: u32) -> u64 {
        self.last_order += 1;
        let ticket = OrderId(self.last_order);
        self.handle_event(RegistryEvent::Add {
            order_id: ticket,
            uid: uid.into(),
            info: workload_info(uid),
            netns,
        });
        self.last_order
    }

    fn del(&mut self, uid: &str) -> u64 {
        self.last_order += 1;
        self.handle_event(RegistryEvent::Del {
            order_id: OrderId(self.last_order),
            uid: uid.into(),
        });
        self.last_order
    }

    fn served_uids(&self, id: u64) -> Vec<&str> {
        self.proxies[&id]
            .running_pods()
            .map(|(uid, ..)| uid.as_str())
            .collect()
    }

    fn advance_clock(&mut self, duration: Duration) {
        let end = self.now + duration;
        for _ in 0..1000 {
            match self.registry.deadline() {
                Some(deadline) if deadline <= end => {
                    self.now = deadline.max(self.now);
                    self.handle_event(RegistryEvent::Tick);
                    self.process_all_requests();
                }
                _ => {
                    self.now = end;
                    return;
                }
            }
        }
        panic!("ticks without end");
    }
}

#[test]
fn the_snapshot_comes_before_updates() {
    let mut node = TestNode::new();
    node.add("a", 1);
    node.handle_event(RegistryEvent::KeepIfServed("kept".into()));
    node.accept(1);
    node.hello(1);
    node.add("b", 2);
    let mut seen = Vec::new();
    while let Some((request, _)) = node.requests_in_flight[&1].front() {
        seen.push(request.clone());
        node.process_request(1);
    }
    let names: Vec<_> = seen
        .iter()
        .map(|request| match request {
            Request::Add { uid, .. } => format!("add {uid}"),
            Request::Keep { uid } => format!("keep {uid}"),
            Request::Del { uid } => format!("del {uid}"),
            Request::SnapshotSent => "sent".to_owned(),
        })
        .collect();
    assert_eq!(names, ["add a", "keep kept", "sent", "add b"]);
    assert_eq!(
        (
            node.completed_orders[&1].clone(),
            node.completed_orders[&2].clone()
        ),
        (Ok(()), Ok(()))
    );
    assert_eq!(node.synced, [1]);
}

#[test]
fn adds_go_to_the_newest_and_deletes_to_all() {
    let mut node = TestNode::new();
    node.connect(1);
    let first = node.add("a", 1);
    node.process_all_requests();
    node.connect(2);
    let second = node.add("b", 2);
    node.process_all_requests();
    assert_eq!(
        (node.served_uids(1), node.served_uids(2)),
        (vec!["a"], vec!["a", "b"])
    );
    let gone = node.del("a");
    node.process_request(1);
    assert!(
        !node.completed_orders.contains_key(&gone),
        "the other one has not answered"
    );
    node.process_all_requests();
    assert_eq!(
        (node.served_uids(1), node.served_uids(2)),
        (vec![], vec!["b"])
    );
    for ticket in [first, second, gone] {
        assert_eq!(node.completed_orders[&ticket], Ok(()));
    }
}

#[test]
fn a_connection_without_hello_is_not_the_newest() {
    let mut node = TestNode::new();
    node.connect(1);
    node.accept(2);
    let ticket = node.add("a", 1);
    node.process_all_requests();
    assert_eq!(node.completed_orders[&ticket], Ok(()));
    node.advance_clock(Duration::from_secs(6));
    assert_eq!(node.close_reasons[&2], CloseReason::NoHello);
    assert_eq!(node.registry.connected_proxies(), 1);
}

#[test]
fn older_proxy_catches_up_when_the_newest_disconnects() {
    let mut node = TestNode::new();
    node.connect(1);
    node.connect(2);
    node.add("a", 1);
    node.process_all_requests();
    node.stuck_proxies.insert(2);
    let open = node.add("b", 2);
    let again = node.add("a", 1);
    assert_eq!(node.served_uids(1), [""; 0]);
    node.disconnect(2);
    node.process_all_requests();
    assert_eq!(node.served_uids(1), ["a", "b"]);
    assert_eq!(node.completed_orders[&open], Ok(()));
    assert_eq!(node.completed_orders[&again], Ok(()));
}

#[test]
fn order_waits_for_a_proxy_until_its_timeout() {
    let mut node = TestNode::new();
    let soon = node.add("a", 1);
    node.advance_clock(Duration::from_secs(3));
    node.connect(1);
    assert_eq!(node.completed_orders[&soon], Ok(()));
    node.disconnect(1);
    let never = node.add("b", 2);
    node.advance_clock(DELIVERY_TIMEOUT);
    assert_eq!(node.completed_orders[&never], Err(OrderError::NoProxy));
    // The pod is still to be served.
    node.connect(2);
    assert_eq!(node.served_uids(2), ["a", "b"]);
}

#[test]
fn deleting_without_a_proxy_is_done_at_once() {
    let mut node = TestNode::new();
    let add = node.add("a", 1);
    let del = node.del("a");
    assert_eq!(node.completed_orders[&add], Err(OrderError::Withdrawn));
    assert_eq!(node.completed_orders[&del], Ok(()));
    node.connect(1);
    assert_eq!(node.served_uids(1), [""; 0]);
}

#[test]
fn a_refusal_reaches_the_caller_with_its_text() {
    let mut node = TestNode::new();
    node.failing_proxies.insert(1);
    node.connect(1);
    let ticket = node.add("a", 1);
    node.process_all_requests();
    let Err(OrderError::Refused(text)) = &node.completed_orders[&ticket] else {
        panic!()
    };
    assert_eq!(text, "failure to start proxy : no");
    assert_eq!(node.refusals.len(), 1);
    assert_eq!(node.registry.connected_proxies(), 1, "the connection stays");
}

#[test]
fn late_acknowledgement_never_counts_for_another_request() {
    let mut node = TestNode::new();
    node.connect(1);
    node.stuck_proxies.insert(1);
    let slow = node.add("a", 1);
    node.advance_clock(DELIVERY_TIMEOUT);
    assert_eq!(
        node.completed_orders[&slow],
        Err(OrderError::NoAcknowledgement)
    );
    let next = node.add("b", 2);
    assert_eq!(
        node.requests_in_flight[&1].len(),
        1,
        "not sent before the answer to the one before"
    );
    node.failing_proxies.insert(1);
    node.stuck_proxies.clear();
    node.process_request(1);
    assert!(
        !node.completed_orders.contains_key(&next),
        "the refusal was for a"
    );
    node.failing_proxies.clear();
    node.process_all_requests();
    assert_eq!(node.completed_orders[&next], Ok(()));
}

#[test]
fn a_proxy_that_never_answers_loses_its_connection() {
    let mut node = TestNode::new();
    node.connect(1);
    node.stuck_proxies.insert(1);
    node.add("a", 1);
    node.advance_clock(Duration::from_secs(31));
    assert_eq!(node.close_reasons[&1], CloseReason::NoAcknowledgement);
    assert_eq!(node.registry.connected_proxies(), 0);
    node.connect(2);
    assert_eq!(node.served_uids(2), ["a"]);
}

#[test]
fn unexpected_record_ends_the_connection() {
    let mut node = TestNode::new();
    for (id, event) in [
        (1, RegistryEvent::Ack(ConnectionId(1), Ok(()))),
        (2, RegistryEvent::Hello(ConnectionId(2))),
        (
            3,
            RegistryEvent::Unexpected(ConnectionId(3), "junk".to_owned()),
        ),
    ] {
        node.connect(id);
        assert_eq!(
            node.registry.expected_record(ConnectionId(id)),
            ExpectedRecord::None
        );
        node.handle_event(event);
        assert!(matches!(
            node.close_reasons[&id],
            CloseReason::UnexpectedRecord(_)
        ));
    }
    node.accept(4);
    assert_eq!(
        node.registry.expected_record(ConnectionId(4)),
        ExpectedRecord::Hello
    );
    node.handle_event(RegistryEvent::Ack(ConnectionId(4), Ok(())));
    assert!(matches!(
        node.close_reasons[&4],
        CloseReason::UnexpectedRecord(_)
    ));
    assert_eq!(node.registry.connected_proxies(), 0);
}

#[test]
fn delete_does_not_wait_for_a_disconnected_proxy() {
    let mut node = TestNode::new();
    node.connect(1);
    node.connect(2);
    node.add("a", 1);
    node.process_all_requests();
    node.stuck_proxies.insert(1);
    let ticket = node.del("a");
    node.process_all_requests();
    assert!(!node.completed_orders.contains_key(&ticket));
    node.disconnect(1);
    assert_eq!(node.completed_orders[&ticket], Ok(()));
}

#[test]
fn a_newer_namespace_withdraws_the_order_for_the_older_one() {
    let mut node = TestNode::new();
    node.connect(1);
    node.stuck_proxies.insert(1);
    let old = node.add("a", 1);
    let new = node.add("a", 2);
    assert_eq!(node.completed_orders[&old], Err(OrderError::Withdrawn));
    node.stuck_proxies.clear();
    node.process_all_requests();
    assert_eq!(node.completed_orders[&new], Ok(()));
}

#[test]
fn slow_proxy_is_disconnected() {
    let mut node = TestNode::new();
    node.connect(1);
    node.stuck_proxies.insert(1);
    for number in 0..5000 {
        node.del(&number.to_string());
    }
    assert_eq!(node.close_reasons[&1], CloseReason::QueueOverflow);
    assert_eq!(node.completed_orders.len(), 5000);
    // A pod that is added repeatedly does not fill the queue.
    node.connect(2);
    node.stuck_proxies.insert(2);
    for _ in 0..5000 {
        node.add("a", 1);
    }
    assert!(!node.close_reasons.contains_key(&2));
}

#[derive(Clone, Debug)]
enum RandomStep {
    Add(u8, u32),
    Del(u8),
    Connect,
    Disconnect(u8),
    ProcessRequests(u8, u8),
    SetStuck(u8, bool),
    SetFailing(u8, bool),
    AdvanceClock(u8),
}

fn random_step() -> impl Strategy<Value = RandomStep> {
    prop_oneof![
        4 => (0..4u8, 1..5u32).prop_map(|(uid, netns)| RandomStep::Add(uid, netns)),
        2 => (0..4u8).prop_map(RandomStep::Del),
        2 => Just(RandomStep::Connect),
        1 => (0..4u8).prop_map(RandomStep::Disconnect),
        6 => (0..4u8, 1..6u8).prop_map(|(which, times)| RandomStep::ProcessRequests(which, times)),
        1 => (0..4u8, any::<bool>()).prop_map(|(which, on)| RandomStep::SetStuck(which, on)),
        1 => (0..4u8, any::<bool>()).prop_map(|(which, on)| RandomStep::SetFailing(which, on)),
        1 => (0..15u8).prop_map(RandomStep::AdvanceClock),
    ]
}

proptest! {
    /// Checks that after any sequence of events a newly connected proxy serves exactly the desired pods in their newest
    /// namespaces, and every order has ended.
    #[test]
    fn the_newest_proxy_serves_exactly_the_desired_pods(
        moves in proptest::collection::vec(random_step(), 0..60),
    ) {
        let mut node = TestNode::new();
        let mut desired: BTreeMap<String, u32> = BTreeMap::new();
        let mut next = 0;
        let pick = |node: &TestNode, which: u8| {
            let open: Vec<_> = node.requests_in_flight.keys().copied().collect();
            (!open.is_empty()).then(|| open[usize::from(which) % open.len()])
        };
        for one in moves {
            match one {
                RandomStep::Add(uid, netns) => {
                    node.add(&uid.to_string(), netns);
                    desired.insert(uid.to_string(), netns);
                }
                RandomStep::Del(uid) => {
                    node.del(&uid.to_string());
                    desired.remove(&uid.to_string());
                }
                RandomStep::Connect => {
                    next += 1;
                    node.accept(next);
                    node.hello(next);
                }
                RandomStep::Disconnect(which) => {
                    if let Some(id) = pick(&node, which) {
                        node.disconnect(id);
                    }
                }
                RandomStep::ProcessRequests(which, times) => {
                    if let Some(id) = pick(&node, which) {
                        for _ in 0..times { node.process_request(id); }
                    }
                }
                RandomStep::SetStuck(which, on) => {
                    if let Some(id) = pick(&node, which) {
                        if on { node.stuck_proxies.insert(id); } else { node.stuck_proxies.remove(&id); }
                    }
                }
                RandomStep::SetFailing(which, on) => {
                    if let Some(id) = pick(&node, which) {
                        if on { node.failing_proxies.insert(id); } else { node.failing_proxies.remove(&id); }
                    }
                }
                RandomStep::AdvanceClock(seconds) => node.advance_clock(Duration::from_secs(u64::from(seconds))),
            }
        }
        node.failing_proxies.clear();
        node.stuck_proxies.clear();
        // The newest disconnects, and the one before must be sent everything; then a new one
        // connects.
        if let Some(newest) = node.requests_in_flight.keys().next_back().copied() {
            node.disconnect(newest);
        }
        node.process_all_requests();
        if let Some(newest) = node.requests_in_flight.keys().next_back().copied() {
            let known: BTreeMap<String, ()> =
                node.proxies[&newest].running_pods().map(|(uid, ..)| (uid.to_string(), ())).collect();
            let pending = node.proxies[&newest].pending_pods().count();
            prop_assert_eq!(known.len() + pending, desired.len());
        }
        node.connect(next + 1);
        let served: Vec<_> = node.served_uids(next + 1).into_iter().map(str::to_owned).collect();
        prop_assert_eq!(served, desired.keys().cloned().collect::<Vec<_>>());
        node.process_all_requests();
        node.advance_clock(DELIVERY_TIMEOUT);
        prop_assert_eq!(node.completed_orders.len() as u64, node.last_order);
    }
}
