//! List of all current problems, for commands and debug pages, computed on request.
//!
//! Besides the problems of objects, which the index stores, the list has conditions that report trouble, and problems
//! of objects that have no status condition.

use ambit_k8s_api::{
    EnvoyFilter, Gateway, Kind, Namespace, ObjectKey, Pod, labels, unread::replacement_for,
};
use serde_json::Value;

use crate::{
    condition::{DerivedStatus, StatusEntry},
    derivation::table::kind_functions,
    index::Index,
    objects::Stored,
    problem::{Problem, Severity},
    relations::references::ReferenceKind,
    view::MeshView,
};

/// Namespaces that every cluster has, for which manifests need no Namespace object.
const BUILTIN_NAMESPACES: [&str; 2] = ["default", "kube-system"];

impl MeshView {
    fn report_gateways_without_class(&self, all: &mut Vec<Problem>) {
        for (key, gateway) in self.all_of_kind::<Gateway>(Kind::Gateway) {
            if self.gateway_class(&gateway.class).is_none() && !self.has_waypoint_class(gateway) {
                let message = format!(
                    "there is no GatewayClass {}, so that nobody takes care of this Gateway; the class of waypoints is \
                     istio-waypoint",
                    gateway.class
                );
                all.push(warning(&key, "spec.gatewayClassName", &message));
            }
        }
    }

    /// Reports Namespaces and pods whose labels name a Gateway that does not exist. Services, ServiceEntries and
    /// WorkloadEntries have a status condition that reports it.
    fn report_missing_waypoints(&self, all: &mut Vec<Problem>) {
        let missing = self
            .references
            .referenced_names(ReferenceKind::Waypoint)
            .filter(|name| self.gateway(name).is_none());
        for name in missing {
            for key in self.references.referrers(ReferenceKind::Waypoint, name) {
                if matches!(key.kind, Kind::Namespace | Kind::Pod) {
                    let field = format!("metadata.labels[{}]", labels::USE_WAYPOINT);
                    let message = format!("there is no Gateway {name}");
                    all.push(warning(key, field, &message));
                }
            }
        }
    }

    fn report_pods_without_namespace(&self, all: &mut Vec<Problem>) {
        let namespaces = self
            .objects("")
            .map(|objects| objects.all_of_kind::<Namespace>());
        for (key, _) in self.all_of_kind::<Pod>(Kind::Pod) {
            let is_there = BUILTIN_NAMESPACES.contains(&key.namespace.as_str())
                || key.namespace == self.config.root_namespace
                || namespaces.is_some_and(|all| all.contains_key(&key.namespace));
            if !is_there {
                let message = format!(
                    "there is no Namespace {}, so that no label of it puts the pod into the mesh",
                    key.namespace
                );
                all.push(warning(&key, "metadata.namespace", &message));
            }
        }
    }

    /// Reports all objects of a kind that has no effect.
    fn report_objects_without_effect<K: Stored>(&self, all: &mut Vec<Problem>) {
        let kind = K::OBJECT_KIND;
        let instead = replacement_for(kind.group(), kind.as_str()).unwrap_or_default();
        let message = format!("objects of this kind have no effect; {instead}");
        for (key, _) in self.all_of_kind::<K>(kind) {
            all.push(warning(&key, ".", &message));
        }
    }

    fn all_of_kind<K: Stored>(&self, kind: Kind) -> impl Iterator<Item = (ObjectKey, &K::Input)> {
        self.all_objects().flat_map(move |(namespace, objects)| {
            let of_kind = objects.all_of_kind::<K>().iter();
            of_kind.map(move |(name, input)| {
                (ObjectKey::new(kind, namespace.clone(), name.clone()), input)
            })
        })
    }
}

impl Index {
    /// Returns all current problems, ordered by object.
    pub fn all_problems(&self) -> Vec<Problem> {
        let problems = self.problems();
        let mut all: Vec<_> = problems
            .filter(|problem| !self.view.is_excluded(&problem.object.namespace))
            .cloned()
            .collect();
        self.report_conditions_needing_attention(&mut all);
        self.view.report_gateways_without_class(&mut all);
        self.view.report_missing_waypoints(&mut all);
        self.view.report_pods_without_namespace(&mut all);
        self.view
            .report_objects_without_effect::<EnvoyFilter>(&mut all);
        all.sort_by(|a, b| {
            (&a.object, &a.field, &a.message).cmp(&(&b.object, &b.field, &b.message))
        });
        all.dedup();
        all
    }

    fn report_conditions_needing_attention(&self, all: &mut Vec<Problem>) {
        for (
            key,
            DerivedStatus {
                condition, entries, ..
            },
        ) in self.reports.derived_statuses()
        {
            let types = kind_functions(key.kind).conditions;
            let name = types.iter().find(|one| one.needs_derived_status);
            if let Some(condition) = condition
                .as_ref()
                .filter(|condition| condition.needs_attention)
            {
                let name = name.map(|one| one.name).unwrap_or_default();
                let field = format!("status.conditions[{name}]");
                all.push(warning(key, field, &condition.message));
            }
            let list = kind_functions(key.kind).status_list.map(|of| of.list);
            for entry in entries {
                for (name, condition) in &entry.conditions {
                    if condition.needs_attention {
                        let of = status_entry_name(entry);
                        let field = format!("status.{}[{of}].{name}", list.unwrap_or_default());
                        all.push(warning(key, field, &condition.message));
                    }
                }
            }
        }
    }
}

fn warning(object: &ObjectKey, field: impl Into<String>, message: &str) -> Problem {
    Problem {
        severity: Severity::Warning,
        object: object.clone(),
        field: field.into(),
        message: message.to_owned(),
        origin: None,
    }
}

/// Returns the name of a part of an object for messages: a listener's name, or the parent of a route.
fn status_entry_name(entry: &StatusEntry) -> String {
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
    let name = entry.identity.get("name").and_then(text);
    let parent = entry.identity.values().find_map(|value| {
        let field = |name: &str| value.get(name).and_then(Value::as_str);
        let section = field("sectionName").map(|section| format!("/{section}"));
        let kind = field("kind").unwrap_or("Gateway");
        Some(format!(
            "{kind} {}{}",
            field("name")?,
            section.unwrap_or_default()
        ))
    });
    name.or(parent).unwrap_or_default()
}
