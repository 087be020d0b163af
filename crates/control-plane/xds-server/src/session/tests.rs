//! Tests of the protocol without a network: requests as input, decoded responses as output.

mod waypoints;

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc};

use ambit_derive::{Delta, ServiceRecord};
use ambit_model::{Authorization, NamespacedHostname, NetworkAddress, Service, Workload};
use ambit_wire::{
    discovery::{DeltaDiscoveryResponse, Status},
    encode::AUTHORIZATION_TYPE_URL,
};
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::encoded_record::Collection;

const NODE: &str = "n1";

fn client() -> Client {
    Client {
        node: NODE.into(),
        waypoint: None,
    }
}

fn pod(name: &str, node: &str, ip: u8, service: Option<&str>, capacity: u32) -> Delta {
    let uid: ArcStr = arcstr::format!("c1//Pod/shop/{name}");
    let services = service.map(|service| {
        (
            NamespacedHostname::new("shop", service),
            [(80, 8080)].into(),
        )
    });
    let workload = Workload {
        uid: uid.clone(),
        node: node.into(),
        workload_ips: vec![Ipv4Addr::new(10, 0, 0, ip).into()],
        services: services.into_iter().collect(),
        capacity,
        ..Workload::default()
    };
    Delta {
        workloads: vec![(uid, Some(Arc::new(workload)))],
        ..Delta::default()
    }
}

fn remove_pod(name: &str) -> Delta {
    Delta {
        workloads: vec![(arcstr::format!("c1//Pod/shop/{name}"), None)],
        ..Delta::default()
    }
}

fn service(name: &str, ip: u8) -> Delta {
    let service = Service {
        name: name.into(),
        namespace: "shop".into(),
        hostname: name.into(),
        vips: vec![NetworkAddress::new("", Ipv4Addr::new(10, 96, 0, ip).into())],
        ..Service::default()
    };
    let record = ServiceRecord {
        service,
        ..ServiceRecord::default()
    };
    Delta {
        services: vec![(
            NamespacedHostname::new("shop", name),
            Some(Arc::new(record)),
        )],
        ..Delta::default()
    }
}

fn policy(name: &str, dry_run: bool) -> Delta {
    let policy = Authorization {
        name: name.into(),
        namespace: "shop".into(),
        dry_run,
        ..Authorization::default()
    };
    Delta {
        policies: vec![(policy.key(), Some(Arc::new(policy)))],
        ..Delta::default()
    }
}

fn remove_policy(name: &str) -> Delta {
    let policy = Authorization {
        name: name.into(),
        namespace: "shop".into(),
        ..Authorization::default()
    };
    Delta {
        policies: vec![(policy.key(), None)],
        ..Delta::default()
    }
}

fn decode(push: &Push) -> DeltaDiscoveryResponse {
    let bytes: Vec<u8> = push.message().flatten().collect();
    let (head, message) = bytes.split_at(5);
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    assert_eq!(head, [&[0], length.as_slice()].concat());
    DeltaDiscoveryResponse::decode(message).unwrap()
}

/// Client that stores the received records by type.
struct TestClient {
    session: Session,
    known: BTreeMap<ResourceType, BTreeMap<String, String>>,
}

impl TestClient {
    fn new() -> Self {
        Self {
            session: Session::new(client(), 7),
            known: BTreeMap::new(),
        }
    }

    fn receive(&mut self, pushes: &[Push]) -> Vec<DeltaDiscoveryResponse> {
        let responses: Vec<_> = pushes.iter().map(decode).collect();
        for (push, response) in pushes.iter().zip(&responses) {
            let known = self
                .known
                .entry(push.batch.view.resource_type())
                .or_default();
            for resource in &response.resources {
                known.insert(resource.name.clone(), resource.version.clone());
            }
            for name in &response.removed_resources {
                known.remove(name);
            }
        }
        responses
    }

