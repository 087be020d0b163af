//! Tests of the protobuf schema and decoders with messages recorded from Istio's own programs, see
//! `vectors/README.md`: no field of a record is unknown, and every record is encoded again unchanged.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

use ambit_authz::{Connection, MissingPolicies, PolicySet};
use ambit_model::{Authorization, Identity, Service, Workload};
use ambit_wire::{
    decode::{self, AddressRecord},
    security, workload, zds_codec,
};
use ambit_zds::Request;
use prost::Message;
use serde::Deserialize;

#[derive(Deserialize)]
struct VectorLine {
    #[serde(default)]
    name: String,
    #[serde(default)]
    dir: String,
    #[serde(default)]
    what: String,
    hex: String,
}

fn read_vector_lines(file: &str) -> Vec<(VectorLine, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../vectors");
    let text = fs::read_to_string(path.join(file)).unwrap();
    let line = |text| {
        let line: VectorLine = serde_json::from_str(text).unwrap();
        let byte = |at| u8::from_str_radix(&line.hex[at..at + 2], 16).unwrap();
        let bytes = (0..line.hex.len()).step_by(2).map(byte).collect();
        (line, bytes)
    };
    let lines: Vec<_> = text.lines().map(line).collect();
    assert!(!lines.is_empty());
    lines
}

#[test]
fn every_address_is_known_in_full_and_written_as_it_came() {
    for (line, bytes) in read_vector_lines("address.jsonl") {
        let name = line.name;
        assert_eq!(AddressRecord::unknown_field_count(&bytes), 0, "{name}");
        let record = workload::Address::decode(bytes.as_slice()).unwrap();
        assert_same_encoding(&record, &bytes, &name);
        // Through the model and back, except for fields that a proxy does not use.
        match AddressRecord::decode(&bytes).unwrap() {
            AddressRecord::Workload(read) => {
                assert_eq!(read.uid, name);
                let Some(workload::address::Type::Workload(sent)) = record.r#type else {
                    panic!("{name} is no workload");
                };
                let again = workload::Workload::from(&*read);
                assert_eq!(Workload::try_from(again.clone()).unwrap(), *read, "{name}");
                let without = workload::Workload {
                    services: normalized_ports(sent.services),
                    // One that is left out is the namespace's default, and written as that.
                    service_account: read.service_account.to_string(),
                    ..sent
                };
                let again = workload::Workload {
                    services: normalized_ports(again.services),
                    ..again
                };
                assert_eq!(again, without, "{name}");
            }
            AddressRecord::Service(read) => {
                assert_eq!(read.namespaced_hostname().to_string(), name);
                let again = workload::Service::from(&*read);
                assert_eq!(Service::try_from(again).unwrap(), *read, "{name}");
            }
        }
    }
}

type Services = std::collections::BTreeMap<String, workload::PortList>;

/// Sorts ports by number, merges ports of several transports, and removes application protocols, which only waypoints
/// need.
fn normalized_ports(mut services: Services) -> Services {
    for list in services.values_mut() {
        list.ports.sort_by_key(|port| port.service_port);
        list.ports.dedup_by_key(|port| port.service_port);
        for port in &mut list.ports {
            port.app_protocol = workload::AppProtocol::Unknown.into();
        }
    }
    services
}

/// Checks that decoding loses no field: prost drops unknown fields, so that the encoded length would differ. The order
/// of map entries may differ.
fn assert_same_encoding(record: &impl Message, bytes: &[u8], name: &str) {
    let again = record.encode_to_vec();
    assert_eq!(again.len(), bytes.len(), "{name}");
    let sorted = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes.sort_unstable();
        bytes
    };
    assert_eq!(sorted(&again), sorted(bytes), "{name}");
}

fn policies() -> Vec<(String, Authorization)> {
    let read = |(line, bytes): (VectorLine, Vec<u8>)| {
        let policy = decode::decode_policy(&line.name, &bytes).unwrap();
        let again = security::Authorization::from(&policy).encode_to_vec();
        assert_eq!(again, bytes, "{}", line.name);
        (line.name, policy)
    };
    read_vector_lines("authorization.jsonl")
        .into_iter()
        .map(read)
        .collect()
}

