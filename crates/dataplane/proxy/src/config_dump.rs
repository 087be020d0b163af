//! `/config_dump`: the mesh state as JSON, in the format that `istioctl ztunnel-config` reads.
//!
//! The records are read from the table one by one while they are written, so that dumping a large mesh takes little
//! memory and never holds a lock for long.

use std::{collections::BTreeMap, sync::Arc};

use ambit_mesh_json::Json;
use ambit_model::{Authorization, Service, WorkloadStatus, WorkloadUid};
use ambit_route::{EndpointView, WorkloadRef};
use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeSeq},
};
use serde_json::Value;

use crate::state::SharedState;

/// Members of `/config_dump` besides the mesh state, which other components provide.
#[derive(Clone, Debug, Default)]
pub struct DumpExtras {
    /// `version` member: {version, gitRevision, rustVersion, buildProfile, buildStatus, istioVersion,
    /// cryptoProvider}.
    pub version: Value,
    /// `config` member: the proxy's configuration.
    pub config: Value,
    /// `certificates` member: a list of certificates in the format of `ambit_tls`.
    pub certificates: Value,
    /// `workloadState` member: state of the proxy's local workloads, by pod uid.
    pub workload_state: Value,
    /// `staticConfig` member: content of the local xDS file (`LOCAL_XDS_PATH`).
    pub static_config: Value,
}

/// Serializes the response of `/config_dump`.
pub fn config_dump(state: &SharedState, extras: &DumpExtras) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec_pretty(&ConfigDump { state, extras })
}

struct ConfigDump<'a> {
    state: &'a SharedState,
    extras: &'a DumpExtras,
}

impl Serialize for ConfigDump<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { state, extras } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("workloads", &Workloads(state))?;
        map.serialize_entry("services", &Services(state))?;
        let policies = policies(state);
        let policies: Vec<_> = policies.iter().map(|policy| Json(&**policy)).collect();
        map.serialize_entry("policies", &policies)?;
        map.serialize_entry("stagedServices", &staged_endpoints(state))?;
        map.serialize_entry("staticConfig", &or_empty_object(&extras.static_config))?;
        map.serialize_entry("version", &extras.version)?;
        map.serialize_entry("config", &extras.config)?;
        map.serialize_entry("certificates", &extras.certificates)?;
        map.serialize_entry("workloadState", &or_empty_object(&extras.workload_state))?;
        map.end()
    }
}

fn or_empty_object(value: &Value) -> Value {
    match value {
        Value::Null => Value::Object(serde_json::Map::new()),
        value => value.clone(),
    }
}

struct Workloads<'a>(&'a SharedState);

impl Serialize for Workloads<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut workloads: Vec<WorkloadRef> = self.0.table().workloads().cloned().collect();
        workloads.sort_by(|a, b| a.uid().cmp(b.uid()));
        let mut list = serializer.serialize_seq(Some(workloads.len()))?;
        for workload in workloads {
            list.serialize_element(&Json(workload.to_model()))?;
        }
        list.end()
    }
}

struct Services<'a>(&'a SharedState);

impl Serialize for Services<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut services: Vec<Arc<Service>> = self.0.table().services().cloned().collect();
        services.sort_by(|a, b| (&a.namespace, &a.hostname).cmp(&(&b.namespace, &b.hostname)));
        let mut list = serializer.serialize_seq(Some(services.len()))?;
        for service in services {
            let endpoints = by_uid(self.0.table().endpoints(&service));
            list.serialize_element(&ServiceDump {
                service: Json(&service),
                endpoints,
            })?;
        }
        list.end()
    }
}

#[derive(Serialize)]
struct ServiceDump<'a> {
    #[serde(flatten)]
    service: Json<&'a Service>,
    endpoints: BTreeMap<WorkloadUid, EndpointDump>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointDump {
    workload_uid: WorkloadUid,
    port: BTreeMap<u16, u16>,
    status: Json<WorkloadStatus>,
}

fn by_uid(endpoints: Vec<EndpointView>) -> BTreeMap<WorkloadUid, EndpointDump> {
    let dump = |EndpointView { uid, ports, status }| {
        (
            uid.clone(),
            EndpointDump {
                workload_uid: uid,
                port: ports.sorted(),
                status: Json(status),
            },
        )
    };
    endpoints.into_iter().map(dump).collect()
}

fn policies(state: &SharedState) -> Vec<Arc<Authorization>> {
    state.policies().iter().cloned().collect()
}

fn staged_endpoints(state: &SharedState) -> BTreeMap<String, BTreeMap<WorkloadUid, EndpointDump>> {
    let staged = state.table().staged_endpoints();
    staged
        .into_iter()
        .map(|(name, endpoints)| (name.to_string(), by_uid(endpoints)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        local_xds,
        state::{SharedState, StateConfig},
    };

    fn dump_of(yaml: &str) -> Value {
        let state = SharedState::new(StateConfig::default());
        local_xds::parse(yaml).unwrap().apply_to(&state);
        serde_json::from_slice(&config_dump(&state, &DumpExtras::default()).unwrap()).unwrap()
    }

    #[test]
    fn a_dump_has_the_keys_that_istioctl_reads() {
        let dump = dump_of(
            r#"
workloads:
- {uid: c1//Pod/default/a, name: a, namespace: default, serviceAccount: default, workloadIps: [127.0.0.1], protocol: HBONE, node: local, network: "", services: {"default/example.com": {80: 8080}, "default/later.com": {80: 81}}}
services:
- {name: a, namespace: default, hostname: example.com, vips: [/127.10.0.1], ports: {80: 8080}, canonical: true}
policies:
- {name: p, namespace: default, scope: Namespace, action: Allow, dryRun: false, rules: [[[{notDestinationPorts: [9999]}]]]}
"#,
        );
        for key in [
            "staticConfig",
            "version",
            "config",
            "certificates",
            "workloadState",
        ] {
            assert!(dump.get(key).is_some(), "{key}");
        }
        let workload = &dump["workloads"][0];
        assert_eq!(workload["workloadIps"][0], "127.0.0.1");
        assert_eq!(workload["protocol"], "HBONE");
        assert_eq!(workload["services"][0], "default/example.com");
        let service = &dump["services"][0];
        assert_eq!(service["vips"][0], "/127.10.0.1");
        assert_eq!(service["ports"]["80"], 8080);
        assert_eq!(service["visibility"], "Public");
        let endpoint = &service["endpoints"]["c1//Pod/default/a"];
        assert_eq!(endpoint["workloadUid"], "c1//Pod/default/a");
        assert_eq!(endpoint["port"]["80"], 8080);
        assert_eq!(endpoint["status"], "Healthy");
        assert_eq!(
            dump["policies"][0]["rules"][0][0][0]["notDestinationPorts"][0],
            9999
        );
        let staged = &dump["stagedServices"]["default/later.com"]["c1//Pod/default/a"];
        assert_eq!(staged["port"]["80"], 81);
    }
}