    fn send(
        &mut self,
        request: &DeltaDiscoveryRequest,
        store: &Store,
    ) -> Vec<DeltaDiscoveryResponse> {
        let (_, pushes) = self.session.on_request(request, store).unwrap();
        self.receive(&pushes)
    }

    /// Acknowledges a response, and returns the responses that follow.
    fn ack(
        &mut self,
        response: &DeltaDiscoveryResponse,
        store: &Store,
    ) -> Vec<DeltaDiscoveryResponse> {
        let request = DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        };
        self.send(&request, store)
    }

    fn receive_changes(&mut self, store: &Store) -> Vec<DeltaDiscoveryResponse> {
        let pushes = self.session.on_change(store).unwrap();
        self.receive(&pushes)
    }
}

fn first_request(kind: ResourceType) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: kind.type_url().into(),
        ..DeltaDiscoveryRequest::default()
    }
}

fn on_demand_request() -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        resource_names_subscribe: vec!["*".into()],
        resource_names_unsubscribe: vec!["*".into()],
        ..first_request(ResourceType::Address)
    }
}

fn subscribe_request(key: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        resource_names_subscribe: vec![key.into()],
        ..first_request(ResourceType::Address)
    }
}

fn store(deltas: &[Delta]) -> Store {
    let mut store = Store::default();
    for delta in deltas {
        store.update(delta);
    }
    store
}

fn names(response: &DeltaDiscoveryResponse) -> Vec<&str> {
    response
        .resources
        .iter()
        .map(|resource| resource.name.as_str())
        .collect()
}

#[test]
fn wildcard_client_gets_all_then_changes_then_removals() {
    let mut store = store(&[pod("a", "n9", 1, Some("s"), 1), service("s", 1)]);
    let mut peer = TestClient::new();
    let responses = peer.send(&first_request(ResourceType::Address), &store);
    assert_eq!(names(&responses[0]), ["c1//Pod/shop/a", "shop/s"]);
    assert!(
        responses[0]
            .resources
            .iter()
            .all(|resource| resource.aliases.is_empty())
    );
    assert!(
        peer.ack(&responses[0], &store).is_empty(),
        "an acknowledgement is not answered"
    );
    assert!(
        peer.receive_changes(&store).is_empty(),
        "nothing changed, nothing is sent"
    );
    store.update(&pod("b", "n9", 2, None, 1));
    let responses = peer.receive_changes(&store);
    assert_eq!(names(&responses[0]), ["c1//Pod/shop/b"]);
    peer.ack(&responses[0], &store);
    store.update(&remove_pod("a"));
    let responses = peer.receive_changes(&store);
    assert_eq!(
        (names(&responses[0]).len(), &responses[0].removed_resources),
        (0, &vec!["c1//Pod/shop/a".to_owned()])
    );
}

#[test]
fn changes_wait_for_the_acknowledgement_of_a_push() {
    let mut store = store(&[pod("a", "", 1, None, 1)]);
    let mut peer = TestClient::new();
    let responses = peer.send(&first_request(ResourceType::Address), &store);
    for capacity in 2..6 {
        store.update(&pod("a", "", 1, None, capacity));
        store.update(&pod("b", "", 2, None, capacity));
        assert!(peer.receive_changes(&store).is_empty());
    }
    let responses = peer.ack(&responses[0], &store);
    assert_eq!(names(&responses[0]), ["c1//Pod/shop/a", "c1//Pod/shop/b"]);
}

#[test]
fn stale_nonce_is_no_acknowledgement() {
    let mut store = store(&[pod("a", "", 1, None, 1)]);
    let mut peer = TestClient::new();
    let responses = peer.send(&first_request(ResourceType::Address), &store);
    store.update(&pod("a", "", 1, None, 2));
    let mut stale = responses[0].clone();
    stale.nonce = "1-1-0".into();
    assert!(peer.ack(&stale, &store).is_empty());
    let request = DeltaDiscoveryRequest {
        response_nonce: "x".into(),
        ..first_request(ResourceType::Address)
    };
    let (outcome, _) = peer.session.on_request(&request, &store).unwrap();
    assert!(outcome.is_stale);
    assert_eq!(peer.ack(&responses[0], &store).len(), 1);
}

