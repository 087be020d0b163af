//! All objects of one waypoint, with what they have in common: names, labels, owner.

use std::collections::BTreeMap;

use ambit_k8s_api::{Gateway, is_dns_name};
use serde_json::{Value, json};

use crate::{
    CLASS, MANAGED, MANAGED_BY, Settings,
    pod::{self, GATEWAY_NAME, HBONE_PORT, READINESS_PORT},
};

/// Label: the class of the Gateway that an object is for.
const GATEWAY_CLASS_NAME: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Annotation of a Gateway: how many pods its waypoint has.
const REPLICAS: &str = "ambit.io/waypoint-replicas";
/// The longest name of a Service.
const LONGEST_NAME: usize = 63;
/// Annotations of the Gateway that speak of its own manifest.
const OF_THE_MANIFEST: &str = "kubectl.kubernetes.io/";

/// What makes a waypoint run, each in the form of a manifest. All are in the Gateway's namespace, have its
/// name and are owned by it.
#[derive(Clone, Debug, PartialEq)]
pub struct WaypointObjects {
    /// The account whose identity the waypoint has.
    pub service_account: Value,
    /// Where clients find it.
    pub service: Value,
    /// Its pods.
    pub deployment: Value,
    /// How many of them may be evicted at once.
    pub disruption_budget: Value,
}

impl WaypointObjects {
    /// All of them, in the order in which they are made.
    pub fn all(&self) -> [&Value; 4] {
        [
            &self.service_account,
            &self.service,
            &self.deployment,
            &self.disruption_budget,
        ]
    }
}

/// Why no waypoint can be made for a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// A Service cannot have its name.
    #[error(
        "the name {0:?} cannot be a Service's: use at most 63 lower-case letters, digits and '-', and a letter first"
    )]
    Name(String),
    /// It refers to overlays.
    #[error(
        "spec.infrastructure.parametersRef is not supported: use spec.infrastructure.labels and annotations, or the chart's values for waypoints"
    )]
    Parameters,
    /// The number of replicas is none.
    #[error("annotation ambit.io/waypoint-replicas: {0:?} is not a number of pods")]
    Replicas(String),
}

/// The objects of a Gateway's waypoint.
///
/// # Errors
/// When the Gateway asks for what there is not, or has a name that its Service cannot have.
pub fn objects(gateway: &Gateway, settings: &Settings) -> Result<WaypointObjects, Unusable> {
    let made = Made::new(gateway, settings)?;
    Ok(WaypointObjects {
        service_account: made.object("v1", "ServiceAccount", json!({})),
        service: made.service(),
        deployment: made.deployment(),
        disruption_budget: made.object(
            "policy/v1",
            "PodDisruptionBudget",
            json!({"spec": {"maxUnavailable": 1, "selector": made.selector()}}),
        ),
    })
}

/// A Gateway and what is the same in all its objects.
struct Made<'a> {
    gateway: &'a Gateway,
    settings: &'a Settings,
    name: &'a str,
    replicas: i32,
}

impl<'a> Made<'a> {
    fn new(gateway: &'a Gateway, settings: &'a Settings) -> Result<Self, Unusable> {
        let name = gateway.metadata.name.as_deref().unwrap_or_default();
        let letter = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
        if !is_dns_name(name, LONGEST_NAME) || !letter || name.contains('.') {
            return Err(Unusable::Name(name.to_owned()));
        }
        let infrastructure = gateway.spec.infrastructure.as_ref();
        if infrastructure.is_some_and(|own| own.parameters_ref.is_some()) {
            return Err(Unusable::Parameters);
        }
        Ok(Self {
            gateway,
            settings,
            name,
            replicas: replicas(gateway, settings)?,
        })
    }

