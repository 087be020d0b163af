//! Telemetry objects: traces, access logs and metrics of waypoints.
//!
//! A waypoint receives merged settings ([`merge`]) from these levels, each of which overrides the ones before: the root
//! namespace, the waypoint's namespace, the namespace of the service, objects attached to the waypoint's GatewayClass
//! or Gateway, objects attached to the service. The oldest of several objects on one level applies.

pub(crate) mod levels;
pub(crate) mod merge;
pub(crate) mod providers;
pub(crate) mod targets;

use std::collections::BTreeSet;

use ambit_k8s_api::{Gateway, Kind, ObjectKey, Telemetry};
use ambit_model::{GatewayName, WaypointTelemetry};

use crate::{
    condition::{ConditionContent, ConditionType, DerivedStatus, TELEMETRY_USED},
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    names::join_gateway_names,
    objects::telemetry::input::TelemetryInput,
    pod_directory::PodDirectory,
    problem::Note,
    relations::references::ReferenceKind,
    view::MeshView,
};

impl MeshKind for Telemetry {
    const CONDITIONS: &'static [ConditionType] = &[TELEMETRY_USED];

    fn on_change(index: &mut Index, change: &Change<'_, TelemetryInput>, _: &mut PodDirectory) {
        let targets = |of: Option<&TelemetryInput>| of.map(|of| of.targets.clone());
        index.view.references.replace(
            ReferenceKind::PolicyTarget,
            change.key,
            targets(change.old).unwrap_or_default(),
            targets(change.new).unwrap_or_default(),
        );
        index.mark_object_stale(change.key.clone());
        index.mark_all_telemetry_stale();
    }

    fn derived_status(
        view: &MeshView,
        key: &ObjectKey,
        input: &TelemetryInput,
    ) -> Option<DerivedStatus> {
        Some(DerivedStatus {
            condition: Some(used_condition(view, key, input)),
            ..DerivedStatus::default()
        })
    }
}

/// Builds the status condition, which lists the waypoints that apply a Telemetry object.
fn used_condition(view: &MeshView, key: &ObjectKey, input: &TelemetryInput) -> ConditionContent {
    let mut followed: BTreeSet<GatewayName> = BTreeSet::new();
    let mut instead = None;
    for (gateway, scope) in view.telemetry_scopes() {
        for level in levels::telemetry_levels(view, &gateway, &scope) {
            if level.key == *key {
                followed.insert(gateway.clone());
            } else if level.targets == input.targets && level.key.namespace == key.namespace {
                instead = Some(&level.key);
            }
        }
    }
    let unknown = providers::provider_errors(view, input);
    let (is_true, reason, message) = match (join_gateway_names(&followed), instead) {
        (Some(_), _) if !unknown.is_empty() => (false, "UnknownProvider", unknown.join("; ")),
        (Some(names), _) => (true, "Used", format!("followed by {names}")),
        (None, Some(other)) => (
            false,
            "Conflict",
            format!("{other} is followed in its place: of several for the same the oldest counts"),
        ),
        (None, None) => (
            false,
            "NoWaypoint",
            "no waypoint follows it: it is of no waypoint's namespace, nor of services' that one serves, nor of the root one, and is attached to none of these".to_owned(),
        ),
    };
    ConditionContent {
        is_true,
        reason,
        message,
        needs_attention: !is_true,
    }
}

/// Renders the telemetry records of a waypoint, and notes on parts that have no effect.
pub(crate) fn render(
    view: &MeshView,
    gateway: &GatewayName,
) -> (Vec<WaypointTelemetry>, Vec<Note>) {
    let scopes = view.telemetry_scopes_of(gateway);
    let mut records = Vec::new();
    let mut notes = BTreeSet::new();
    for scope in scopes {
        let (record, wrong) = merge::merge(
            view,
            &levels::telemetry_levels(view, gateway, &scope),
            scope,
        );
        let says_anything =
            record.tracing.is_some() || record.logs.is_some() || !record.metrics.is_empty();
        // A scope without settings of the one around it must be explicit.
        if says_anything || record.scope != ambit_model::TelemetryScope::Waypoint {
            records.push(record);
        }
        notes.extend(wrong);
    }
    let notes = notes.into_iter();
    (records, notes.map(|text| Note::new(".", text)).collect())
}

impl MeshView {
    /// Whether there is any Telemetry object.
    pub(crate) fn has_telemetry(&self) -> bool {
        let mut all = self.all_objects();
        all.any(|(_, objects)| !objects.all_of_kind::<Telemetry>().is_empty())
    }

    fn telemetry_scopes(&self) -> Vec<(GatewayName, ambit_model::TelemetryScope)> {
        let gateways = self
            .all_objects()
            .flat_map(|(_, objects)| objects.all_of_kind::<Gateway>().values());
        let waypoints = gateways.filter(|gateway| self.waypoint(&gateway.name).is_some());
        let scopes = waypoints.flat_map(|gateway| {
            let scopes = self.telemetry_scopes_of(&gateway.name).into_iter();
            scopes.map(|scope| (gateway.name.clone(), scope))
        });
        scopes.collect()
    }

    /// Returns the scopes (waypoint, namespace, service) for which a waypoint receives its own telemetry record.
    fn telemetry_scopes_of(&self, gateway: &GatewayName) -> Vec<ambit_model::TelemetryScope> {
        use ambit_model::{NamespacedHostname, TelemetryScope};
        let mut scopes = vec![TelemetryScope::Waypoint];
        for (namespace, objects) in self.all_objects() {
            let all = objects.all_of_kind::<Telemetry>();
            let is_served = *namespace == gateway.namespace
                || self.check_serves_services(gateway, namespace).is_ok();
            if all.is_empty() || !is_served {
                continue;
            }
            let is_elsewhere =
                *namespace != gateway.namespace && *namespace != self.config.root_namespace;
            if is_elsewhere && all.values().any(|one| one.targets.is_empty()) {
                scopes.push(TelemetryScope::Namespace(namespace.clone()));
            }
            let targets = all.values().flat_map(|one| &one.targets);
            for target in targets {
                let hosts = self.hosts_of(target).into_iter();
                scopes.extend(hosts.map(|host| {
                    TelemetryScope::Service(NamespacedHostname::new(namespace.clone(), host))
                }));
            }
        }
        scopes.sort_unstable();
        scopes.dedup();
        scopes
    }
}

impl Index {
    /// Marks as stale all Telemetry objects, and the Gateways, whose records contain the merged settings.
    pub(crate) fn mark_all_telemetry_stale(&mut self) {
        let all: Vec<ObjectKey> = self
            .view
            .all_objects()
            .flat_map(|(_, objects)| objects.all_of_kind::<Telemetry>().values())
            .map(|one| one.key.clone())
            .collect();
        for key in all {
            self.mark_object_stale(key);
        }
        self.mark_all_gateways_stale();
    }

    /// Marks as stale all Telemetry objects if one of them is attached to an object whose hosts or waypoint changed.
    pub(crate) fn mark_attached_telemetry_stale(&mut self, target: &ObjectKey) {
        let is_named = {
            let mut policies = self
                .view
                .references
                .referrers(ReferenceKind::PolicyTarget, target);
            policies.any(|policy| policy.kind == Kind::Telemetry)
        };
        if is_named {
            self.mark_all_telemetry_stale();
        }
    }
}