#[test]
fn rejected_resources_are_not_resent_until_they_change() {
    let mut store = store(&[pod("a", "", 1, None, 1)]);
    let mut peer = TestClient::new();
    let responses = peer.send(&first_request(ResourceType::Address), &store);
    let nack = DeltaDiscoveryRequest {
        response_nonce: responses[0].nonce.clone(),
        error_detail: Some(Status {
            message: "a: bad".into(),
            ..Status::default()
        }),
        ..first_request(ResourceType::Address)
    };
    let (outcome, pushes) = peer.session.on_request(&nack, &store).unwrap();
    assert!(outcome.is_rejection && pushes.is_empty());
    let status = &peer.session.status()[0];
    assert_eq!(
        (status.error.as_deref(), status.acknowledged_nonce.as_str()),
        (Some("a: bad"), "")
    );
    store.update(&pod("a", "", 1, None, 2));
    let responses = peer.receive_changes(&store);
    peer.ack(&responses[0], &store);
    assert_eq!(peer.session.status()[0].error, None);
}

#[test]
fn reconnecting_client_gets_only_missing_records() {
    let mut store = store(&[
        pod("a", "", 1, None, 1),
        pod("b", "", 2, None, 1),
        pod("c", "", 3, None, 1),
        policy("p", false),
    ]);
    let mut peer = TestClient::new();
    peer.send(&first_request(ResourceType::Address), &store);
    peer.send(&first_request(ResourceType::Authorization), &store);
    let claimed = |kind: ResourceType| -> HashMap<String, String> {
        peer.known[&kind].clone().into_iter().collect()
    };
    let addresses = claimed(ResourceType::Address);
    let policies = claimed(ResourceType::Authorization);
    store.update(&pod("b", "", 2, None, 9));
    store.update(&remove_pod("c"));
    let mut again = TestClient::new();
    let request = DeltaDiscoveryRequest {
        initial_resource_versions: addresses,
        ..first_request(ResourceType::Address)
    };
    let responses = again.send(&request, &store);
    assert_eq!(
        (
            names(&responses[0]),
            responses[0].removed_resources.join(",")
        ),
        (vec!["c1//Pod/shop/b"], "c1//Pod/shop/c".to_owned())
    );
    // Nothing is missing: the client gets an empty response.
    let request = DeltaDiscoveryRequest {
        initial_resource_versions: policies,
        ..first_request(ResourceType::Authorization)
    };
    let responses = again.send(&request, &store);
    assert_eq!((responses.len(), responses[0].resources.len()), (1, 0));
}

#[test]
fn policies_arrive_before_their_workloads_and_leave_after() {
    let mut store = store(&[pod("a", "", 1, None, 1)]);
    let mut peer = TestClient::new();
    let addresses = peer.send(&first_request(ResourceType::Address), &store);
    let policies = peer.send(&first_request(ResourceType::Authorization), &store);
    peer.ack(&addresses[0], &store);
    peer.ack(&policies[0], &store);
    store.update(&policy("p", false));
    store.update(&pod("a", "", 1, None, 2));
    let kinds = |responses: &[DeltaDiscoveryResponse]| -> Vec<ResourceType> {
        responses
            .iter()
            .filter_map(|response| ResourceType::from_type_url(&response.type_url))
            .collect()
    };
    let responses = peer.receive_changes(&store);
    assert_eq!(
        kinds(&responses),
        [ResourceType::Authorization, ResourceType::Address]
    );
    // While the policies are not acknowledged, new workloads wait for new policies.
    peer.ack(&responses[1], &store);
    store.update(&policy("q", false));
    store.update(&pod("a", "", 1, None, 3));
    assert!(peer.receive_changes(&store).is_empty());
    let responses = peer.ack(&responses[0], &store);
    assert_eq!(
        kinds(&responses),
        [ResourceType::Authorization, ResourceType::Address]
    );
    for response in &responses {
        peer.ack(response, &store);
    }
    store.update(&remove_policy("p"));
    store.update(&policy("r", false));
    store.update(&pod("a", "", 1, None, 4));
    let responses = peer.receive_changes(&store);
    assert_eq!(
        kinds(&responses),
        [ResourceType::Authorization, ResourceType::Address]
    );
    assert_eq!(peer.ack(&responses[0], &store), []);
    let gone = peer.ack(&responses[1], &store);
    assert_eq!(removed_policies(&gone), ["shop/p"]);
}