#[test]
fn every_policy_is_understood_and_written_as_it_came() {
    let policies = policies();
    assert_eq!(policies.len(), 12);
    // One policy intentionally denies everything; all the others have conditions, and keep them.
    for (name, policy) in &policies {
        let conditions = policy.rules.iter().flatten().flatten().count();
        let without = ["vec/a4-allow-nothing", "vec/a5-allow-all"].contains(&name.as_str());
        assert_eq!(conditions == 0, without, "{name}");
    }
}

#[test]
fn policies_mean_what_they_say() {
    let policies = policies();
    let decide = |name: &str, source: Option<&str>, port: u16| {
        let mut set = PolicySet::new(MissingPolicies::Deny);
        let policy = policies.iter().find(|(of, _)| of == name).unwrap();
        set.insert(policy.1.clone());
        let destination = Workload {
            namespace: "vec".into(),
            authorization_policies: vec![name.into()],
            ..Workload::default()
        };
        let connection = Connection {
            source: source.map(|source| source.parse::<Identity>().unwrap()),
            source_ip: [10, 244, 1, 9].into(),
            destination: ([10, 244, 1, 5], port).into(),
        };
        set.evaluate(&destination, &connection).allowed
    };
    let strict = "istio-system/istio_converted_static_strict";
    assert!(!decide(strict, None, 80));
    assert!(decide(strict, Some("spiffe://cluster.local/ns/a/sa/b"), 80));
    let accounts = "vec/a3-serviceaccounts";
    assert!(decide(
        accounts,
        Some("spiffe://cluster.local/ns/other/sa/sa1"),
        80
    ));
    assert!(!decide(
        accounts,
        Some("spiffe://cluster.local/ns/vec/sa/sa3"),
        80
    ));
    assert!(!decide(
        "vec/a4-allow-nothing",
        Some("spiffe://cluster.local/ns/a/sa/b"),
        80
    ));
    assert!(decide("vec/a5-allow-all", None, 80));
    assert!(decide(
        "vec/a6-l7-allow",
        Some("spiffe://cluster.local/ns/ok/sa/x"),
        80
    ));
    assert!(!decide(
        "vec/a6-l7-allow",
        Some("spiffe://cluster.local/ns/no/sa/x"),
        80
    ));
    // The rule with layer-7 conditions has nothing left that matches.
    assert!(decide(
        "vec/a7-l7-deny",
        Some("spiffe://cluster.local/ns/bad/sa/x"),
        80
    ));
    assert!(!decide(
        "vec/a7-l7-deny",
        Some("spiffe://cluster.local/ns/ok/sa/x"),
        81
    ));
    let ports = "vec/converted_peer_authentication_ports";
    assert!(!decide(ports, None, 80));
    assert!(decide(ports, None, 9090) && decide(ports, None, 9100));
    assert!(decide(ports, Some("spiffe://cluster.local/ns/a/sa/b"), 80));
}

#[test]
fn the_conversation_with_the_agent_is_ours_in_both_directions() {
    let mut kinds = Vec::new();
    for (line, bytes) in read_vector_lines("zds-n1.jsonl") {
        match (line.dir.as_str(), line.what.as_str()) {
            ("proxy->agent", "hello") => {
                assert_eq!(zds_codec::decode_hello(&bytes).unwrap(), 1);
                assert_eq!(zds_codec::encode_hello(), bytes);
                kinds.push("hello");
            }
            ("proxy->agent", _) => {
                assert_eq!(zds_codec::decode_ack(&bytes).unwrap(), Ok(()));
                assert_eq!(zds_codec::encode_ack(&Ok(())), bytes);
                kinds.push("ack");
            }
            _ => {
                let request = zds_codec::decode_request(&bytes).unwrap();
                assert_eq!(zds_codec::encode_request(&request), bytes);
                kinds.push(match &request {
                    Request::Add { uid, info } => {
                        assert_eq!(uid, "464de69d-69d1-4950-927a-fbdcdff86015");
                        let info = info.as_ref().unwrap();
                        assert_eq!(info.pod.to_string(), "vec/api-1");
                        assert_eq!(info.pod.service_account, "api");
                        assert!(info.addresses.is_empty());
                        "add"
                    }
                    Request::Del { .. } => "del",
                    Request::Keep { .. } => "keep",
                    Request::SnapshotSent => "snapshot",
                });
            }
        }
    }
    assert_eq!(kinds, ["hello", "add", "snapshot", "del", "del", "ack"]);
}
