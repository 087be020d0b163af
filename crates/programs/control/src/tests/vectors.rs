//! Compares records that Istio's control plane derived from a cluster's objects (`vectors/`) with ours: records byte by
//! byte with their versions, and conditions. The objects come from an API server in memory, so that they are processed
//! as in a cluster.
//!
//! Intended differences are listed with their reason; a listed difference that does not occur is an error, too.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use ambit_derive::{
    MeshConfig, ReferenceGrants, ServicePolicyScope, WaypointAttachment, WaypointMissing,
};
use ambit_kube_kit::apply::DesiredWrite;
use ambit_rt::drain;
use ambit_status_writer::{Report, StatusTable};
use ambit_testkit::ApiServer;
use ambit_wire::{security, workload};
use ambit_xds_server::encoded_record::Collection;
use prost::Message;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    key_sets::KeySets,
    kubernetes::Informers,
    mesh::{self, Mesh},
    metrics::Metrics,
    source::Source,
};

/// Intended difference of a record: its name, the change that makes Istio's record equal to Ambit's, and the reason.
type RecordDifference = (&'static str, fn(&mut DecodedRecord), &'static str);

/// Intended differences of records; all other parts of these records must be equal.
const RECORD_DIFFERENCES: &[RecordDifference] = &[
    (
        "Kubernetes/networking.istio.io/ServiceEntry/vec/ext/192.0.2.7",
        ignore_service_entry_labels,
        "Istio goes by the labels of the ServiceEntry, and one without labels is selected by every \
         policy; we go by the endpoint's own labels, for policies and for its canonical name",
    ),
    (
        "Kubernetes/networking.istio.io/ServiceEntry/vec/ext/one.example.com",
        ignore_service_entry_labels,
        "as above",
    ),
];

/// Intended differences of conditions, where Istio wrote another one or none: object, condition, Ambit's value, reason.
const CONDITION_DIFFERENCES: &[(&str, &str, &str)] = &[
    (
        "AuthorizationPolicy vec/a6-l7-allow ZtunnelAccepted=True UnsupportedValue",
        "spec.rules[0].to[0].operation.methods",
        "the same verdict; our message names the fields",
    ),
    (
        "AuthorizationPolicy vec/a7-l7-deny ZtunnelAccepted=True UnsupportedValue",
        "this rule denies nothing here",
        "the same verdict; our message says for each rule what becomes of it",
    ),
    (
        "AuthorizationPolicy vec/a8-dry-run ZtunnelAccepted=False UnsupportedValue",
        "--dry-run-policies",
        "the same verdict; our message names our setting",
    ),
    (
        "AuthorizationPolicy vec/b1-midstar ZtunnelAccepted=True UnsupportedValue",
        "matches nobody",
        "Istio accepts it without a word; we say that two of its principals match nobody",
    ),
    (
        "Gateway vec/waypoint ambit.io/Introduced=True Introduced",
        "the waypoint has been ready",
        "Istio binds to a waypoint before it is ready",
    ),
    (
        "Service vec/wp istio.io/WaypointBound=False NoReadyWaypoint",
        "no pod of the waypoint vec/waypoint is ready",
        "Istio says that the waypoint is accepted, although no pod of it is ready",
    ),
    (
        "PeerAuthentication other/empty-selector ZtunnelAccepted=True Accepted",
        "attached",
        "Istio writes no conditions on PeerAuthentications",
    ),
    (
        "PeerAuthentication vec/ports ZtunnelAccepted=True Accepted",
        "attached",
        "as above",
    ),
];

/// Decoded record, which is compared part by part.
#[derive(Clone, Debug, PartialEq)]
enum DecodedRecord {
    Address(Box<workload::Address>),
    Policy(Box<security::Authorization>),
}

fn ignore_service_entry_labels(parts: &mut DecodedRecord) {
    let workload = workload_of(parts);
    workload.authorization_policies.clear();
    // The other endpoint has no labels.
    if workload.hostname.is_empty() {
        workload.canonical_name = "e".to_owned();
    }
}

fn workload_of(parts: &mut DecodedRecord) -> &mut workload::Workload {
    match parts {
        DecodedRecord::Address(address) => match &mut address.r#type {
            Some(workload::address::Type::Workload(workload)) => workload,
            other => panic!("{other:?} is no workload"),
        },
        DecodedRecord::Policy(_) => panic!("a policy"),
    }
}

fn decode(collection: Collection, bytes: &[u8]) -> DecodedRecord {
    if collection == Collection::Addresses {
        DecodedRecord::Address(Box::new(workload::Address::decode(bytes).unwrap()))
    } else {
        DecodedRecord::Policy(Box::new(security::Authorization::decode(bytes).unwrap()))
    }
}

fn read_vector(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../../vectors")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns name, version and bytes of the records that Istio's control plane sent.
fn read_recorded(name: &str) -> BTreeMap<String, (String, Vec<u8>)> {
    let hex = |text: &str| -> Vec<u8> {
        let digits: Vec<u8> = text
            .chars()
            .map(|digit| u8::try_from(digit.to_digit(16).unwrap()).unwrap())
            .collect();
        let pairs = digits.chunks_exact(2);
        pairs.map(|pair| pair[0] << 4 | pair[1]).collect()
    };
    let text = |line: &Value, field: &str| line[field].as_str().unwrap().to_owned();
    read_vector(name)
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let bytes = hex(line["hex"].as_str().unwrap());
            (text(&line, "name"), (text(&line, "version"), bytes))
        })
        .collect()
}