/// Returns a client that has received and acknowledged the complete state.
fn synced_client(store: &Store) -> TestClient {
    let mut peer = TestClient::new();
    for kind in [ResourceType::Address, ResourceType::Authorization] {
        for response in peer.send(&first_request(kind), store) {
            assert_eq!(peer.ack(&response, store), []);
        }
    }
    peer
}

fn removed_policies(responses: &[DeltaDiscoveryResponse]) -> Vec<&str> {
    let policies = responses
        .iter()
        .filter(|response| response.type_url == AUTHORIZATION_TYPE_URL);
    let removed = policies.flat_map(|response| &response.removed_resources);
    removed.map(String::as_str).collect()
}

#[test]
fn policy_is_removed_after_its_workloads_are_acknowledged() {
    let mut store = store(&[pod("a", "", 1, None, 1), policy("p", false)]);
    let mut peer = synced_client(&store);
    // An update of a workload is in flight when the policy, and the workload's reference to it, are
    // deleted.
    store.update(&pod("a", "", 1, None, 2));
    let first = peer.receive_changes(&store);
    store.update(&pod("a", "", 1, None, 3));
    store.update(&remove_policy("p"));
    assert_eq!(peer.receive_changes(&store), []);
    let second = peer.ack(&first[0], &store);
    assert_eq!(names(&second[0]), ["c1//Pod/shop/a"]);
    assert_eq!(removed_policies(&second), [""; 0]);
    // Later updates do not delay the removal.
    store.update(&pod("b", "", 2, None, 1));
    let third = peer.ack(&second[0], &store);
    assert_eq!(removed_policies(&third), ["shop/p"]);
    for response in &third {
        assert_eq!(peer.ack(response, &store), []);
    }
}

#[test]
fn policy_recreated_before_its_removal_stays() {
    let mut store = store(&[
        pod("a", "", 1, None, 1),
        policy("p", false),
        policy("q", false),
    ]);
    let mut peer = synced_client(&store);
    store.update(&pod("a", "", 1, None, 2));
    store.update(&remove_policy("p"));
    store.update(&remove_policy("q"));
    let pushed = peer.receive_changes(&store);
    store.update(&policy("p", true));
    let back = peer.receive_changes(&store);
    assert_eq!(names(&back[0]), ["shop/p"]);
    assert_eq!(peer.ack(&pushed[0], &store), []);
    let gone = peer.ack(&back[0], &store);
    assert_eq!(removed_policies(&gone), ["shop/q"]);
    let known = &peer.known[&ResourceType::Authorization];
    assert_eq!(known.keys().collect::<Vec<_>>(), ["shop/p"]);
}

