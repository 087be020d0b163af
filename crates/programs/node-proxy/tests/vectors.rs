//! Compares `/config_dump`, the metrics and the access log with those of Istio's node proxy, see
//! `vectors/README.md`: equal records and connections must produce equal names and shapes. Intended
//! differences are listed at the comparison.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use ambit_mesh_json::Json;
use ambit_model::{FailureReason, Service, Workload};
use ambit_node_proxy::pods::ServedPods;
use ambit_proxy::{
    ConnectionTable, Workers,
    config_dump::{DumpExtras, config_dump},
    state::{MeshUpdate, SharedState, StateConfig},
};
use ambit_rt::logging::{LogFormat, capture};
use ambit_telemetry::{
    AccessLog, Direction, Metrics, Reporter, SecurityPolicy, ServiceName, TrafficLabels,
    WorkloadLabels,
};
use ambit_wire::decode::{self, AddressRecord};
use prometheus_client::registry::Registry;
use serde_json::Value;

fn read_text(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../vectors");
    fs::read_to_string(path.join(file)).unwrap()
}

fn read_json(file: &str) -> Value {
    serde_json::from_str(&read_text(file)).unwrap()
}

/// Reads recorded xDS resources from a file: names and protobuf bytes.
fn read_records(file: &str) -> Vec<(String, Vec<u8>)> {
    let record = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let hex = line["hex"].as_str().unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes = (0..hex.len()).step_by(2).map(byte).collect();
        (line["name"].as_str().unwrap().to_owned(), bytes)
    };
    read_text(file).lines().map(record).collect()
}

/// Mesh of the recorded resources: workloads by UID, and services by host name.
#[derive(Default)]
struct Mesh {
    workloads: BTreeMap<String, Workload>,
    services: BTreeMap<String, Service>,
}

impl Mesh {
    fn read() -> Self {
        let mut mesh = Self::default();
        for (_, bytes) in read_records("address.jsonl") {
            match AddressRecord::decode(&bytes).unwrap() {
                AddressRecord::Workload(workload) => {
                    drop(mesh.workloads.insert(workload.uid.to_string(), *workload))
                }
                AddressRecord::Service(service) => {
                    drop(mesh.services.insert(service.hostname.to_string(), *service));
                }
            }
        }
        mesh
    }

    fn state(&self) -> SharedState {
        let state = SharedState::new(StateConfig::default());
        let mut updates = Vec::new();
        updates.extend(
            self.workloads
                .values()
                .map(|one| MeshUpdate::Workload(Box::new(one.clone()))),
        );
        updates.extend(
            self.services
                .values()
                .map(|one| MeshUpdate::Service(Box::new(one.clone()))),
        );
        for (name, bytes) in read_records("authorization.jsonl") {
            updates.push(MeshUpdate::Policy(
                decode::decode_policy(&name, &bytes).unwrap(),
            ));
        }
        state.apply(&mut updates);
        state
    }
}

// === /config_dump ===

const DUMP_FILES: [&str; 2] = ["config_dump-n1.json", "config_dump-n2.json"];

#[test]
fn dump_of_the_same_records_is_equal() {
    let state = Mesh::read().state();
    let ours = config_dump(&state, &DumpExtras::default()).unwrap();
    let ours: Value = serde_json::from_slice(&ours).unwrap();
    let keys =
        |dump: &Value| -> BTreeSet<String> { dump.as_object().unwrap().keys().cloned().collect() };
    for file in DUMP_FILES {
        let theirs = read_json(file);
        assert_eq!(keys(&ours), keys(&theirs));
        for list in ["workloads", "services", "policies", "stagedServices"] {
            let mut found = Vec::new();
            let (theirs, ours) = (sorted_list(&theirs[list]), sorted_list(&ours[list]));
            differences(list, &theirs, &ours, &mut found);
            assert!(found.is_empty(), "{file}: {}", found.join("\n"));
        }
    }
}