    fn service(&self) -> Value {
        let mut service = self.object(
            "v1",
            "Service",
            json!({"spec": {
                "type": "ClusterIP",
                "ipFamilyPolicy": "PreferDualStack",
                "selector": {GATEWAY_NAME: self.name},
                "ports": [
                    {"name": "status-port", "port": READINESS_PORT, "protocol": "TCP", "appProtocol": "tcp"},
                    {"name": "mesh", "port": HBONE_PORT, "protocol": "TCP", "appProtocol": "hbone"},
                ],
            }}),
        );
        // Clients prefer a waypoint of their own zone.
        let near = json!({ambit_k8s_api::labels::TRAFFIC_DISTRIBUTION: "PreferClose"});
        merge(&mut service, "/metadata/annotations", &near);
        service
    }

    fn deployment(&self) -> Value {
        let mut metadata = json!({
            "labels": pod::labels(self.name),
            "annotations": pod::annotations(),
        });
        let own = self.infrastructure();
        for (place, own) in [("/labels", &own.0), ("/annotations", &own.1)] {
            let with = metadata.pointer(place).cloned().unwrap_or_default();
            merge(&mut metadata, place, &json!(own));
            // What makes it a waypoint's pod stays.
            merge(&mut metadata, place, &with);
        }
        merge(&mut metadata, "/labels", &self.labels());
        self.object(
            "apps/v1",
            "Deployment",
            json!({"spec": {
                "replicas": self.replicas,
                "selector": self.selector(),
                // A new pod is ready before an old one goes.
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
                },
                "template": {
                    "metadata": metadata,
                    "spec": pod::spec(self.name, &self.selector(), self.settings),
                },
            }}),
        )
    }

    fn selector(&self) -> Value {
        json!({"matchLabels": {GATEWAY_NAME: self.name}})
    }

    /// An object of the Gateway: with its name, in its namespace, and gone when it goes.
    fn object(&self, api_version: &str, kind: &str, rest: Value) -> Value {
        let metadata = &self.gateway.metadata;
        let (labels, annotations) = self.copied();
        let mut object = json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": self.name,
                "namespace": metadata.namespace.as_deref().unwrap_or("default"),
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": [{
                    "apiVersion": "gateway.networking.k8s.io/v1",
                    "kind": "Gateway",
                    "name": self.name,
                    "uid": metadata.uid.as_deref().unwrap_or_default(),
                    "controller": true,
                    "blockOwnerDeletion": false,
                }],
            },
        });
        merge(&mut object, "/metadata/labels", &self.labels());
        merge(&mut object, "", &rest);
        object
    }

    /// The labels of everything.
    fn labels(&self) -> Value {
        json!({MANAGED: MANAGED_BY, GATEWAY_NAME: self.name, GATEWAY_CLASS_NAME: CLASS})
    }

    /// Labels and annotations that the Gateway asks for explicitly.
    fn infrastructure(&self) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let own = self.gateway.spec.infrastructure.clone().unwrap_or_default();
        (own.labels, own.annotations)
    }

    /// Labels and annotations of the objects themselves; if the Gateway asks for none, it gives its own.
    /// Not to its pods: a changed annotation would replace them all.
    fn copied(&self) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        if self.gateway.spec.infrastructure.is_some() {
            return self.infrastructure();
        }
        let metadata = &self.gateway.metadata;
        let mut annotations = metadata.annotations.clone().unwrap_or_default();
        annotations.retain(|name, _| !name.starts_with(OF_THE_MANIFEST));
        (metadata.labels.clone().unwrap_or_default(), annotations)
    }
}

/// Whether a Gateway says how many pods its waypoint has.
pub fn says_replicas(gateway: &Gateway) -> bool {
    let annotations = gateway.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(REPLICAS))
}

fn replicas(gateway: &Gateway, settings: &Settings) -> Result<i32, Unusable> {
    let annotations = gateway.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|annotations| annotations.get(REPLICAS)) else {
        return Ok(settings.replicas);
    };
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.ok_or_else(|| Unusable::Replicas(text.clone()))
}

/// Lays the members of one map over those of another, at a place inside an object.
fn merge(object: &mut Value, place: &str, members: &Value) {
    let into = object.pointer_mut(place).and_then(Value::as_object_mut);
    if let (Some(into), Some(members)) = (into, members.as_object()) {
        into.extend(members.clone());
    }
}