/// Returns an API server with every object of the recording.
fn recorded_cluster() -> ApiServer {
    let server = ApiServer::start();
    for plural in [
        "namespaces",
        "nodes",
        "pods",
        "services",
        "endpointslices",
        "serviceentries",
        "workloadentries",
        "gatewayclasses",
        "gateways",
        "authorizationpolicies",
        "peerauthentications",
    ] {
        let list: Value =
            serde_json::from_str(&read_vector(&format!("objects-{plural}.json"))).unwrap();
        for object in list["items"].as_array().unwrap() {
            let version = object["apiVersion"].as_str().unwrap();
            let root = if version.contains('/') {
                "/apis"
            } else {
                "/api"
            };
            server.put(&format!("{root}/{version}/{plural}"), object.clone());
        }
    }
    // In Istio, ServiceEntries are visible in all namespaces.
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "istio", "namespace": "istio-system"},
        "data": {"mesh": "defaultServiceExportTo: ['*']"},
    });
    server.put("/api/v1/configmaps", settings);
    server
}

/// Starts following the recorded cluster; returns the mesh and the status reports.
async fn start_mesh(server: &ApiServer) -> (Mesh, mpsc::UnboundedReceiver<Report>, drain::Drain) {
    let config = kube::Config::new(server.url().parse().unwrap());
    let client = kube::Client::try_from(config).unwrap();
    let (drain, watcher) = drain::channel();
    let source = Source::Kubernetes(Informers::start(&client, false, &watcher));
    let (reports, reported) = mpsc::unbounded_channel();
    let mut mesh = mesh::start(
        source,
        MeshConfig {
            waypoint_attachment: WaypointAttachment::LabelsOnly,
            waypoint_missing: WaypointMissing::BypassWaypoint,
            reference_grants: ReferenceGrants::Ignored,
            service_policy_scope: ServicePolicyScope::ServiceOnly,
            ..MeshConfig::default()
        },
        KeySets::start(
            std::time::Duration::from_secs(1200),
            ambit_egress::Guard::default(),
            watcher.clone(),
        ),
        Some(reports),
        Arc::default(),
        Arc::new(Metrics::default()),
        watcher,
    );
    let whole = |number: &u64| *number > 0;
    mesh.followed_version.wait_for(whole).await.unwrap();
    mesh.published_version.wait_for(whole).await.unwrap();
    (mesh, reported, drain)
}

#[tokio::test]
async fn records_equal_istios_byte_by_byte() {
    assert_records_match_istio(&recorded_cluster()).await;
}

/// Checks that records reference a Gateway of another class as their waypoint, since for Istio, the class does not
/// decide which Gateways are waypoints.
#[tokio::test]
async fn records_reference_waypoints_of_other_classes_as_istio() {
    let server = recorded_cluster();
    let list: Value = serde_json::from_str(&read_vector("objects-gateways.json")).unwrap();
    let mut gateway = list["items"][0].clone();
    assert_eq!(gateway["spec"]["gatewayClassName"], "istio-waypoint");
    gateway["spec"]["gatewayClassName"] = "another".into();
    let version = gateway["apiVersion"].as_str().unwrap();
    server.put(&format!("/apis/{version}/gateways"), gateway.clone());
    assert_records_match_istio(&server).await;
}

async fn assert_records_match_istio(server: &ApiServer) {
    let (mesh, _reports, _drain) = start_mesh(server).await;
    let store = mesh.store.read();
    let mut differences = Vec::new();
    let mut listed: BTreeMap<_, _> = RECORD_DIFFERENCES
        .iter()
        .map(|(name, alter, _)| (*name, alter))
        .collect();
    for (collection, name) in [
        (Collection::Addresses, "address.jsonl"),
        (Collection::Policies, "authorization.jsonl"),
    ] {
        let theirs = read_recorded(name);
        for entry in store.records(collection) {
            if !theirs.contains_key(entry.name.as_str()) {
                differences.push(format!("{} is ours alone", entry.name));
            }
        }
        for (name, (version, bytes)) in theirs {
            let Some(ours) = store.record(collection, &name) else {
                differences.push(format!("{name} is missing"));
                continue;
            };
            // Istio gives policies no version, so that each is sent again after every reconnection.
            let version = (collection == Collection::Addresses).then_some(version);
            let same_version = version.is_none_or(|version| version == ours.version);
            if ours.value == bytes && same_version {
                continue;
            }
            let mut expected = decode(collection, &bytes);
            if let Some(alter) = listed.remove(name.as_str()) {
                alter(&mut expected);
            }
            let got = decode(collection, &ours.value);
            if got != expected {
                differences.push(format!("{name}\n  ours:   {got:?}\n  theirs: {expected:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(listed.is_empty(), "listed, but equal: {:?}", listed.keys());
}

#[tokio::test]
async fn conditions_equal_istios() {
    let server = recorded_cluster();
    let (_mesh, mut reports, _drain) = start_mesh(&server).await;
    let mut table = StatusTable::default();
    table.set_leader(true);
    let mut written = BTreeMap::new();
    while let Ok(report) = reports.try_recv() {
        // Writes are needed only for conditions that differ from Istio's.
        for wish in table.apply(report).desired_writes {
            let DesiredWrite::ApplyStatus(part, status) = wish else {
                continue;
            };
            let one = &status["conditions"][0];
            let text = |field: &str| one[field].as_str().unwrap_or_default();
            let object = format!("{} {}/{}", part.kind, part.namespace, part.name);
            let condition = format!("{}={} {}", text("type"), text("status"), text("reason"));
            written.insert(format!("{object} {condition}"), text("message").to_owned());
        }
    }
    for (condition, message, _) in CONDITION_DIFFERENCES {
        let ours = written.remove(*condition);
        let ours = ours.unwrap_or_else(|| panic!("listed, but equal: {condition}"));
        assert!(ours.contains(message), "{condition}: {ours}");
    }
    assert!(written.is_empty(), "not listed: {written:#?}");
}
