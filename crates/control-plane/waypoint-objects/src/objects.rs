//! Builds all objects of one waypoint, with their common names, labels and owner.

use std::collections::BTreeMap;

use ambit_k8s_api::{Gateway, is_dns_name};
use serde_json::{Value, json};

use crate::{
    ConfigMaps, GATEWAY_CLASS, InvalidParameters, MANAGED_BY_VALUE, MANAGED_LABEL, Settings,
    WaypointObjectKind,
    ownership::GATEWAY_CLASS_LABEL,
    pod::{self, GATEWAY_NAME_LABEL, HBONE_PORT, READINESS_PORT},
};

/// Annotation of a Gateway: number of pods of its waypoint.
const REPLICAS_ANNOTATION: &str = "ambit.io/waypoint-replicas";
/// Annotation of a Gateway: the type of its Service.
const SERVICE_TYPE_ANNOTATION: &str = "networking.istio.io/service-type";
/// Annotations of a Gateway that rename the generated objects and the service account.
const NAME_OVERRIDE_ANNOTATIONS: [&str; 2] = [
    "gateway.istio.io/name-override",
    "gateway.istio.io/service-account",
];
/// Maximum length of a Service's name.
const MAX_NAME_LENGTH: usize = 63;
/// Prefix of kubectl's annotations, such as the last applied manifest, which are not copied from the Gateway.
const MANIFEST_ANNOTATION_PREFIX: &str = "kubectl.kubernetes.io/";

/// Objects of a waypoint as manifests. All are in the Gateway's namespace, have its name and are
/// owned by it.
#[derive(Clone, Debug, PartialEq)]
pub struct WaypointObjects {
    /// ServiceAccount whose identity the waypoint has.
    pub service_account: Value,
    /// Service under whose cluster IP proxies connect to the waypoint.
    pub service: Value,
    /// Deployment of the waypoint's pods, without `replicas` if it has an autoscaler.
    pub deployment: Value,
    /// HorizontalPodAutoscaler, if an overlay requests one.
    pub autoscaler: Option<Value>,
    /// PodDisruptionBudget, unless an overlay disables it.
    pub disruption_budget: Option<Value>,
    /// Whether the Gateway or an overlay sets `replicas`, so that scaling by another writer is undone.
    pub sets_replicas: bool,
}

impl WaypointObjects {
    /// Returns all objects of the waypoint, in the order of creation.
    pub fn all(&self) -> Vec<(WaypointObjectKind, &Value)> {
        let all = [
            (
                WaypointObjectKind::ServiceAccount,
                Some(&self.service_account),
            ),
            (WaypointObjectKind::Service, Some(&self.service)),
            (WaypointObjectKind::Deployment, Some(&self.deployment)),
            (WaypointObjectKind::Autoscaler, self.autoscaler.as_ref()),
            (
                WaypointObjectKind::DisruptionBudget,
                self.disruption_budget.as_ref(),
            ),
        ];
        let all = all.into_iter();
        all.filter_map(|(part, object)| Some((part, object?)))
            .collect()
    }
}

/// Reason why no waypoint can be deployed for a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaypointError {
    /// The Gateway's name is invalid as a Service's name.
    #[error(
        "the name {0:?} cannot be a Service's: use at most 63 lower-case letters, digits and '-', and a letter first"
    )]
    InvalidName(String),
    /// The parameters of the Gateway, or of its class, are invalid.
    #[error(transparent)]
    InvalidParameters(#[from] InvalidParameters),
    /// The Gateway's annotation for the number of replicas is invalid.
    #[error("annotation ambit.io/waypoint-replicas: {0:?} is not a number of pods")]
    InvalidReplicas(String),
    /// The type of the Service is invalid, or not supported for waypoints.
    #[error(
        "annotation {SERVICE_TYPE_ANNOTATION}: {0:?} is no type of a waypoint's Service; there are ClusterIP, NodePort and LoadBalancer"
    )]
    InvalidServiceType(String),
    /// The Gateway's annotation requests another name than the Gateway's, by which clients identify the waypoint's
    /// service account.
    #[error(
        "annotation {0} is not supported: a waypoint is trusted by its account, which has the Gateway's name; rename the Gateway"
    )]
    ConflictingName(&'static str),
}

impl WaypointError {
    /// Returns the reason in the Gateway's status condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidParameters(_) => "InvalidParameters",
            Self::InvalidName(_)
            | Self::InvalidReplicas(_)
            | Self::InvalidServiceType(_)
            | Self::ConflictingName(_) => "Invalid",
        }
    }
}

