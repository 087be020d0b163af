//! ConfigMaps with overlays of waypoints' objects: those that Gateways refer to, and those for all waypoints.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{ConfigMap, Gateway};
use serde_json::Value;

use crate::{GATEWAY_CLASS, WaypointObjectKind, error::InvalidParameters, overlay::Overlay};

/// Label of a ConfigMap in the system namespace: GatewayClass that its overlays are for.
const DEFAULTS_FOR_CLASS_LABEL: &str = "gateway.istio.io/defaults-for-class";

/// Namespace and name of a ConfigMap.
type ConfigMapName = (Box<str>, Box<str>);

/// Overlays of waypoints' objects in one ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Overlay texts by the object to which each applies.
    overlay_texts: BTreeMap<WaypointObjectKind, Box<str>>,
    /// Whether the ConfigMap applies to every waypoint.
    is_default: bool,
}

impl Parameters {
    /// Reads the overlays in a ConfigMap.
    pub fn from_config_map(map: &ConfigMap) -> Self {
        let text = |part: WaypointObjectKind| {
            Some((
                part,
                map.data.as_ref()?.get(part.overlay_key())?.as_str().into(),
            ))
        };
        let labels = map.metadata.labels.as_ref();
        let class = labels.and_then(|labels| labels.get(DEFAULTS_FOR_CLASS_LABEL));
        Self {
            overlay_texts: WaypointObjectKind::ALL
                .into_iter()
                .filter_map(text)
                .collect(),
            is_default: class.is_some_and(|class| class == GATEWAY_CLASS),
        }
    }
}

/// All ConfigMaps with overlays of waypoints' objects.
#[derive(Clone, Debug)]
pub struct ConfigMaps {
    /// Namespace of the ConfigMaps that apply to all waypoints.
    system_namespace: Box<str>,
    parameters_by_name: BTreeMap<ConfigMapName, Parameters>,
    default_names: BTreeSet<ConfigMapName>,
}

impl ConfigMaps {
    /// Creates an empty set of ConfigMaps.
    pub fn new(system_namespace: &str) -> Self {
        Self {
            system_namespace: system_namespace.into(),
            parameters_by_name: BTreeMap::new(),
            default_names: BTreeSet::new(),
        }
    }

    /// Updates or removes a ConfigMap. Returns whether the change may affect every waypoint.
    pub fn set(&mut self, namespace: &str, name: &str, to: Option<Parameters>) -> bool {
        let key: ConfigMapName = (namespace.into(), name.into());
        let was_default = self.default_names.remove(&key);
        let Some(to) = to else {
            self.parameters_by_name.remove(&key);
            return was_default;
        };
        let is_default = to.is_default && *namespace == *self.system_namespace;
        if is_default {
            self.default_names.insert(key.clone());
        }
        let before = self.parameters_by_name.insert(key.clone(), to);
        (was_default || is_default)
            && (was_default != is_default || before.as_ref() != self.parameters_by_name.get(&key))
    }

    /// Returns the overlays of a Gateway's objects: first those for all waypoints, in the order of the ConfigMaps'
    /// names, then the Gateway's own.
    pub(crate) fn overlays_for(
        &self,
        gateway: &Gateway,
    ) -> Result<Vec<Overlay<'_>>, InvalidParameters> {
        let mut names: Vec<_> = self.default_names.iter().cloned().collect();
        names.extend(parameters_ref(gateway)?);
        let mut overlays = Vec::new();
        for name in names {
            let map = format!("{}/{}", name.0, name.1);
            let Some(parameters) = self.parameters_by_name.get(&name) else {
                return Err(InvalidParameters::MissingConfigMap(map));
            };
            let texts = parameters.overlay_texts.iter();
            overlays.extend(texts.map(|(part, text)| Overlay {
                config_map: map.clone(),
                object_kind: *part,
                text,
            }));
        }
        Ok(overlays)
    }
}

/// Returns whether a Gateway refers to this ConfigMap.
pub fn references_config_map(gateway: &Gateway, namespace: &str, name: &str) -> bool {
    let to = parameters_ref(gateway).ok().flatten();
    to.is_some_and(|(of, it)| *of == *namespace && *it == *name)
}

/// Returns namespace and name of the ConfigMap to which a Gateway refers.
fn parameters_ref(gateway: &Gateway) -> Result<Option<ConfigMapName>, InvalidParameters> {
    let infrastructure = gateway.spec.infrastructure.as_ref();
    let Some(to) = infrastructure.and_then(|own| own.parameters_ref.as_ref()) else {
        return Ok(None);
    };
    let text = |field: &str| to.get(field).and_then(Value::as_str).unwrap_or_default();
    let (group, kind, name) = (text("group"), text("kind"), text("name"));
    if !group.is_empty() || kind != "ConfigMap" || name.is_empty() {
        let what = format!("{group}/{kind} {name:?}");
        return Err(InvalidParameters::InvalidReference(what));
    }
    let namespace = gateway.metadata.namespace.as_deref().unwrap_or("default");
    Ok(Some((namespace.into(), name.into())))
}