/// Sorts lists of resources, and lists in them, by name, since their order is not part of the contract.
fn sorted_list(list: &Value) -> Value {
    let Value::Array(records) = list else {
        return list.clone();
    };
    let by_name = |record: &Value| {
        let mut record = record.clone();
        if let Some(Value::Array(services)) = record.get_mut("services") {
            services.sort_by_key(ToString::to_string);
        }
        record
    };
    let name = |record: &Value| {
        ["uid", "namespace", "hostname", "name"].map(|field| record[field].to_string())
    };
    let mut records: Vec<_> = records.iter().map(by_name).collect();
    records.sort_by_key(name);
    records.into()
}

/// Whether a field is empty, which equals a missing one for istioctl, as for every reader that decodes JSON into types:
/// Ambit writes some that Istio's node proxy omits.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn differences(at: &str, theirs: &Value, ours: &Value, found: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            let keys: BTreeSet<_> = theirs.keys().chain(ours.keys()).collect();
            for key in keys {
                let (theirs, ours) = (theirs.get(key), ours.get(key));
                let at = format!("{at}.{key}");
                match (theirs, ours) {
                    (Some(theirs), Some(ours)) => differences(&at, theirs, ours, found),
                    (Some(one), None) | (None, Some(one)) if is_empty(one) => {}
                    _ => found.push(format!("{at}: {theirs:?} and {ours:?}")),
                }
            }
        }
        (Value::Array(theirs), Value::Array(ours)) if theirs.len() == ours.len() => {
            for (index, (theirs, ours)) in theirs.iter().zip(ours).enumerate() {
                differences(&format!("{at}[{index}]"), theirs, ours, found);
            }
        }
        _ if theirs == ours => {}
        (Value::Array(theirs), Value::Array(ours)) => {
            found.push(format!(
                "{at}: {} and {} elements",
                theirs.len(),
                ours.len()
            ));
        }
        _ => found.push(format!("{at}: {theirs} and {ours}")),
    }
}

#[test]
fn other_parts_of_a_dump_have_the_same_shape() {
    let theirs = read_json("config_dump-n1.json");
    // `config` differs between the proxies; istioctl prints it unchanged.
    assert!(theirs["config"].is_object());
    let version = ambit_proxy::admin::version();
    for key in theirs["version"].as_object().unwrap().keys() {
        assert!(version[key].is_string(), "{key}");
    }
    assert_eq!(ServedPods::default().dump(), serde_json::json!({}));
    let pod = theirs["workloadState"]
        .as_object()
        .unwrap()
        .values()
        .next()
        .unwrap();
    let keys: Vec<_> = pod.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["connections", "info", "state"]);
    let name = ambit_model::PodName {
        name: "api-1".into(),
        namespace: "vec".into(),
        service_account: "api".into(),
    };
    assert_eq!(serde_json::to_value(Json(name)).unwrap(), pod["info"]);
    let none = ConnectionTable::default().dump();
    assert_eq!(serde_json::to_value(none).unwrap(), pod["connections"]);
}

#[tokio::test]
async fn certificate_is_dumped_in_the_same_shape() {
    use ambit_certificates::{Certificates, CertificatesOptions};
    let theirs = &read_json("config_dump-n1.json")["certificates"][0];
    let identity: ambit_model::Identity = theirs["identity"].as_str().unwrap().parse().unwrap();
    let pki = Arc::new(ambit_testkit::Pki::new());
    let ca = ambit_testkit::FakeCa::new(pki, Duration::from_secs(3600));
    let certificates = Certificates::start(Arc::new(ca), CertificatesOptions::default());
    certificates.get(&identity).await.unwrap();
    let ours = serde_json::to_value(certificates.dump()).unwrap();
    assert_eq!(json_shape(&ours[0]), json_shape(theirs));
    assert_eq!(ours[0]["identity"], theirs["identity"]);
    assert_eq!(ours[0]["state"], theirs["state"]);
}

