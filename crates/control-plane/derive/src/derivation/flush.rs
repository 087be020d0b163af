//! Flush: renders stale records, publishes those that changed, and updates the derived statuses of objects.

use ambit_k8s_api::ObjectKey;

use crate::{
    derivation::table::kind_functions,
    index::{Index, render_unit::RenderUnit},
    kinds::peer_authentication::{has_static_strict_policy, static_strict_policy},
    records::Delta,
    relations::{references::ReferenceKind, workload_waypoints},
    view::{MeshView, rendered::RenderedRecords},
};

impl Index {
    /// Renders the stale records, and returns those that changed.
    pub fn flush(&mut self) -> Delta {
        let mut delta = Delta::default();
        self.decide_introductions();
        // Endpoints first: which waypoints are before services and policies depends on them.
        let mut units: Vec<_> = self
            .stale_units
            .extract_if(.., |unit| unit.renders_workloads())
            .collect();
        let endpoints = units.len();
        for unit in &units {
            self.publish(unit, &mut delta);
        }
        for (uid, workload) in &delta.workloads {
            let workload = workload.as_deref();
            let services = self
                .view
                .service_waypoints
                .update(uid, workload_waypoints::endpoint_services(workload));
            if !services.is_empty() {
                self.mark_provider_policies_stale();
            }
            for service in services {
                self.mark_host_stale(service.hostname);
            }
            let target =
                workload_waypoints::policy_scopes(workload, |at| self.view.foreign_gateway_at(at));
            let scopes = self.view.policy_waypoints.update(uid, target);
            if !scopes.is_empty() {
                self.mark_all_gateways_stale();
            }
            for scope in scopes {
                self.mark_policies_in_scope_stale(&scope);
            }
        }
        units.extend(std::mem::take(&mut self.stale_units));
        for unit in units.iter().skip(endpoints) {
            self.publish(unit, &mut delta);
        }
        for unit in &units {
            self.update_derived_statuses(unit);
        }
        delta.sort();
        delta
    }

    fn publish(&mut self, unit: &RenderUnit, delta: &mut Delta) {
        let mut rendered = self.view.render(unit);
        if let RenderUnit::Object(key) = unit {
            self.reports
                .set_conflicts(key, std::mem::take(&mut rendered.conflicts));
        }
        self.published_records.replace(unit, rendered, delta);
    }

    /// Updates the derived statuses of the objects that a render unit belongs to.
    pub(crate) fn update_derived_statuses(&mut self, unit: &RenderUnit) {
        let keys: Vec<ObjectKey> = match unit {
            RenderUnit::Object(key) => vec![key.clone()],
            RenderUnit::Host(host) => self
                .view
                .objects_declaring(host)
                .chain(
                    self.view
                        .references
                        .referrers(ReferenceKind::VirtualServiceHost, host),
                )
                .cloned()
                .collect(),
            RenderUnit::StaticStrictPolicy => return,
        };
        for key in keys {
            let derived_status = (kind_functions(key.kind).derived_status)(&self.view, &key);
            self.reports.set_derived_status(&key, derived_status);
        }
    }
}

impl MeshView {
    /// Renders the records of one render unit: of an object, a host, or the shared STRICT policy.
    pub(crate) fn render(&self, unit: &RenderUnit) -> RenderedRecords {
        match unit {
            RenderUnit::Object(key) => (kind_functions(key.kind).render)(self, key),
            RenderUnit::Host(host) => self.render_host(host),
            RenderUnit::StaticStrictPolicy => RenderedRecords {
                policies: has_static_strict_policy(self)
                    .then(|| static_strict_policy(&self.config.root_namespace))
                    .into_iter()
                    .collect(),
                ..RenderedRecords::default()
            },
        }
    }
}
