//! List of all current problems, for commands and debug pages, computed on request.
//!
//! Besides the problems of objects, which the index stores, the list has conditions that report trouble, and problems
//! of objects that have no status condition.

use ambit_k8s_api::{
    EnvoyFilter, Gateway, Kind, Namespace, ObjectKey, Pod, labels, unread::instead_of,
};
use serde_json::Value;

use crate::{
    condition::{Part, Standing},
    derivation::table::functions,
    index::Index,
    objects::Stored,
    problem::{Problem, Severity},
    relations::references::Edge,
    view::MeshView,
};

/// Namespaces that every cluster has, for which manifests need no Namespace object.
const ALWAYS_THERE: [&str; 2] = ["default", "kube-system"];

impl MeshView {
    fn gateways_of_nobody(&self, all: &mut Vec<Problem>) {
        for (key, gateway) in self.every::<Gateway>(Kind::Gateway) {
            if self.class(&gateway.class).is_none() && !self.is_of_waypoints(gateway) {
                let message = format!(
                    "there is no GatewayClass {}, so that nobody takes care of this Gateway; the class of waypoints is \
                     istio-waypoint",
                    gateway.class
                );
                all.push(warning(&key, "spec.gatewayClassName", &message));
            }
        }
    }

    /// Reports Namespaces and pods whose labels name a Gateway that does not exist. For Services, ServiceEntries and
    /// WorkloadEntries their conditions report it.
    fn missing_waypoints(&self, all: &mut Vec<Problem>) {
        let missing = self
            .references
            .names(Edge::Bound)
            .filter(|name| self.gateway(name).is_none());
        for name in missing {
            for key in self.references.of(Edge::Bound, name) {
                if matches!(key.kind, Kind::Namespace | Kind::Pod) {
                    let field = format!("metadata.labels[{}]", labels::USE_WAYPOINT);
                    let message = format!("there is no Gateway {name}");
                    all.push(warning(key, field, &message));
                }
            }
        }
    }

    fn pods_without_namespace(&self, all: &mut Vec<Problem>) {
        let namespaces = self.objects("").map(|objects| objects.all::<Namespace>());
        for (key, _) in self.every::<Pod>(Kind::Pod) {
            let is_there = ALWAYS_THERE.contains(&key.namespace.as_str())
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
    fn without_effect<K: Stored>(&self, all: &mut Vec<Problem>) {
        let kind = K::OBJECT_KIND;
        let instead = instead_of(kind.group(), kind.as_str()).unwrap_or_default();
        let message = format!("objects of this kind have no effect; {instead}");
        for (key, _) in self.every::<K>(kind) {
            all.push(warning(&key, ".", &message));
        }
    }

    fn every<K: Stored>(&self, kind: Kind) -> impl Iterator<Item = (ObjectKey, &K::Input)> {
        self.all_objects().flat_map(move |(namespace, objects)| {
            let of_kind = objects.all::<K>().iter();
            of_kind.map(move |(name, input)| {
                (ObjectKey::new(kind, namespace.clone(), name.clone()), input)
            })
        })
    }
}

impl Index {
    /// Returns all current problems, ordered by object.
    pub fn survey(&self) -> Vec<Problem> {
        let problems = self.problems();
        let mut all: Vec<_> = problems
            .filter(|problem| !self.view.is_left_out(&problem.object.namespace))
            .cloned()
            .collect();
        self.troubled_conditions(&mut all);
        self.view.gateways_of_nobody(&mut all);
        self.view.missing_waypoints(&mut all);
        self.view.pods_without_namespace(&mut all);
        self.view.without_effect::<EnvoyFilter>(&mut all);
        all.sort_by(|a, b| {
            (&a.object, &a.field, &a.message).cmp(&(&b.object, &b.field, &b.message))
        });
        all.dedup();
        all
    }

    fn troubled_conditions(&self, all: &mut Vec<Problem>) {
        for (key, Standing { verdict, parts, .. }) in self.reports.standings() {
            let types = functions(key.kind).conditions;
            let name = types.iter().find(|one| one.needs_standing);
            if let Some(verdict) = verdict.as_ref().filter(|verdict| verdict.is_trouble) {
                let name = name.map(|one| one.name).unwrap_or_default();
                let field = format!("status.conditions[{name}]");
                all.push(warning(key, field, &verdict.message));
            }
            let list = functions(key.kind).parts.map(|parts| parts.list);
            for part in parts {
                for (name, verdict) in &part.conditions {
                    if verdict.is_trouble {
                        let of = part_name(part);
                        let field = format!("status.{}[{of}].{name}", list.unwrap_or_default());
                        all.push(warning(key, field, &verdict.message));
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
fn part_name(part: &Part) -> String {
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
    let name = part.identity.get("name").and_then(text);
    let parent = part.identity.values().find_map(|value| {
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
