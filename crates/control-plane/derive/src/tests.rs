//! Tests of derivation: objects in, records out, without an API server and without files.

mod addresses;
mod entry_names;
mod mesh_config;
mod peer_auth;
mod policies;
mod property;
mod services;
mod survey;
mod trust_domains;
mod waypoints;
mod workloads;

use std::collections::BTreeMap;

use ambit_k8s_api::{Object, ObjectKey};
use ambit_model::{
    Authentication, Authorization, HttpPolicy, IsWaypointRecord, RateLimit, Service,
    WaypointDestination, WaypointExtension, WaypointGateway, WaypointRecordType, WaypointService,
    WaypointTelemetry, Workload,
};

use super::*;
use crate::problem::Problem;

/// Applies changed waypoint records of one type to the map `all`. The keys of the map consist of the Gateway's name,
/// `verb` and the record's name.
fn put_records<R: IsWaypointRecord + Clone + PartialEq>(
    all: &mut BTreeMap<String, R>,
    names: &mut Vec<String>,
    delta: &Delta,
    verb: &str,
) {
    for (key, record) in delta.waypoint_records_of::<R>() {
        let name = match (R::TYPE, key.name.as_str()) {
            (WaypointRecordType::Gateway, _) => format!("gateway {}", key.gateway),
            (_, "") => format!("{}{verb}all", key.gateway),
            (_, name) => format!("{}{verb}{name}", key.gateway),
        };
        put_record(all, names, name, record.cloned());
    }
}

/// Index under test, with the records that a receiver of all its deltas has.
pub(crate) struct TestMesh {
    pub(crate) index: Index,
    pub(crate) pods: PodDirectory,
    pub(crate) workloads: BTreeMap<String, Workload>,
    pub(crate) services: BTreeMap<String, Service>,
    pub(crate) policies: BTreeMap<String, Authorization>,
    pub(crate) waypoint_gateways: BTreeMap<String, WaypointGateway>,
    /// Services for waypoints, by `GATEWAY SERVICE`.
    pub(crate) waypoint_services: BTreeMap<String, WaypointService>,
    /// Policies for waypoints, by `GATEWAY POLICY`.
    pub(crate) waypoint_policies: BTreeMap<String, HttpPolicy>,
    /// Destinations for waypoints, by `GATEWAY to SERVICE`.
    pub(crate) waypoint_destinations: BTreeMap<String, WaypointDestination>,
    pub(crate) waypoint_authentications: BTreeMap<String, Authentication>,
    /// Telemetry for waypoints, by `GATEWAY observes SCOPE`.
    pub(crate) waypoint_telemetry: BTreeMap<String, WaypointTelemetry>,
    pub(crate) waypoint_rate_limits: BTreeMap<String, RateLimit>,
    pub(crate) waypoint_extensions: BTreeMap<String, WaypointExtension>,
}

pub(crate) fn parse_objects(yaml: &str) -> Vec<Object> {
    yaml.split("\n---\n")
        .filter(|document| !document.trim().is_empty())
        .map(|document| {
            let options = serde_saphyr::options! { strict_booleans: true };
            let value: serde_json::Value = serde_saphyr::from_str_with_options(document, options)
                .unwrap_or_else(|error| panic!("{error}\n{document}"));
            let key = ObjectKey::read(&value).unwrap_or_else(|error| panic!("{error}\n{document}"));
            Object::from_value(key.kind, &value)
                .unwrap_or_else(|error| panic!("{error}\n{document}"))
        })
        .collect()
}

impl TestMesh {
    pub(crate) fn empty() -> Self {
        Self::with_config(MeshConfig::default())
    }

    pub(crate) fn with_config(config: MeshConfig) -> Self {
        let config = MeshConfig {
            cluster_id: "c1".into(),
            ..config
        };
        Self {
            index: Index::new(config),
            pods: PodDirectory::default(),
            workloads: BTreeMap::new(),
            services: BTreeMap::new(),
            policies: BTreeMap::new(),
            waypoint_gateways: BTreeMap::new(),
            waypoint_services: BTreeMap::new(),
            waypoint_policies: BTreeMap::new(),
            waypoint_destinations: BTreeMap::new(),
            waypoint_authentications: BTreeMap::new(),
            waypoint_telemetry: BTreeMap::new(),
            waypoint_rate_limits: BTreeMap::new(),
            waypoint_extensions: BTreeMap::new(),
        }
    }

    /// Builds a mesh from the objects of YAML documents, and flushes once.
    pub(crate) fn from_yaml(yaml: &str) -> Self {
        let mut mesh = Self::empty();
        mesh.apply(yaml);
        mesh
    }

    /// Applies objects and returns the names of the changed records (`-` before those that were removed).
    pub(crate) fn apply(&mut self, yaml: &str) -> Vec<String> {
        for object in parse_objects(yaml) {
            self.index.apply(&object, None, &mut self.pods);
        }
        self.flush()
    }