/// Builds the objects of a Gateway's waypoint, with the overlays of the Gateway and of its class.
///
/// # Errors
///
/// When the Gateway requests an unsupported feature, has a name that its Service cannot have, or
/// when an overlay cannot be merged into its object.
pub fn build_objects(
    gateway: &Gateway,
    settings: &Settings,
    config_maps: &ConfigMaps,
) -> Result<WaypointObjects, WaypointError> {
    let made = ObjectBuilder::new(gateway, settings)?;
    let mut objects = WaypointObjects {
        service_account: made.build_object(WaypointObjectKind::ServiceAccount, json!({})),
        service: made.service(),
        deployment: made.deployment(),
        autoscaler: None,
        disruption_budget: Some(made.build_object(
            WaypointObjectKind::DisruptionBudget,
            json!({"spec": {"maxUnavailable": 1, "selector": made.selector()}}),
        )),
        sets_replicas: annotation(gateway, REPLICAS_ANNOTATION).is_some(),
    };
    made.apply_overlays(&mut objects, config_maps)?;
    Ok(objects)
}

/// Builder of a waypoint's objects, with the metadata that all of them share.
struct ObjectBuilder<'a> {
    gateway: &'a Gateway,
    settings: &'a Settings,
    name: &'a str,
    replicas: i32,
    service_type: &'a str,
}

impl<'a> ObjectBuilder<'a> {
    fn new(gateway: &'a Gateway, settings: &'a Settings) -> Result<Self, WaypointError> {
        let name = gateway.metadata.name.as_deref().unwrap_or_default();
        let letter = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
        if !is_dns_name(name, MAX_NAME_LENGTH) || !letter || name.contains('.') {
            return Err(WaypointError::InvalidName(name.to_owned()));
        }
        if let Some(other) = conflicting_name_annotation(gateway, name) {
            return Err(WaypointError::ConflictingName(other));
        }
        Ok(Self {
            gateway,
            settings,
            name,
            replicas: replicas(gateway, settings)?,
            service_type: service_type(gateway)?,
        })
    }

    /// Merges the overlays into the waypoint's objects.
    fn apply_overlays(
        &self,
        objects: &mut WaypointObjects,
        maps: &ConfigMaps,
    ) -> Result<(), InvalidParameters> {
        let plain = objects.clone();
        let scaler = self.build_object(WaypointObjectKind::Autoscaler, json!({"spec": {"scaleTargetRef": {
            "apiVersion": WaypointObjectKind::Deployment.api_version(), "kind": WaypointObjectKind::Deployment.kind(), "name": self.name,
        }}}));
        for overlay in maps.overlays_for(self.gateway)? {
            let patch = overlay.parse()?;
            let lay = |over: &mut Value, base: &Value| {
                let laid = overlay.apply(&patch, Some(std::mem::take(over)), base)?;
                *over = laid.unwrap_or_default();
                Ok::<_, InvalidParameters>(())
            };
            match overlay.object_kind {
                WaypointObjectKind::ServiceAccount => {
                    lay(&mut objects.service_account, &plain.service_account)?
                }
                WaypointObjectKind::Service => lay(&mut objects.service, &plain.service)?,
                WaypointObjectKind::Deployment => {
                    lay(&mut objects.deployment, &plain.deployment)?;
                    let replicas = patch.pointer("/spec/replicas");
                    objects.sets_replicas |= replicas.is_some_and(|number| !number.is_null());
                }
                WaypointObjectKind::Autoscaler => {
                    objects.autoscaler =
                        overlay.apply(&patch, objects.autoscaler.take(), &scaler)?;
                }
                WaypointObjectKind::DisruptionBudget => {
                    let base = plain.disruption_budget.as_ref().unwrap_or(&Value::Null);
                    let over = objects.disruption_budget.take();
                    objects.disruption_budget = overlay.apply(&patch, over, base)?;
                }
            }
        }
        pod::adjust_pod_template(&mut objects.deployment, &self.selector(), self.settings);
        if objects.autoscaler.is_some() {
            let spec = objects.deployment.get_mut("spec");
            let spec = spec.and_then(Value::as_object_mut);
            drop(spec.and_then(|spec| spec.remove("replicas")));
        }
        Ok(())
    }

    fn service(&self) -> Value {
        let mut service = self.build_object(
            WaypointObjectKind::Service,
            json!({"spec": {
                "type": self.service_type,
                "ipFamilyPolicy": "PreferDualStack",
                "selector": {GATEWAY_NAME_LABEL: self.name},
                "ports": [
                    {"name": "status-port", "port": READINESS_PORT, "protocol": "TCP", "appProtocol": "tcp"},
                    {"name": "mesh", "port": HBONE_PORT, "protocol": "TCP", "appProtocol": "hbone"},
                ],
            }}),
        );
        // Clients prefer a waypoint of their own zone.
        let near = json!({ambit_k8s_api::labels::TRAFFIC_DISTRIBUTION: "PreferClose"});
        merge_members(&mut service, "/metadata/annotations", &near);
        service
    }

