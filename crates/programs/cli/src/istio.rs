//! Effects that the objects of an Istio mesh would have with Ambit. The control plane's own code derives records from
//! the objects and lists their problems. This module adds objects of kinds that the control plane does not read
//! ([`ambit_k8s_api::unread`]), labels and annotations ([`labels`]), and differences that are no problems
//! ([`differences`]).

mod collect;
mod differences;
mod effect;
pub(crate) mod labels;
mod specs;

use std::collections::BTreeSet;

use ambit_derive::{Index, MeshConfig, Problem, Severity};
use ambit_k8s_api::{
    ConfigMap, Definition, Kind, ManifestPosition, ObjectKey, ObjectKeyError,
    unread::{is_mesh_group, replacement_for},
};
use kube::core::TypeMeta;
use serde::Deserialize;
use serde_json::Value;

use crate::policy_test::{build_index, object_key, to_event_with_origin};
use differences::MeshContext;
use specs::{Settings, api_group, group_and_kind};

pub(crate) use collect::{read_cluster, read_files};
use effect::object_name;
pub(crate) use effect::{Effect, Outcome};

/// Objects of an Istio mesh, from files or a cluster, with Ambit's settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mesh {
    pub(crate) objects: Vec<(Value, Option<ManifestPosition>)>,
    /// Settings of Ambit's control plane; its defaults if none runs.
    pub(crate) config: MeshConfig,
    /// Whether a control plane of Ambit runs, from which `config` was read.
    pub(crate) is_installed: bool,
    /// Objects and kinds that could not be read, with the reason.
    pub(crate) unreadable: Vec<String>,
    /// Kinds of Istio's and the Gateway API's groups whose CRDs exist, that Ambit does not read, and that have no
    /// objects.
    pub(crate) unused_kinds: Vec<String>,
}

/// Returns the effects of all objects and of their fields, the most severe outcome first.
pub(crate) fn effects(mesh: &Mesh) -> Vec<Effect> {
    let mut config = mesh.config.clone();
    let values = || mesh.objects.iter().map(|(value, _)| value);
    let settings = read_mesh_settings(values(), &config.root_namespace);
    let mut all = Vec::new();
    if !mesh.is_installed {
        all.extend(apply_trust_domain(&mut config, &settings));
    }
    let surroundings = MeshContext::new(&config, &settings, values());
    all.extend(derivation_effects(mesh, config, &surroundings));
    for value in values() {
        all.extend(unread_kind_effect(value));
        all.extend(surroundings.effects_of(value));
        let marks = labels::effects_of_value(value).into_iter();
        all.extend(marks.map(|mark| {
            let labels::LabelEffect {
                outcome,
                object,
                field,
                effect,
                advice,
            } = mark;
            Effect::new(outcome, &object, field, effect, advice)
        }));
    }
    add_working_objects(&mut all, values());
    let order = |one: &Effect| {
        let texts = [&one.object, &one.field, &one.effect].map(String::clone);
        (one.outcome, texts)
    };
    all.sort_by_cached_key(order);
    all.dedup();
    all
}

/// Reads Istio's MeshConfig from the ConfigMap of the root namespace; the default if there is none.
fn read_mesh_settings<'a>(
    mut values: impl Iterator<Item = &'a Value>,
    root_namespace: &str,
) -> Settings {
    let name = format!("ConfigMap {root_namespace}/istio");
    let found = values.find(|value| object_name(value) == name);
    let map = found.and_then(|map| ConfigMap::deserialize(map).ok());
    let text = map.and_then(|map| map.data?.remove("mesh"));
    // An error of it is the control plane's to report.
    let settings: Option<Value> = text.and_then(|text| serde_saphyr::from_str(&text).ok());
    settings
        .as_ref()
        .map(differences::parse_or_default)
        .unwrap_or_default()
}

/// Copies Istio's trust domain to the settings of a mesh that is not installed yet, and reports that it must be set as
/// a value of the installation.
fn apply_trust_domain(config: &mut MeshConfig, settings: &Settings) -> Option<Effect> {
    let found = settings.trust_domain.as_str();
    if found.is_empty() || found == config.trust_domain.as_str() {
        return None;
    }
    config.trust_domain = found.into();
    let object = format!("ConfigMap {}/istio", config.root_namespace);
    Some(Effect::new(
        Outcome::Changes,
        &object,
        "data.mesh.trustDomain",
        "it is set when Ambit is installed, and not read from here",
        format!("install with --set meshConfig.trustDomain={found}"),
    ))
}

/// Runs the control plane's derivation on the objects, and returns the problems that it reports as effects.
fn derivation_effects(mesh: &Mesh, config: MeshConfig, context: &MeshContext) -> Vec<Effect> {
    let mut all = Vec::new();
    let mut events = Vec::new();
    for (value, origin) in &mesh.objects {
        match to_event_with_origin(value, origin.as_ref()) {
            Ok(event) => events.push(event),
            Err(ObjectKeyError::UnreadKind(_)) => {}
            Err(error) => {
                let object = object_name(value);
                all.push(Effect::new(
                    Outcome::Lapses,
                    &object,
                    ".",
                    error.to_string(),
                    "",
                ));
            }
        }
    }
    let mut kinds = events.iter().map(|event| object_key(event).kind);
    let has_classes = kinds.any(|kind| kind == Kind::GatewayClass);
    let is_of_files = mesh.objects.iter().any(|(_, origin)| origin.is_some());
    let mut index = build_index(config, &events);
    index.flush();
    let problems = index.all_problems().into_iter().filter(|problem| {
        let ObjectKey {
            kind,
            namespace,
            name,
        } = &problem.object;
        let is_of_unread = kind.definition() == Definition::PresenceOnly
            || problem
                .message
                .contains("such objects have no effect on waypoints");
        let is_of_no_class = *kind == Kind::Gateway
            && problem.field == "spec.gatewayClassName"
            && (!has_classes || context.reports_gateway_class(namespace, name));
        let lacks_namespace = *kind == Kind::Pod && problem.field == "metadata.namespace";
        let is_passing = is_of_files && is_about_readiness(&index, problem);
        let is_explained = is_of_unread || is_of_no_class || lacks_namespace || is_passing;
        !is_explained
    });
    all.extend(problems.map(|problem| problem_effect(&problem)));
    all
}