    pub(crate) fn delete(
        &mut self,
        kind: ambit_k8s_api::Kind,
        namespace: &str,
        name: &str,
    ) -> Vec<String> {
        self.index
            .delete(&ObjectKey::new(kind, namespace, name), &mut self.pods);
        self.flush()
    }

    pub(crate) fn flush(&mut self) -> Vec<String> {
        let delta = self.index.flush();
        let mut names = Vec::new();
        for (uid, workload) in &delta.workloads {
            put_record(
                &mut self.workloads,
                &mut names,
                uid.to_string(),
                workload.as_deref().cloned(),
            );
        }
        for (name, record) in &delta.services {
            let service = record.as_deref().map(|record| record.service.clone());
            put_record(&mut self.services, &mut names, name.to_string(), service);
        }
        for (key, policy) in &delta.policies {
            put_record(
                &mut self.policies,
                &mut names,
                key.to_string(),
                policy.as_deref().cloned(),
            );
        }
        put_records(&mut self.waypoint_gateways, &mut names, &delta, "");
        put_records(&mut self.waypoint_services, &mut names, &delta, " ");
        put_records(&mut self.waypoint_policies, &mut names, &delta, " ");
        put_records(&mut self.waypoint_destinations, &mut names, &delta, " to ");
        put_records(
            &mut self.waypoint_authentications,
            &mut names,
            &delta,
            " by ",
        );
        put_records(
            &mut self.waypoint_telemetry,
            &mut names,
            &delta,
            " observes ",
        );
        put_records(
            &mut self.waypoint_rate_limits,
            &mut names,
            &delta,
            " limits by ",
        );
        put_records(&mut self.waypoint_extensions, &mut names, &delta, " runs ");
        assert!(self.index.flush().is_empty(), "a second flush has nothing");
        names
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        self.index
            .problems()
            .map(
                |Problem {
                     object,
                     field,
                     message,
                     ..
                 }| format!("{object}: {field}: {message}"),
            )
            .collect()
    }

    pub(crate) fn pod(&self, name: &str) -> &Workload {
        let uid = format!("c1//Pod/shop/{name}");
        self.workloads
            .get(&uid)
            .unwrap_or_else(|| panic!("no {uid} in {:?}", self.workloads.keys()))
    }

    pub(crate) fn service(&self, name: &str) -> &Service {
        self.services
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {:?}", self.services.keys()))
    }

    pub(crate) fn policy(&self, name: &str) -> &Authorization {
        self.policies
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {:?}", self.policies.keys()))
    }
}

fn put_record<T>(
    map: &mut BTreeMap<String, T>,
    names: &mut Vec<String>,
    name: String,
    value: Option<T>,
) {
    match value {
        Some(value) => {
            names.push(name.clone());
            map.insert(name, value);
        }
        None => {
            assert!(map.remove(&name).is_some(), "{name} was never published");
            names.push(format!("-{name}"));
        }
    }
}

/// Pod that most tests use: `shop/cart-1`, captured, ready, on the node n1.
pub(crate) const CART_POD: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: cart-1
  namespace: shop
  uid: u1
  labels: {app: cart}
  annotations: {ambient.istio.io/redirection: enabled}
spec:
  nodeName: n1
  serviceAccountName: cart
  containers:
  - name: main
    ports:
    - {name: web, containerPort: 8080}
    - {name: dns, containerPort: 5353, protocol: UDP}
status:
  phase: Running
  podIPs: [{ip: 10.1.2.3}, {ip: "fd00::3"}]
  conditions: [{type: Ready, status: "True"}]
"#;

pub(crate) const CART_SERVICE: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  clusterIP: 10.96.0.9
  clusterIPs: [10.96.0.9]
  selector: {app: cart}
  ports: [{name: http-web, port: 80, targetPort: web}]
"#;

/// Returns the manifest `CART_POD` with some texts replaced.
pub(crate) fn cart_pod(replacements: &[(&str, &str)]) -> String {
    let mut text = CART_POD.to_owned();
    for (from, to) in replacements {
        assert!(text.contains(from), "{from:?} is not in the pod");
        text = text.replace(from, to);
    }
    text
}

/// Joins YAML documents into one text.
pub(crate) fn join_documents(documents: &[&str]) -> String {
    documents.join("\n---\n")
}

#[test]
fn conditions_that_stand_on_objects_change_no_record() {
    let objects = [
        CART_SERVICE.trim_start(),
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\nspec: {rules: [{}]}\n",
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n",
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e, namespace: shop}\nspec: {hosts: [a.com], resolution: DNS}\n",
        "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w, namespace: shop}\nspec: {address: 192.0.2.1}\n",
    ];
    let mut mesh = TestMesh::from_yaml(&join_documents(&objects));
    assert!(mesh.problems().is_empty(), "{:?}", mesh.problems());
    for object in objects {
        let condition = "{type: Any, status: \"False\", reason: Any, message: \"\", lastTransitionTime: \"2026-01-01T00:00:00Z\"}";
        let judged = format!("{object}status: {{conditions: [{condition}]}}\n");
        assert!(mesh.apply(&judged).is_empty(), "{judged}");
    }
}
