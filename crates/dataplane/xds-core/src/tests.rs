//! Tests of the client against a naive server: single steps, then random sequences of events.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use proptest::{collection::vec, prelude::*};

use super::*;

const ADDRESSES: TypeIndex = 0;
const POLICIES: TypeIndex = 1;

fn client(on_demand: bool) -> Client {
    let config = |type_url: &str, on_demand| TypeConfig {
        type_url: type_url.into(),
        on_demand,
    };
    Client::new(vec![config("address", on_demand), config("policy", false)])
}

fn sent_requests(effects: &[Effect]) -> Vec<DeltaRequest> {
    let request = |effect: &Effect| match effect {
        Effect::Send(request) => Some(request.clone()),
        _ => None,
    };
    effects.iter().filter_map(request).collect()
}

fn push_resources(client: &mut Client, type_url: &str, names: &[&str]) -> Vec<Effect> {
    let mut push = client.begin_push(type_url, "nonce".into());
    for name in names {
        push.accept_resource(&(*name).into(), "1", &[]);
    }
    push.finish()
}

#[test]
fn new_stream_subscribes_in_order_and_names_the_client() {
    let requests = sent_requests(&client(false).on_connected());
    let urls: Vec<_> = requests
        .iter()
        .map(|request| request.type_url.as_str())
        .collect();
    assert_eq!(urls, ["address", "policy"]);
    assert!(
        requests
            .iter()
            .all(|r| r.is_first && r.subscribe.is_empty() && r.nonce.is_none())
    );
}

#[test]
fn on_demand_subscribes_to_nothing_at_first() {
    let requests = sent_requests(&client(true).on_connected());
    assert_eq!(
        (&requests[0].subscribe[..], &requests[0].unsubscribe[..]),
        (&["*".into()][..], &["*".into()][..])
    );
    assert!(requests[1].subscribe.is_empty());
}

#[test]
fn a_push_is_acknowledged_with_its_nonce_alone() {
    let mut client = client(false);
    client.on_connected();
    let ack = sent_requests(&push_resources(&mut client, "address", &["a"]));
    let expected = DeltaRequest {
        type_url: "address".into(),
        nonce: Some("nonce".into()),
        ..DeltaRequest::default()
    };
    assert_eq!(ack, [expected]);
}

#[test]
fn a_push_of_a_foreign_type_is_acknowledged_too() {
    let mut client = client(false);
    client.on_connected();
    let ack = sent_requests(&push_resources(&mut client, "cluster", &["a"]));
    assert_eq!(ack[0].type_url, "cluster");
    assert_eq!(ack[0].error, None);
}

#[test]
fn readiness_comes_once_with_the_first_clean_push_of_every_type() {
    let mut client = client(false);
    client.on_connected();
    assert!(!push_resources(&mut client, "address", &["a"]).contains(&Effect::Ready));
    let mut bad = client.begin_push("policy", "n".into());
    bad.reject_resource("ns/p", &"no");
    assert!(!bad.finish().contains(&Effect::Ready));
    assert!(push_resources(&mut client, "policy", &[]).contains(&Effect::Ready));
    assert!(!push_resources(&mut client, "policy", &[]).contains(&Effect::Ready));
    assert!(client.is_ready());
}

#[test]
fn on_demand_types_do_not_delay_readiness() {
    let mut client = client(true);
    client.on_connected();
    assert!(push_resources(&mut client, "policy", &[]).contains(&Effect::Ready));
}

#[test]
fn a_nack_names_every_bad_resource_and_its_reason() {
    let mut client = client(false);
    client.on_connected();
    let mut push = client.begin_push("address", "n".into());
    push.accept_resource(&"good".into(), "1", &[]);
    push.reject_resource("bad", &"odd address");
    push.reject_resource("worse", &"no uid");
    let nack = sent_requests(&push.finish());
    assert_eq!(
        nack[0].error.as_deref(),
        Some("bad: odd address; worse: no uid")
    );
    assert_eq!(client.known_resources(ADDRESSES), 1);
}

#[test]
fn a_nack_of_very_many_resources_stays_small() {
    let mut client = client(false);
    client.on_connected();
    let mut push = client.begin_push("address", "n".into());
    for _ in 0..100_000 {
        push.reject_resource("näme", &"réason");
    }
    let error = sent_requests(&push.finish())[0].error.clone().unwrap();
    assert!(
        error.len() < 5000 && error.contains("100000 resources in all"),
        "{error}"
    );
}