#[test]
fn reconnecting_client_loses_a_policy_after_its_workloads() {
    let mut store = store(&[pod("a", "", 1, None, 1), policy("p", false)]);
    let known = synced_client(&store).known;
    store.update(&pod("a", "", 1, None, 2));
    store.update(&remove_policy("p"));
    let mut again = TestClient::new();
    let mut begin = |kind: ResourceType| {
        let request = DeltaDiscoveryRequest {
            initial_resource_versions: known[&kind].clone().into_iter().collect(),
            ..first_request(kind)
        };
        again.send(&request, &store)
    };
    let addresses = begin(ResourceType::Address);
    let policies = begin(ResourceType::Authorization);
    assert_eq!(removed_policies(&policies), [""; 0]);
    assert_eq!(again.ack(&policies[0], &store), []);
    let gone = again.ack(&addresses[0], &store);
    assert_eq!(removed_policies(&gone), ["shop/p"]);
}

#[test]
fn single_records_include_related_records() {
    let mut store = store(&[
        pod("a", "n2", 1, Some("s"), 1),
        pod("b", "n3", 2, Some("s"), 1),
        pod("far", "n3", 3, None, 1),
        pod("near", NODE, 4, None, 1),
        service("s", 1),
    ]);
    let mut peer = TestClient::new();
    let responses = peer.send(&on_demand_request(), &store);
    assert_eq!(
        names(&responses[0]),
        ["c1//Pod/shop/near"],
        "its own node's workloads"
    );
    let responses = peer.send(&subscribe_request("/10.96.0.1"), &store);
    assert_eq!(
        names(&responses[0]),
        ["c1//Pod/shop/a", "c1//Pod/shop/b", "shop/s"]
    );
    assert_eq!(responses[0].resources[2].aliases, ["/10.96.0.1"]);
    let responses = peer.send(&subscribe_request("/10.0.0.3"), &store);
    assert_eq!(
        (names(&responses[0]), &responses[0].resources[0].aliases),
        (vec!["c1//Pod/shop/far"], &vec!["/10.0.0.3".to_owned()])
    );
    let responses = peer.send(&subscribe_request("/192.0.2.1"), &store);
    assert_eq!(
        responses[0].removed_resources,
        ["/192.0.2.1"],
        "unknown: it does not exist"
    );
    let last = peer.send(&subscribe_request("shop/nothing"), &store);
    peer.ack(&last[0], &store);
    // A new endpoint of a service that the client has, a new pod of its node, and an address that
    // it subscribed to.
    for (delta, expected) in [
        (pod("c", "n3", 5, Some("s"), 1), vec!["c1//Pod/shop/c"]),
        (pod("home", NODE, 6, None, 1), vec!["c1//Pod/shop/home"]),
        (pod("elsewhere", "n3", 7, None, 1), vec![]),
        (service("nothing", 9), vec!["shop/nothing"]),
    ] {
        store.update(&delta);
        let responses = peer.receive_changes(&store);
        let got: Vec<_> = responses.iter().flat_map(names).collect();
        assert_eq!(got, expected);
        for response in &responses {
            peer.ack(response, &store);
        }
    }
    store.update(&remove_pod("a"));
    assert_eq!(
        peer.receive_changes(&store)[0].removed_resources,
        ["c1//Pod/shop/a"]
    );
}

#[test]
fn workload_type_has_only_workloads() {
    let store = store(&[pod("a", "", 1, Some("s"), 5), service("s", 1)]);
    let mut peer = TestClient::new();
    let responses = peer.send(&first_request(ResourceType::Workload), &store);
    assert_eq!(names(&responses[0]), ["c1//Pod/shop/a"]);
    let any = responses[0].resources[0].resource.as_ref().unwrap();
    assert_eq!(any.type_url, ambit_wire::encode::WORKLOAD_TYPE_URL);
    let workload = ambit_wire::workload::Workload::decode(any.value.as_slice()).unwrap();
    assert_eq!(
        (workload.uid.as_str(), workload.capacity),
        ("c1//Pod/shop/a", Some(5))
    );
}

