//! Sections of a `/config_dump` that commands need. Parsing is lenient: the dumps of Ambit's and of Istio's node
//! proxies and the `/debug/ambientz` of Ambit's control plane share these keys, and each has other keys besides.

use std::{collections::BTreeMap, net::IpAddr};

use ambit_authz::PolicySet;
use ambit_mesh_json::Json;
use ambit_model::{Authorization, Protocol, Workload};
use serde::{Deserialize, Serialize, Serializer, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{CliError, ErrorKind};

/// Sections of a node proxy's `/config_dump` with the records of the mesh and the served pods.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Dump {
    /// Records of workloads: pods and other endpoints.
    pub(crate) workloads: DumpEntries<WorkloadEntry>,
    pub(crate) services: DumpEntries<ServiceEntry>,
    pub(crate) policies: DumpEntries<PolicyEntry>,
    pub(crate) certificates: DumpEntries<CertificateEntry>,
    /// State of the pods that the proxy serves, by uid.
    pub(crate) workload_state: BTreeMap<String, PodEntry>,
}

/// Section of a `/config_dump` about the proxy itself, without the records of the mesh.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ProxyDump {
    pub(crate) version: ProxyVersion,
    pub(crate) certificates: DumpEntries<CertificateEntry>,
}

/// Section of a `/config_dump` about open connections.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ConnectionsDump {
    /// State of the pods that the proxy serves, by uid.
    #[serde(deserialize_with = "or_default")]
    pub(crate) workload_state: BTreeMap<String, PodEntry>,
}

/// Entries of one section of a `/config_dump`, written as a list, or as a map by name.
#[derive(Debug)]
pub(crate) struct DumpEntries<T>(Vec<DumpEntry<T>>);

/// Entry of a section: the parsed fields, and its complete JSON for the output.
#[derive(Debug)]
pub(crate) struct DumpEntry<T> {
    pub(crate) parsed: T,
    raw: Value,
}

/// Record of a workload: a pod or another endpoint.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkloadEntry {
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// Name of the workload's owner, for instance a Deployment.
    pub(crate) workload_name: String,
    pub(crate) workload_ips: Vec<String>,
    pub(crate) node: String,
    pub(crate) trust_domain: String,
    pub(crate) service_account: String,
    pub(crate) protocol: String,
    pub(crate) status: String,
    pub(crate) waypoint: Option<Waypoint>,
    pub(crate) endpoint_waypoint: Option<EndpointWaypoint>,
    pub(crate) authorization_policies: Vec<String>,
}

/// Waypoint of one endpoint, attached by namespace or service account (an extension of Ambit).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointWaypoint {
    pub(crate) waypoint: Waypoint,
    /// SPIFFE identities of the waypoint's pods.
    pub(crate) identities: Vec<String>,
    /// Whether the endpoint accepts connections only through the waypoint.
    pub(crate) enforce: bool,
    /// Whether the endpoint's node proxy rejects connections that bypass the waypoint instead of redirecting them to
    /// it.
    pub(crate) refuse: bool,
}

/// Record of a service.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceEntry {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) hostname: String,
    /// Virtual addresses, `network/address`.
    pub(crate) vips: Vec<String>,
    pub(crate) ports: TargetPorts,
    /// Endpoints of the service; absent from the control plane's dump.
    pub(crate) endpoints: Option<DumpEntries<EndpointEntry>>,
    pub(crate) waypoint: Option<Waypoint>,
}

/// Target port by service port; 0 for a named target port.
pub(crate) type TargetPorts = BTreeMap<u16, u16>;

/// An endpoint of a service.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EndpointEntry {
    pub(crate) workload_uid: String,
    pub(crate) port: TargetPorts,
    pub(crate) status: String,
}

/// Reference from a workload or service to its waypoint.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Waypoint {
    /// Service (`namespace/host`) or IP address of the waypoint: a string, or an object with these fields.
    destination: Value,
}

impl Waypoint {
    /// Returns the waypoint's service or address as text; empty if there is none.
    pub(crate) fn destination(&self) -> String {
        match &self.destination {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

/// Authorization policy in short form for lists; [`Dump::policies`] reads all its fields.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PolicyEntry {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) scope: String,
    pub(crate) action: String,
    pub(crate) rules: Vec<Value>,
    pub(crate) dry_run: bool,
}

/// Certificate chain and trust anchors of one identity, with the state of the certificate.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CertificateEntry {
    pub(crate) identity: String,
    pub(crate) state: String,
    pub(crate) cert_chain: Vec<Certificate>,
    pub(crate) root_certs: Vec<Certificate>,
}

/// One certificate of a chain; its times are in RFC 3339.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Certificate {
    pub(crate) serial_number: String,
    pub(crate) valid_from: String,
    pub(crate) expiration_time: String,
}

/// State of a pod that the proxy serves.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodEntry {
    pub(crate) state: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) info: PodInfo,
    /// Open connections by direction (inbound, outbound).
    #[serde(deserialize_with = "or_default")]
    pub(crate) connections: BTreeMap<String, Vec<Connection>>,
}