#[test]
fn reconnect_reports_known_resources() {
    let mut client = client(false);
    client.on_connected();
    push_resources(&mut client, "address", &["a", "b"]);
    let mut second = client.begin_push("address", "n".into());
    second.remove_resource("b", Instant::now());
    second.reject_resource("a", &"bad now");
    second.finish();
    client.on_disconnected(StreamEnding::Closed);
    let requests = sent_requests(&client.on_connected());
    // The refused update leaves the last good version known: its removal must be reported.
    assert_eq!(requests[0].initial_versions, [("a".into(), "1".to_owned())]);
    assert!(requests[1].initial_versions.is_empty());
}

#[test]
fn a_demand_is_answered_by_name_by_alias_and_by_absence() {
    let mut client = client(true);
    client.on_connected();
    let now = Instant::now();
    for key in ["/10.0.0.1", "ns/host", "/10.0.0.9"] {
        let requests = sent_requests(&client.on_demand(ADDRESSES, key, now));
        assert_eq!(requests[0].subscribe, [key]);
        assert_eq!(requests[0].nonce, None);
        // A second demand sends nothing while the first is pending.
        assert!(client.on_demand(ADDRESSES, key, now).is_empty());
    }
    let mut push = client.begin_push("address", "n".into());
    push.accept_resource(&"c//Pod/ns/a".into(), "1", &["/10.0.0.1".into()]);
    push.accept_resource(&"ns/host".into(), "1", &[]);
    push.remove_resource("/10.0.0.9", now);
    let effects = push.finish();
    for key in ["/10.0.0.1", "ns/host", "/10.0.0.9"] {
        assert!(
            effects.contains(&Effect::DemandResolved {
                kind: ADDRESSES,
                name: key.into()
            }),
            "{key}"
        );
    }
}

#[test]
fn negative_responses_are_cached_for_a_while() {
    let mut client = client(true);
    client.on_connected();
    let now = Instant::now();
    client.on_demand(ADDRESSES, "/10.0.0.9", now);
    let mut push = client.begin_push("address", "n".into());
    push.remove_resource("/10.0.0.9", now);
    push.finish();
    let again = client.on_demand(ADDRESSES, "/10.0.0.9", now + Duration::from_secs(1));
    assert!(matches!(&again[..], [Effect::DemandResolved { .. }]));
    let later = client.on_demand(ADDRESSES, "/10.0.0.9", now + Duration::from_secs(60));
    assert!(matches!(&later[..], [Effect::Send(_)]));
}

#[test]
fn negative_answers_take_bounded_memory() {
    let mut client = client(true);
    client.on_connected();
    let now = Instant::now();
    let mut unsubscribed = 0;
    for number in 0..10_000 {
        let key = format!("/{number}");
        client.on_demand(ADDRESSES, &key, now);
        let mut push = client.begin_push("address", "n".into());
        push.remove_resource(&key, now);
        unsubscribed += sent_requests(&push.finish())
            .iter()
            .map(|r| r.unsubscribe.len())
            .sum::<usize>();
    }
    assert_eq!(unsubscribed, 10_000 - 4096);
}

#[test]
fn demands_made_while_disconnected_are_sent_on_the_next_stream() {
    let mut client = client(true);
    assert!(
        client
            .on_demand(ADDRESSES, "ns/host", Instant::now())
            .is_empty()
    );
    let requests = sent_requests(&client.on_connected());
    assert!(
        requests
            .iter()
            .any(|r| r.subscribe == ["ns/host"] && !r.is_first)
    );
}

#[test]
fn demands_of_wildcard_types_need_no_waiting() {
    let effects = client(false).on_demand(POLICIES, "ns/p", Instant::now());
    assert!(matches!(&effects[..], [Effect::DemandResolved { .. }]));
}

// === convergence ===

/// Resources of the naive server: versions by name. Versions that are divisible by 7 mark invalid resources.
type ServerState = BTreeMap<String, u64>;

/// Stream as the naive server sees it: the resources that it assumes the client has.
#[derive(Default)]
struct Session {
    client_resources: BTreeMap<String, u64>,
    opened: bool,
}