#[test]
fn hostile_requests_are_rejected_or_ignored() {
    let store = store(&[pod("a", "", 1, None, 1)]);
    let mut peer = TestClient::new();
    assert!(
        peer.send(
            &DeltaDiscoveryRequest {
                type_url: "x".into(),
                ..Default::default()
            },
            &store
        )
        .is_empty()
    );
    let long = subscribe_request(&"x".repeat(MAX_NAME_BYTES + 1));
    assert_eq!(
        peer.session.on_request(&long, &store).unwrap_err(),
        SessionError::TooManyNames
    );
    let many = DeltaDiscoveryRequest {
        resource_names_subscribe: vec![String::new(); MAX_SUBSCRIBED_NAMES + 1],
        ..first_request(ResourceType::Address)
    };
    assert_eq!(
        peer.session.on_request(&many, &store).unwrap_err(),
        SessionError::TooManyNames
    );
    // Names of several requests count together.
    let mut peer = TestClient::new();
    peer.send(&on_demand_request(), &store);
    let mut refused = false;
    for round in 0..3 {
        let names = (0..MAX_SUBSCRIBED_NAMES / 2)
            .map(|number| format!("{round}/{number}"))
            .collect();
        let request = DeltaDiscoveryRequest {
            resource_names_subscribe: names,
            ..first_request(ResourceType::Address)
        };
        refused |= peer.session.on_request(&request, &store).is_err();
    }
    assert!(refused);
    // Policies cannot be subscribed to one by one.
    let mut peer = TestClient::new();
    let request = DeltaDiscoveryRequest {
        type_url: AUTHORIZATION_TYPE_URL.into(),
        ..on_demand_request()
    };
    peer.send(&request, &store);
    assert!(peer.session.status()[0].is_wildcard);
}

// === convergence ===

#[derive(Clone, Debug)]
enum Step {
    Pod {
        name: u8,
        node: u8,
        service: Option<u8>,
        capacity: u32,
    },
    RemovePod(u8),
    Service {
        name: u8,
        ip: u8,
    },
    RemoveService(u8),
    Policy(u8, bool),
    RemovePolicy(u8),
    /// The client reads up to this many responses, and acknowledges them if true.
    Read(usize, bool),
    Subscribe(u8),
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6_u8, 0..3_u8, prop::option::of(0..3_u8), 1..4_u32)
            .prop_map(|(name, node, service, capacity)| Step::Pod { name, node, service, capacity }),
        2 => (0..6_u8).prop_map(Step::RemovePod),
        2 => (0..3_u8, 0..4_u8).prop_map(|(name, ip)| Step::Service { name, ip }),
        1 => (0..3_u8).prop_map(Step::RemoveService),
        2 => (0..4_u8, any::<bool>()).prop_map(|(name, flag)| Step::Policy(name, flag)),
        1 => (0..4_u8).prop_map(Step::RemovePolicy),
        4 => (0..4_usize, any::<bool>()).prop_map(|(count, nack)| Step::Read(count, nack)),
        2 => (0..10_u8).prop_map(Step::Subscribe),
        1 => Just(Step::Reconnect),
    ]
}

/// Client behind a queue of responses, which may read slowly or disconnect.
struct QueuedClient {
    peer: TestClient,
    queue: std::collections::VecDeque<Push>,
    is_on_demand: bool,
    subscribed_names: std::collections::BTreeSet<String>,
}

impl QueuedClient {
    fn new(on_demand: bool) -> Self {
        Self {
            peer: TestClient::new(),
            queue: Default::default(),
            is_on_demand: on_demand,
            subscribed_names: Default::default(),
        }
    }

    fn connect(&mut self, store: &Store) {
        self.queue.clear();
        self.peer.session = Session::new(client(), 7);
        for kind in [ResourceType::Address, ResourceType::Authorization] {
            let known = self.peer.known.get(&kind).cloned().unwrap_or_default();
            let base = if self.is_on_demand && kind == ResourceType::Address {
                on_demand_request()
            } else {
                first_request(kind)
            };
            let request = DeltaDiscoveryRequest {
                initial_resource_versions: known.into_iter().collect(),
                ..base
            };
            self.send(&request, store);
        }
        for key in self.subscribed_names.clone() {
            self.send(&subscribe_request(&key), store);
        }
    }

