//! Parsing of `targetRef` and `targetRefs`: the objects that a policy is attached to.

use std::collections::BTreeSet;

use ambit_k8s_api::{Kind, ObjectKey, gateway, istio::PolicyTargetReference};
use ambit_model::ArcStr;
use serde_json::Value;

use crate::{config::MeshConfig, problem::FieldError};

/// Maximum number of targets of one policy.
const MAX_TARGETS: usize = 16;

/// Objects that a policy is attached to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PolicyTargets(pub(crate) Vec<ObjectKey>);

/// Returns the references in `targetRef` and `targetRefs`, each with its field.
pub(crate) fn target_references<'a>(
    one: Option<&'a PolicyTargetReference>,
    several: &'a [PolicyTargetReference],
) -> Vec<(String, &'a PolicyTargetReference)> {
    let one = one.into_iter();
    let one = one.map(|reference| ("spec.targetRef".to_owned(), reference));
    let several = several.iter().enumerate();
    let several =
        several.map(|(index, reference)| (format!("spec.targetRefs[{index}]"), reference));
    one.chain(several).collect()
}

impl PolicyTargets {
    /// Resolves the references of a policy in `namespace` to object keys.
    pub(crate) fn read(
        references: Vec<(String, &PolicyTargetReference)>,
        namespace: &ArcStr,
        config: &MeshConfig,
    ) -> Result<Self, FieldError> {
        if references.len() > MAX_TARGETS {
            let message = format!("{} targets; at most {MAX_TARGETS}", references.len());
            return Err(FieldError::new("spec.targetRefs", message));
        }
        let mut targets = Vec::new();
        for (field, reference) in references {
            let target = resolve_target(reference, namespace, config);
            targets.push(target.map_err(|message| FieldError::new(field, message))?);
        }
        Ok(Self(targets))
    }

    /// Returns every object that the references of an invalid policy may mean, all of which are refused: for an unknown
    /// kind or group, each object with that name. `None` if there are references, and none of them can mean an object.
    pub(crate) fn possible_targets(
        references: &[(String, &PolicyTargetReference)],
        namespace: &ArcStr,
        config: &MeshConfig,
    ) -> Option<Self> {
        let targets = references
            .iter()
            .flat_map(|(_, reference)| possible_targets(reference, namespace, config));
        let targets: BTreeSet<ObjectKey> = targets.collect();
        let is_nothing = !references.is_empty() && targets.is_empty();
        (!is_nothing).then(|| Self(targets.into_iter().collect()))
    }
}

/// Reads the target references of a policy whose spec cannot be deserialized as a whole.
pub(crate) fn readable_references(spec: Option<&Value>) -> Vec<PolicyTargetReference> {
    let one = spec.and_then(|spec| spec.get("targetRef"));
    let several = spec.and_then(|spec| spec.get("targetRefs"));
    let several = several.and_then(Value::as_array).into_iter().flatten();
    let text = |of: &Value, name: &str| {
        let text = of.get(name).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let read = |of: &Value| PolicyTargetReference {
        group: text(of, "group"),
        kind: text(of, "kind"),
        name: text(of, "name"),
        namespace: Some(text(of, "namespace")),
    };
    one.into_iter().chain(several).map(read).collect()
}

/// Returns the objects that a reference may mean; several if its kind or group is unknown.
fn possible_targets(
    reference: &PolicyTargetReference,
    namespace: &ArcStr,
    config: &MeshConfig,
) -> Vec<ObjectKey> {
    if differing_namespace(reference, namespace).is_some() || reference.name.is_empty() {
        return Vec::new();
    }
    if target_kind(reference).is_some() {
        return resolve_target(reference, namespace, config)
            .into_iter()
            .collect();
    }
    let in_root = *namespace == config.root_namespace;
    let kinds = [Kind::Service, Kind::ServiceEntry, Kind::Gateway];
    let classes = in_root.then_some(Kind::GatewayClass);
    let all = kinds.into_iter().chain(classes);
    all.map(|kind| ObjectKey::new(kind, namespace.clone(), reference.name.as_str()))
        .collect()
}

/// Returns the kind that a reference names; `None` if policies cannot be attached to objects of the kind.
fn target_kind(reference: &PolicyTargetReference) -> Option<Kind> {
    match (reference.group.as_str(), reference.kind.as_str()) {
        ("" | "core", "Service") => Some(Kind::Service),
        ("networking.istio.io", "ServiceEntry") => Some(Kind::ServiceEntry),
        (gateway::GROUP, "Gateway") => Some(Kind::Gateway),
        (gateway::GROUP, "GatewayClass") => Some(Kind::GatewayClass),
        _ => None,
    }
}

/// Returns the namespace that a reference names, if it differs from the policy's.
fn differing_namespace<'a>(
    reference: &'a PolicyTargetReference,
    namespace: &ArcStr,
) -> Option<&'a String> {
    let named = reference.namespace.as_ref();
    named.filter(|named| !named.is_empty() && **named != namespace.as_str())
}

/// Resolves a reference to an object key.
fn resolve_target(
    reference: &PolicyTargetReference,
    namespace: &ArcStr,
    config: &MeshConfig,
) -> Result<ObjectKey, String> {
    if let Some(other) = differing_namespace(reference, namespace) {
        return Err(format!(
            "a policy of {namespace} cannot be attached to an object of {other}"
        ));
    }
    let kind = target_kind(reference).ok_or_else(|| {
        let PolicyTargetReference { group, kind, .. } = reference;
        format!(
            "{kind:?} of the group {group:?} is none of Service, ServiceEntry, Gateway and GatewayClass"
        )
    })?;
    let root = &config.root_namespace;
    if kind == Kind::GatewayClass && namespace != root {
        return Err(format!(
            "only policies of {root} can be attached to a GatewayClass"
        ));
    }
    Ok(ObjectKey::new(
        kind,
        namespace.clone(),
        reference.name.as_str(),
    ))
}