/// Replaces texts by a placeholder and reduces lists to their first element, to compare keys and types.
fn json_shape(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), json_shape(value)))
            .collect(),
        Value::Array(list) => list.first().map(json_shape).into_iter().collect(),
        Value::String(_) => "text".into(),
        other => other.clone(),
    }
}

// === metrics ===

/// Metric families in which Ambit differs from Istio, with the reason.
const DIFFERENT_METRICS: [(&str, &str); 8] = [
    ("istio_on_demand_dns", "appears at the first use"),
    ("istio_crl_", "appears at the first use"),
    ("istio_dns_", "appears at the first use"),
    ("ambit_", "our own"),
    (
        "process_",
        "more of what Prometheus' clients say of a process",
    ),
    ("tokio_", "more of what the runtime says of itself"),
    ("jemalloc_", "what the allocator says of itself"),
    ("workload_manager_", "the same, and our own beside them"),
];

fn metric_types(scrape: &str) -> BTreeMap<String, String> {
    let of = |line: &str| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        let unit = format!("# UNIT {name} ");
        let unit = scrape.lines().find_map(|line| line.strip_prefix(&unit));
        Some((name.to_owned(), format!("{kind} {unit:?}")))
    };
    scrape.lines().filter_map(of).collect()
}

fn parse_labels(line: &str) -> BTreeMap<String, String> {
    let inside = line.split_once('{').unwrap().1.rsplit_once('}').unwrap().0;
    let pair = |pair: &str| {
        let (key, value) = pair.split_once("=\"").unwrap();
        (key.to_owned(), value.trim_end_matches('"').to_owned())
    };
    inside.split("\",").map(pair).collect()
}

/// Parses the labels of a line of Istio's metrics, with workloads and services from the recorded resources.
fn parse_traffic_labels(mesh: &Mesh, line: &str) -> TrafficLabels {
    let labels = parse_labels(line);
    let workload = |side: &str| {
        let name = &labels[&format!("{side}_workload")];
        mesh.workloads
            .values()
            .find(|workload| workload.workload_name == *name)
            .unwrap_or_else(|| panic!("no workload {name}"))
    };
    let proven = labels["source_principal"].parse().ok();
    TrafficLabels {
        reporter: match labels["reporter"].as_str() {
            "source" => Reporter::Source,
            _ => Reporter::Destination,
        },
        source: Some(Arc::new(WorkloadLabels::new(workload("source"), proven))),
        destination: Some(Arc::new(WorkloadLabels::destination(workload(
            "destination",
        )))),
        service: mesh
            .services
            .get(&labels["destination_service"])
            .map(ServiceName::from),
        security: match labels["connection_security_policy"].as_str() {
            "mutual_tls" => SecurityPolicy::MutualTls,
            _ => SecurityPolicy::Unknown,
        },
    }
}

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