/// Whether a problem is only that no pod of a waypoint is ready yet: manifests in files do not have pod status.
fn is_about_readiness(index: &Index, problem: &Problem) -> bool {
    let condition = index.derived_status(&problem.object);
    let condition = condition.and_then(|derived_status| derived_status.condition.as_ref());
    condition.is_some_and(|condition| {
        condition.message == problem.message
            && matches!(condition.reason, "NoReadyWaypoint" | "Waiting")
    })
}

fn problem_effect(problem: &Problem) -> Effect {
    let message = &problem.message;
    let is_without_effect = problem.severity == Severity::Error
        || ["no effect", "not supported", "not known", "do not follow"]
            .iter()
            .any(|words| message.contains(words));
    let outcome = match is_without_effect {
        true => Outcome::Lapses,
        false => Outcome::Changes,
    };
    let object = problem.object.to_string();
    Effect::new(outcome, &object, &problem.field, message, remedy(problem))
}

/// Returns advice on a problem whose message has none.
fn remedy(problem: &Problem) -> String {
    let ObjectKey {
        kind, namespace, ..
    } = &problem.object;
    let message = &problem.message;
    let has = |words: &str| message.contains(words);
    if has("changes only by an upgrade") {
        let setting = problem.field.trim_start_matches("data.mesh.");
        let value = message.split_once(" and the mesh has");
        let value = value.map_or("", |(value, _)| value.trim_start_matches("is "));
        let value = value.trim_matches('"');
        return format!("install or upgrade with --set meshConfig.{setting}={value}");
    }
    if has("can only be evaluated by a waypoint") {
        return format!(
            "make a waypoint, and name it in spec.targetRefs: `ambit waypoint apply -n {namespace} --migrate-policies`"
        );
    }
    if has("no waypoint reaches the host") || has("has no waypoint") {
        return format!(
            "make a waypoint: `ambit waypoint apply -n {namespace} --enroll-namespace`"
        );
    }
    if *kind == Kind::VirtualService {
        return virtual_service_remedy(message).to_owned();
    }
    let is_of_sidecars = has("targetRefs") || problem.field == "spec.selector";
    if is_of_sidecars && *kind != Kind::PeerAuthentication {
        return "name the waypoint, or a Service, in spec.targetRefs".to_owned();
    }
    if *kind == Kind::ConfigMap || has("has no effect") {
        return "remove it".to_owned();
    }
    String::new()
}

/// Returns advice on a problem of a VirtualService.
fn virtual_service_remedy(message: &str) -> &'static str {
    let has = |words: &str| message.contains(words);
    if has("does not contain mesh") {
        "attach an HTTPRoute to a Gateway of a controller of ingress gateways, or keep Istio's control plane for it"
    } else if has("no ReferenceGrant") {
        "add a ReferenceGrant from VirtualServices of its namespace there"
    } else if has("answered with 500") {
        "write the rule without it; until then it refuses its requests"
    } else {
        ""
    }
}

/// Returns the effect of an object whose kind Ambit does not read; `None` for other objects.
fn unread_kind_effect(value: &Value) -> Option<Effect> {
    let TypeMeta { api_version, kind } = TypeMeta::deserialize(value).ok()?;
    let group = api_group(&api_version);
    let known = Kind::from_api_version(Some(&api_version), &kind);
    let is_followed = known.is_some_and(|known| known.definition() != Definition::PresenceOnly);
    if is_followed || !is_mesh_group(group) {
        return None;
    }
    let advice = replacement_for(group, &kind).unwrap_or("nothing in Ambit is in its place");
    let effect = "objects of this kind have no effect";
    let object = object_name(value);
    Some(Effect::new(Outcome::Lapses, &object, ".", effect, advice))
}

/// Adds an effect [`Outcome::Works`] for each object without differences; removes such effects of single fields of the
/// other objects.
fn add_working_objects<'a>(effects: &mut Vec<Effect>, values: impl Iterator<Item = &'a Value>) {
    let differing = effects.iter().filter(|one| one.outcome != Outcome::Works);
    let differing: BTreeSet<String> = differing.map(|one| one.object.clone()).collect();
    effects.retain(|one| one.outcome != Outcome::Works || !differing.contains(&one.object));
    for value in values {
        let Some((group, kind)) = group_and_kind(value) else {
            continue;
        };
        let object = object_name(value);
        let is_settings = kind == "ConfigMap" && object.ends_with("/istio");
        if (is_mesh_group(&group) || is_settings) && !differing.contains(&object) {
            effects.push(Effect::new(Outcome::Works, &object, ".", "", ""));
        }
    }
}

#[cfg(test)]
mod tests;