    fn deployment(&self) -> Value {
        let mut metadata = json!({
            "labels": pod::labels(self.name),
            "annotations": pod::annotations(),
        });
        let own = self.infrastructure_labels_and_annotations();
        for (place, own) in [("/labels", &own.0), ("/annotations", &own.1)] {
            let with = metadata.pointer(place).cloned().unwrap_or_default();
            merge_members(&mut metadata, place, &json!(own));
            // The labels that make a pod part of the waypoint stay.
            merge_members(&mut metadata, place, &with);
        }
        merge_members(&mut metadata, "/labels", &self.labels());
        self.build_object(
            WaypointObjectKind::Deployment,
            json!({"spec": {
                "replicas": self.replicas,
                "selector": self.selector(),
                // A new pod must be ready before an old one is terminated.
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
        json!({"matchLabels": {GATEWAY_NAME_LABEL: self.name}})
    }

    /// Builds an object with the Gateway's name and namespace, owned by the Gateway.
    fn build_object(&self, kind: WaypointObjectKind, fields: Value) -> Value {
        let metadata = &self.gateway.metadata;
        let (labels, annotations) = self.copied_labels_and_annotations();
        let mut object = json!({
            "apiVersion": kind.api_version(),
            "kind": kind.kind(),
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
        merge_members(&mut object, "/metadata/labels", &self.labels());
        merge_members(&mut object, "", &fields);
        object
    }

    /// Returns the labels that every object of the waypoint has.
    fn labels(&self) -> Value {
        json!({MANAGED_LABEL: MANAGED_BY_VALUE, GATEWAY_NAME_LABEL: self.name, GATEWAY_CLASS_LABEL: GATEWAY_CLASS})
    }

    /// Returns labels and annotations that `spec.infrastructure` of the Gateway sets.
    fn infrastructure_labels_and_annotations(
        &self,
    ) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let own = self.gateway.spec.infrastructure.clone().unwrap_or_default();
        (own.labels, own.annotations)
    }

    /// Returns the labels and annotations that the waypoint's objects copy: those of `spec.infrastructure` if it
    /// exists, else the Gateway's own. Pods do not copy the Gateway's own, since a changed annotation would replace all
    /// pods.
    fn copied_labels_and_annotations(
        &self,
    ) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        if self.gateway.spec.infrastructure.is_some() {
            return self.infrastructure_labels_and_annotations();
        }
        let metadata = &self.gateway.metadata;
        let mut annotations = metadata.annotations.clone().unwrap_or_default();
        annotations.retain(|name, _| !name.starts_with(MANIFEST_ANNOTATION_PREFIX));
        (metadata.labels.clone().unwrap_or_default(), annotations)
    }
}

fn annotation<'a>(gateway: &'a Gateway, name: &str) -> Option<&'a str> {
    let annotations = gateway.metadata.annotations.as_ref()?;
    annotations.get(name).map(String::as_str)
}

fn replicas(gateway: &Gateway, settings: &Settings) -> Result<i32, WaypointError> {
    let Some(text) = annotation(gateway, REPLICAS_ANNOTATION) else {
        return Ok(settings.replicas);
    };
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.ok_or_else(|| WaypointError::InvalidReplicas(text.to_owned()))
}

/// Returns the type of the waypoint's Service from the Gateway's annotation. Clients in the mesh use the cluster IP in
/// any case.
fn service_type(gateway: &Gateway) -> Result<&str, WaypointError> {
    match annotation(gateway, SERVICE_TYPE_ANNOTATION) {
        None => Ok("ClusterIP"),
        Some(known @ ("ClusterIP" | "NodePort" | "LoadBalancer")) => Ok(known),
        Some(other) => Err(WaypointError::InvalidServiceType(other.to_owned())),
    }
}

/// Returns the Gateway's annotation that requests a name other than `name`, if there is one.
fn conflicting_name_annotation(gateway: &Gateway, name: &str) -> Option<&'static str> {
    let mut all = NAME_OVERRIDE_ANNOTATIONS.into_iter();
    all.find(|one| annotation(gateway, one).is_some_and(|other| other != name))
}

/// Merges `members` into the map at the JSON pointer `place` of an object.
fn merge_members(object: &mut Value, place: &str, members: &Value) {
    let into = object.pointer_mut(place).and_then(Value::as_object_mut);
    if let (Some(into), Some(members)) = (into, members.as_object()) {
        into.extend(members.clone());
    }
}
