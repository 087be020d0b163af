//! Flush: renders stale records, publishes those that changed, and updates the states for status conditions.

use ambit_k8s_api::ObjectKey;

use crate::{
    derivation::table::functions,
    index::{Index, maker::Maker},
    kinds::peer_authentication::{any_plaintext_refused, static_strict},
    records::Delta,
    relations::{references::Edge, served},
    view::{MeshView, rendered::Rendered},
};

impl Index {
    /// Renders the stale records, and returns those that changed.
    pub fn flush(&mut self) -> Delta {
        let mut delta = Delta::default();
        self.decide_introductions();
        // Endpoints first: which waypoints are before services and policies depends on them.
        let mut makers: Vec<_> = self
            .stale
            .extract_if(.., |maker| maker.makes_workloads())
            .collect();
        let endpoints = makers.len();
        for maker in &makers {
            self.publish(maker, &mut delta);
        }
        for (uid, workload) in &delta.workloads {
            let workload = workload.as_deref();
            let services = self.view.served.update(uid, served::as_endpoint(workload));
            if !services.is_empty() {
                self.mark_users_of_providers();
            }
            for service in services {
                self.mark_host(service.hostname);
            }
            let target = served::as_target(workload, |at| self.view.foreign_at(at));
            let scopes = self.view.behind.update(uid, target);
            if !scopes.is_empty() {
                self.mark_gateways();
            }
            for scope in scopes {
                self.mark_policies(&scope);
            }
        }
        makers.extend(std::mem::take(&mut self.stale));
        for maker in makers.iter().skip(endpoints) {
            self.publish(maker, &mut delta);
        }
        for maker in &makers {
            self.judge(maker);
        }
        delta.sort();
        delta
    }

    fn publish(&mut self, maker: &Maker, delta: &mut Delta) {
        let mut rendered = self.view.render(maker);
        if let Maker::Object(key) = maker {
            self.reports
                .set_conflicts(key, std::mem::take(&mut rendered.conflicts));
        }
        self.published.replace(maker, rendered, delta);
    }

    /// Updates the states of the objects that a unit renders.
    pub(crate) fn judge(&mut self, maker: &Maker) {
        let keys: Vec<ObjectKey> = match maker {
            Maker::Object(key) => vec![key.clone()],
            Maker::Host(host) => self
                .view
                .declarers(host)
                .chain(self.view.references.of(Edge::VirtualHost, host))
                .cloned()
                .collect(),
            Maker::StaticStrict => return,
        };
        for key in keys {
            let standing = (functions(key.kind).standing)(&self.view, &key);
            self.reports.set_standing(&key, standing);
        }
    }
}

impl MeshView {
    /// Renders the records of one unit.
    pub(crate) fn render(&self, maker: &Maker) -> Rendered {
        match maker {
            Maker::Object(key) => (functions(key.kind).render)(self, key),
            Maker::Host(host) => self.render_host(host),
            Maker::StaticStrict => Rendered {
                policies: any_plaintext_refused(self)
                    .then(|| static_strict(&self.config.root_namespace))
                    .into_iter()
                    .collect(),
                ..Rendered::default()
            },
        }
    }
}