    fn send(&mut self, request: &DeltaDiscoveryRequest, store: &Store) {
        let (_, pushes) = self.peer.session.on_request(request, store).unwrap();
        self.queue.extend(pushes);
    }

    fn read(&mut self, count: usize, nack: bool, store: &Store) {
        for _ in 0..count {
            let Some(push) = self.queue.pop_front() else {
                return;
            };
            let response = self.peer.receive(std::slice::from_ref(&push)).remove(0);
            let request = DeltaDiscoveryRequest {
                type_url: response.type_url,
                response_nonce: response.nonce,
                error_detail: nack.then(Status::default),
                ..DeltaDiscoveryRequest::default()
            };
            self.send(&request, store);
        }
    }

    fn run_until_idle(&mut self, store: &Store) {
        for _ in 0..100 {
            let pushes = self.peer.session.on_change(store).unwrap();
            self.queue.extend(pushes);
            if self.queue.is_empty() {
                return;
            }
            self.read(usize::MAX, false, store);
        }
        panic!("the client and the server never come to rest");
    }

    fn subscribe(&mut self, key: String, store: &Store) {
        if self.is_on_demand {
            self.send(&subscribe_request(&key), store);
            self.subscribed_names.insert(key);
        }
    }
}

fn to_delta(step: &Step) -> Option<Delta> {
    let name = |number: &u8| format!("p{number}");
    let host = |number: u8| format!("s{number}");
    Some(match step {
        Step::Pod {
            name: number,
            node,
            service,
            capacity,
        } => {
            let service = service.map(host);
            pod(
                &name(number),
                &format!("n{node}"),
                *number,
                service.as_deref(),
                *capacity,
            )
        }
        Step::RemovePod(number) => remove_pod(&name(number)),
        Step::Service { name: number, ip } => service(&host(*number), *ip),
        Step::RemoveService(number) => Delta {
            services: vec![(NamespacedHostname::new("shop", host(*number)), None)],
            ..Delta::default()
        },
        Step::Policy(number, dry_run) => policy(&name(number), *dry_run),
        Step::RemovePolicy(number) => remove_policy(&name(number)),
        Step::Read(..) | Step::Subscribe(_) | Step::Reconnect => return None,
    })
}

fn key(number: u8) -> String {
    match number {
        0..3 => format!("/10.0.0.{number}"),
        3..6 => format!("/10.96.0.{}", number - 3),
        6..8 => format!("shop/s{}", number - 6),
        _ => format!("c1//Pod/shop/p{}", number - 8),
    }
}