impl Session {
    fn on_request(&mut self, request: &DeltaRequest) {
        if request.is_first && request.type_url == "address" {
            self.opened = true;
            self.client_resources = request
                .initial_versions
                .iter()
                .map(|(name, version)| {
                    (name.to_string(), u64::from_str_radix(version, 16).unwrap())
                })
                .collect();
        }
    }

    /// Returns a push with at most `limit` changes and `limit` removals that the client lacks.
    fn next_push(
        &mut self,
        truth: &ServerState,
        limit: usize,
    ) -> (Vec<(String, u64)>, Vec<String>) {
        let changed: Vec<_> = truth
            .iter()
            .filter(|(name, version)| self.client_resources.get(*name) != Some(version))
            .map(|(name, version)| (name.clone(), *version))
            .take(limit)
            .collect();
        let removed: Vec<_> = self
            .client_resources
            .keys()
            .filter(|name| !truth.contains_key(*name))
            .take(limit)
            .cloned()
            .collect();
        for (name, version) in &changed {
            self.client_resources.insert(name.clone(), *version);
        }
        for name in &removed {
            self.client_resources.remove(name);
        }
        (changed, removed)
    }
}

#[derive(Clone, Debug)]
enum Step {
    SetResource(u8, u64),
    DeleteResource(u8),
    DeliverPush(usize),
    /// The server computes a push and the stream breaks before the client receives it.
    LosePush(usize),
    BreakStream,
}

fn random_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..12u8, 1..50u64).prop_map(|(name, version)| Step::SetResource(name, version)),
        (0..12u8).prop_map(Step::DeleteResource),
        (1..6usize).prop_map(Step::DeliverPush),
        (1..6usize).prop_map(Step::LosePush),
        Just(Step::BreakStream),
    ]
}

fn is_invalid_version(version: u64) -> bool {
    version.is_multiple_of(7)
}

/// Delivers a push to the client; `held` is the test's store of accepted resources.
fn deliver_push(
    client: &mut Client,
    accepted: &mut ServerState,
    (changed, removed): (Vec<(String, u64)>, Vec<String>),
) -> Vec<Effect> {
    let mut push = client.begin_push("address", "n".into());
    for (name, version) in changed {
        if is_invalid_version(version) {
            push.reject_resource(&name, &"bad");
        } else {
            push.accept_resource(&name.as_str().into(), &format!("{version:x}"), &[]);
            accepted.insert(name, version);
        }
    }
    for name in removed {
        push.remove_resource(&name, Instant::now());
        accepted.remove(&name);
    }
    push.finish()
}

fn reconnect(client: &mut Client) -> Session {
    let mut session = Session::default();
    for request in sent_requests(&client.on_connected()) {
        session.on_request(&request);
    }
    assert!(session.opened);
    session
}

proptest! {
    /// Checks convergence under loss: eventually the client has every valid resource at its version, no removed one,
    /// and of invalid ones at most an older valid version.
    #[test]
    fn a_client_converges_under_loss(steps in vec(random_step(), 0..60)) {
        let mut client = client(false);
        let mut session = reconnect(&mut client);
        let (mut truth, mut held) = (ServerState::new(), ServerState::new());
        for step in steps {
            match step {
                Step::SetResource(name, version) => {
                    truth.insert(format!("n{name}"), version);
                }
                Step::DeleteResource(name) => {
                    truth.remove(&format!("n{name}"));
                }
                Step::DeliverPush(limit) => {
                    let push = session.next_push(&truth, limit);
                    deliver_push(&mut client, &mut held, push);
                }
                Step::LosePush(limit) => {
                    session.next_push(&truth, limit);
                    client.on_disconnected(StreamEnding::Closed);
                    session = reconnect(&mut client);
                }
                Step::BreakStream => {
                    client.on_disconnected(StreamEnding::Refused);
                    session = reconnect(&mut client);
                }
            }
        }
        let push = session.next_push(&truth, usize::MAX);
        deliver_push(&mut client, &mut held, push);
        for (name, version) in &truth {
            if !is_invalid_version(*version) {
                prop_assert_eq!(held.get(name), Some(version));
            }
        }
        let gone: BTreeSet<_> = held.keys().filter(|name| !truth.contains_key(*name)).collect();
        prop_assert!(gone.is_empty(), "still held: {:?}", gone);
        prop_assert_eq!(client.known_resources(ADDRESSES), held.len());
    }
}