impl PodEntry {
    /// Returns the number of open connections in both directions.
    pub(crate) fn open_connections(&self) -> usize {
        self.connections.values().map(Vec::len).sum()
    }
}

/// Namespace and name of a pod that the proxy serves.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodInfo {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Open connection of a pod in a `/config_dump`. Unknown fields are kept, so that JSON output has them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Connection {
    pub(crate) src: String,
    pub(crate) original_dst: String,
    pub(crate) actual_dst: String,
    pub(crate) protocol: String,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl Connection {
    /// Returns the identity that the caller proved: JSON null for a plaintext caller, `None` if the dump lacks the
    /// field.
    pub(crate) fn src_identity(&self) -> Option<&Value> {
        self.more.get("srcIdentity")
    }
}

/// A proxy's version.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ProxyVersion {
    pub(crate) version: String,
}

impl ConnectionsDump {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, CliError> {
        serde_json::from_slice(bytes).map_err(invalid_json_error)
    }
}

impl Dump {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, CliError> {
        let value = serde_json::from_slice(bytes).map_err(invalid_json_error)?;
        match value {
            Value::Object(mut map) if map.contains_key("workloads") => {
                map.retain(|_, value| !value.is_null());
                serde_json::from_value(Value::Object(map))
                    .map_err(|error| no_dump_error().with_source(error))
            }
            _ => Err(no_dump_error()),
        }
    }

    /// Converts the workloads to the model, with the fields that authorization needs.
    pub(crate) fn authz_workloads(&self) -> Vec<Workload> {
        self.workloads.parsed().map(to_workload).collect()
    }

    /// Parses all authorization policies. An unreadable policy is an error, since decisions without it would be wrong.
    pub(crate) fn policy_set(&self) -> Result<PolicySet, CliError> {
        let mut set = PolicySet::default();
        for entry in self.policies.iter() {
            set.insert(parse_policy(&entry.raw).map_err(|error| {
                let PolicyEntry {
                    namespace, name, ..
                } = &entry.parsed;
                let what = format!("the policy {namespace}/{name} cannot be read");
                CliError::new(ErrorKind::Failed, what).with_source(error)
            })?);
        }
        Ok(set)
    }
}

fn invalid_json_error(error: serde_json::Error) -> CliError {
    CliError::new(ErrorKind::Unreachable, "the answer is no JSON").with_source(error)
}

fn no_dump_error() -> CliError {
    CliError::new(ErrorKind::Unreachable, "the answer is no config dump")
        .with_hint("is this a node proxy's admin address (port 15000)?")
}

/// Deserializes JSON null as the type's default.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

impl<T> DumpEntries<T> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &DumpEntry<T>> {
        self.0.iter()
    }

    /// Iterates over the known fields of each entry.
    pub(crate) fn parsed(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|entry| &entry.parsed)
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<T> Default for DumpEntries<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for DumpEntries<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = match Value::deserialize(deserializer)? {
            Value::Array(list) => list,
            Value::Object(map) => map.into_iter().map(|(_, value)| value).collect(),
            _ => Vec::new(),
        };
        let entry = |raw: Value| {
            let mut parsed = raw.clone();
            drop_nulls(&mut parsed);
            let parsed = serde_json::from_value(parsed).map_err(serde::de::Error::custom)?;
            Ok(DumpEntry { parsed, raw })
        };
        all.into_iter()
            .map(entry)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl<T> Serialize for DumpEntry<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

/// Returns `text`, or `default` if it is empty: dumps omit fields with default values.
pub(crate) fn non_empty_or<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

fn to_workload(entry: &WorkloadEntry) -> Workload {
    let domain = non_empty_or(&entry.trust_domain, ambit_model::DEFAULT_TRUST_DOMAIN);
    let policies = entry.authorization_policies.iter();
    Workload {
        uid: entry.uid.as_str().into(),
        name: entry.name.as_str().into(),
        namespace: entry.namespace.as_str().into(),
        workload_ips: parse_ips(entry),
        trust_domain: domain.into(),
        service_account: non_empty_or(&entry.service_account, "default").into(),
        protocol: match entry.protocol.as_str() {
            "HBONE" => Protocol::Hbone,
            _ => Protocol::Tcp,
        },
        authorization_policies: policies.map(|name| name.as_str().into()).collect(),
        ..Workload::default()
    }
}

/// Parses the IP addresses of a workload.
fn parse_ips(entry: &WorkloadEntry) -> Vec<IpAddr> {
    let ips = entry.workload_ips.iter();
    ips.filter_map(|ip| ip.parse().ok()).collect()
}

fn parse_policy(whole: &Value) -> Result<Authorization, serde_json::Error> {
    const KNOWN_FIELDS: [&str; 6] = ["name", "namespace", "scope", "action", "rules", "dryRun"];
    let fields = whole.as_object().into_iter().flatten();
    let known =
        fields.filter(|(key, value)| KNOWN_FIELDS.contains(&key.as_str()) && !value.is_null());
    let known = known.map(|(key, value)| (key.clone(), value.clone()));
    let Json(policy) = serde_json::from_value(Value::Object(known.collect()))?;
    Ok(policy)
}