#[tokio::test]
async fn same_connections_have_the_same_metrics() {
    let mesh = Mesh::read();
    for file in ["metrics-n1.txt", "metrics-n2.txt"] {
        let theirs = read_text(file);
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        ambit_rt::metrics::register_build(&mut registry, "ztunnel", "unknown");
        ambit_rt::metrics::register_process(&mut registry);
        let workers = Workers::start(1).unwrap();
        ambit_rt::metrics::register_runtimes(&mut registry, workers.runtimes());
        let _sockets =
            [Reporter::Source, Reporter::Destination].map(|side| metrics.open_socket(side));
        metrics.count_xds_termination(ambit_telemetry::XdsTermination::ConnectionError);
        for url in ["istio.workload.Address", "istio.security.Authorization"] {
            metrics.count_xds_message(&format!("type.googleapis.com/{url}"), 1);
        }
        // Istio counts a connection that a policy denies as opened, Ambit only as closed and
        // failed.
        let opened = "istio_tcp_connections_opened_total{";
        let closed = "istio_tcp_connections_closed_total{";
        let traffic_lines = |prefix| theirs.lines().filter(move |line| line.starts_with(prefix));
        assert!(traffic_lines(opened).next().is_some());
        for line in traffic_lines(closed) {
            let reason = match parse_labels(line)["response_flags"].as_str() {
                "-" => FailureReason::None,
                "DENY" => FailureReason::Deny,
                "CONNECT" => FailureReason::Connect,
                other => panic!("{other} in {line}"),
            };
            let connection = metrics
                .traffic()
                .open_connection(&parse_traffic_labels(&mesh, line));
            connection.close(reason);
        }
        let ours = scrape(&registry);
        let (their_types, our_types) = (metric_types(&theirs), metric_types(&ours));
        for (name, kind) in &their_types {
            assert_eq!(our_types.get(name), Some(kind), "{name}");
        }
        for name in our_types
            .keys()
            .filter(|name| !their_types.contains_key(*name))
        {
            let known = DIFFERENT_METRICS
                .iter()
                .any(|(prefix, _)| name.starts_with(prefix));
            assert!(known, "{name} is not among the differences");
        }
        // Each line with all its labels in order, up to the count.
        let line = |text: &'_ str| text.rsplit_once(' ').map(|(line, _)| line.to_owned());
        let ours: BTreeSet<_> = ours.lines().filter_map(line).collect();
        for theirs in theirs.lines().filter(|line| line.starts_with("istio_")) {
            let theirs = line(theirs).unwrap();
            assert!(ours.contains(&theirs), "{theirs} is missing in {ours:#?}");
        }
    }
}

// === the access log ===

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Parses the `key=value` fields of an access log line; none of the recorded values has a space before a `=`.
fn parse_fields(line: &str) -> BTreeMap<&str, &str> {
    let mut fields = BTreeMap::new();
    let mut rest = line;
    while let Some((key, after)) = rest.split_once('=') {
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap(),
            None => after.split_once(' ').unwrap_or((after, "")),
        };
        fields.insert(key.trim(), value);
        rest = after;
    }
    fields
}

#[test]
fn same_connections_have_the_same_access_log() {
    let mut directions = BTreeSet::new();
    for file in ["access-log-n1.txt", "access-log-n2.txt"] {
        for theirs in read_text(file).lines() {
            let (_time, theirs) = theirs.split_once('\t').unwrap();
            let fields = parse_fields(theirs.rsplit_once('\t').unwrap().1);
            let known = |key: &str| fields.get(key).map(|text| (*text).into());
            let direction = match fields["direction"] {
                "inbound" => Direction::Inbound,
                _ => Direction::Outbound,
            };
            let log = AccessLog {
                src_workload: known("src.workload"),
                src_namespace: known("src.namespace"),
                src_identity: fields.get("src.identity").map(|id| id.parse().unwrap()),
                src_cluster: known("src.cluster"),
                dst_hbone: known("dst.hbone_addr"),
                dst_service: known("dst.service"),
                dst_workload: known("dst.workload"),
                dst_namespace: known("dst.namespace"),
                dst_identity: fields.get("dst.identity").map(|id| id.parse().unwrap()),
                dst_cluster: known("dst.cluster"),
                ..AccessLog::new(
                    direction,
                    fields["src.addr"].parse().unwrap(),
                    fields["dst.addr"].parse().unwrap(),
                )
            };
            let bytes = |key: &str| fields[key].parse().unwrap();
            let millis = fields["duration"].trim_end_matches("ms").parse().unwrap();
            let output = LogBuffer::default();
            capture(LogFormat::Text, "info", output.clone(), || {
                log.log_completed(
                    bytes("bytes_sent"),
                    bytes("bytes_recv"),
                    Duration::from_millis(millis),
                    fields.get("error").copied(),
                );
            })
            .unwrap();
            let ours = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
            let (_time, ours) = ours.trim_end().split_once('\t').unwrap();
            assert_eq!(ours, theirs);
            directions.insert(fields["direction"].to_owned());
        }
    }
    assert_eq!(directions.len(), 2);
}