/// Returns the records that a client must have at the end: version by name.
fn expected_versions(store: &Store, collection: Collection) -> BTreeMap<String, String> {
    store
        .records(collection)
        .map(|entry| (entry.name.to_string(), entry.version.clone()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn clients_converge_after_any_sequence(steps in prop::collection::vec(step(), 1..80)) {
        let mut store = Store::default();
        let mut all = QueuedClient::new(false);
        let mut some = QueuedClient::new(true);
        all.connect(&store);
        some.connect(&store);
        for step in &steps {
            if let Some(delta) = to_delta(step) {
                store.update(&delta);
                for client in [&mut all, &mut some] {
                    let pushes = client.peer.session.on_change(&store).unwrap();
                    client.queue.extend(pushes);
                }
            }
            for client in [&mut all, &mut some] {
                match step {
                    Step::Read(count, nack) => client.read(*count, *nack, &store),
                    Step::Subscribe(number) => client.subscribe(key(*number), &store),
                    Step::Reconnect => client.connect(&store),
                    _ => {}
                }
            }
        }
        all.run_until_idle(&store);
        some.run_until_idle(&store);
        let addresses = expected_versions(&store, Collection::Addresses);
        let policies = expected_versions(&store, Collection::Policies);
        let known = |client: &QueuedClient, kind| client.peer.known.get(&kind).cloned().unwrap_or_default();
        prop_assert_eq!(&known(&all, ResourceType::Address), &addresses);
        prop_assert_eq!(&known(&all, ResourceType::Authorization), &policies);
        prop_assert_eq!(&known(&some, ResourceType::Authorization), &policies);
        // The other client has no outdated record, and all required ones.
        let held = known(&some, ResourceType::Address);
        for (name, version) in &held {
            prop_assert_eq!(addresses.get(name), Some(version), "{} is outdated", name);
        }
        for entry in store.records(Collection::Addresses) {
            let subscribed = |name: &ArcStr| some.subscribed_names.contains(name.as_str());
            let by_place = match &entry.kind {
                RecordKind::Workload { node, services } => {
                    node == NODE || services.iter().any(|service| held.contains_key(service.as_str()))
                }
                _ => false,
            };
            if subscribed(&entry.name) || entry.aliases.iter().any(subscribed) || by_place {
                prop_assert!(held.contains_key(entry.name.as_str()), "{} is missing", entry.name);
            }
        }
    }
}

/// Opens a wildcard client's stream and acknowledges its pushes; returns the session and the pushes.
fn open_session(store: &Store, seed: u64) -> (Session, Vec<Push>) {
    let mut session = Session::new(client(), seed);
    let request = first_request(ResourceType::Address);
    let (_, pushes) = session.on_request(&request, store).unwrap();
    let answer = DeltaDiscoveryRequest {
        response_nonce: pushes[0].nonce.clone(),
        ..request
    };
    assert!(session.on_request(&answer, store).unwrap().1.is_empty());
    (session, pushes)
}

#[test]
fn wildcard_clients_share_bytes_with_own_nonces() {
    let mut store = store(&[pod("a", "n1", 1, None, 1)]);
    let (mut one, begun) = open_session(&store, 1);
    let (mut other, begun_too) = open_session(&store, 2);
    assert!(Arc::ptr_eq(&begun[0].batch, &begun_too[0].batch));
    assert_ne!(begun[0].nonce, begun_too[0].nonce);
    store.update(&pod("b", "n1", 2, None, 1));
    let step = one.on_change(&store).unwrap();
    let step_too = other.on_change(&store).unwrap();
    assert!(Arc::ptr_eq(&step[0].batch, &step_too[0].batch));
    assert_eq!(names(&decode(&step[0])), ["c1//Pod/shop/b"]);
}

#[test]
fn new_client_with_an_older_snapshot_gets_changes_at_once() {
    let mut store = store(&[pod("a", "n1", 1, None, 1), pod("b", "n1", 2, None, 1)]);
    let (_first, sending) = open_session(&store, 1);
    store.update(&remove_pod("a"));
    let mut late = TestClient::new();
    let responses = late.send(&first_request(ResourceType::Address), &store);
    assert_eq!(names(&responses[0]), names(&decode(&sending[0])));
    let responses = late.ack(&responses[0], &store);
    assert_eq!(responses[0].removed_resources, ["c1//Pod/shop/a"]);
    drop(sending);
    let mut later = TestClient::new();
    let responses = later.send(&first_request(ResourceType::Address), &store);
    assert_eq!(names(&responses[0]), ["c1//Pod/shop/b"]);
}

#[test]
fn large_state_is_complete_in_pieces() {
    let pods = (0..2000).map(|n| pod(&format!("pod-{n:04}"), "n1", 1, Some("s"), n));
    let store = store(&pods.collect::<Vec<_>>());
    let (_, pushes) = open_session(&store, 1);
    assert!(pushes[0].message().count() > 2);
    let response = decode(&pushes[0]);
    assert_eq!(response.resources.len(), 2000);
    assert_eq!(response.nonce, pushes[0].nonce);
}
