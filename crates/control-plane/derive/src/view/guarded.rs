//! What is to be enforced at waypoints that have never been ready, so that these bind before they are: policies that
//! refuse something, and TLS with endpoints, without which clients' requests would leave the mesh in plaintext.

use std::collections::BTreeSet;

use ambit_k8s_api::{AuthorizationPolicy, Kind, ObjectKey, Service};
use ambit_model::{ArcStr, GatewayName, NamespacedHostname};

use crate::{
    objects::{gateway::GatewayInput, serves::Consent},
    relations::references::Edge,
    view::{MeshView, attachment::Takers},
};

/// Targets of policies that enforce something.
#[derive(Debug, Default)]
pub(crate) struct Guarded {
    gateways: BTreeSet<GatewayName>,
    classes: BTreeSet<ArcStr>,
    /// Waypoints of Services and ServiceEntries.
    serving: BTreeSet<GatewayName>,
    /// Namespaces of the targeted Services.
    namespaces: BTreeSet<ArcStr>,
}

/// Relation of policies to a waypoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concern {
    /// Policies target the Gateway or its class.
    Gateway,
    /// Policies target Services or pods that it is to serve.
    Served,
}

/// Whether objects of a kind refuse anything at the waypoints that they are attached to, or have these encrypt it.
fn enforces(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::AuthorizationPolicy
            | Kind::RequestAuthentication
            | Kind::RateLimit
            | Kind::WasmPlugin
            | Kind::BackendTLSPolicy
    )
}

impl Guarded {
    /// Relation of the policies to a waypoint, if there is any.
    pub(crate) fn concerns(&self, view: &MeshView, gateway: &GatewayInput) -> Option<Concern> {
        let name = &gateway.name;
        if self.gateways.contains(name) || self.classes.contains(&gateway.class) {
            return Some(Concern::Gateway);
        }
        let mut namespaces = self.namespaces.iter();
        let is_served = self.serving.contains(name)
            || namespaces.any(|namespace| view.takes_pods_of(gateway, namespace));
        is_served.then_some(Concern::Served)
    }
}

impl MeshView {
    /// Whether a policy with that target is a copy of one that the node proxies of all the target's pods enforce.
    fn is_met_at_pods(&self, policy: &ObjectKey, target: &ObjectKey) -> bool {
        let original = self.enforced_original(policy);
        let Some(original) = original.and_then(|key| self.get::<AuthorizationPolicy>(&key)) else {
            return false;
        };
        match target.kind {
            Kind::Gateway => {
                let name = GatewayName::new(target.namespace.clone(), target.name.clone());
                let gateway = self.gateway(&name);
                let is_own = gateway.is_some_and(|gateway| gateway.consent == Consent::Same);
                is_own && original.selector.is_none()
            }
            Kind::Service => {
                let service = self.get::<Service>(target);
                let pods = service.and_then(|service| service.selector.as_ref());
                let mut labels = original.selector.iter().flatten();
                pods.is_some_and(|pods| labels.all(|(key, value)| pods.get(key) == Some(value)))
            }
            _ => false,
        }
    }

    /// Collects targets of policies that enforce something, and Services that waypoints call over TLS.
    pub(crate) fn guarded(&self) -> Guarded {
        let mut guarded = Guarded::default();
        for target in self.references.names(Edge::PolicyTarget) {
            let mut policies = self.references.of(Edge::PolicyTarget, target);
            if !policies.any(|policy| enforces(policy.kind) && !self.is_met_at_pods(policy, target))
            {
                continue;
            }
            match target.kind {
                Kind::Gateway => {
                    let name = GatewayName::new(target.namespace.clone(), target.name.clone());
                    guarded.gateways.insert(name);
                }
                Kind::GatewayClass => {
                    guarded.classes.insert(target.name.clone());
                }
                _ => {
                    guarded.namespaces.insert(target.namespace.clone());
                    guarded.serving.extend(self.gateways_of(target));
                }
            }
        }
        let hosts = self.hosts_in_tls();
        for host in &hosts {
            for (key, _) in self.records_of(host) {
                let service = NamespacedHostname::new(key.namespace.clone(), host.clone());
                let gateways = self.gateways_of(key);
                let gateways = gateways.filter(|one| self.begins_tls_from(one, &service));
                guarded.serving.extend(gateways);
            }
        }
        guarded
    }

    /// The waypoint of a Service or ServiceEntry, and the one that it awaits.
    fn gateways_of(&self, key: &ObjectKey) -> impl Iterator<Item = GatewayName> + use<> {
        let attachment = self.waypoint_of_service(key).into_iter();
        attachment.flat_map(|one| one.awaited.into_iter().chain([one.gateway]))
    }

    /// Whether a waypoint is to stand before any pods of a namespace. What is attached to a Service concerns requests to
    /// its pods, too.
    fn takes_pods_of(&self, gateway: &GatewayInput, namespace: &ArcStr) -> bool {
        let mut takers = self.takers(namespace, Takers::All);
        if takers.any(|(one, serves)| one.name == gateway.name && serves.workloads()) {
            return true;
        }
        let mut bound = self.references.of(Edge::Bound, &gateway.name);
        let binds = |key: &ObjectKey| match key.kind {
            Kind::Namespace => key.name == *namespace,
            // Its endpoints may have the label.
            Kind::Pod | Kind::WorkloadEntry | Kind::ServiceEntry => key.namespace == *namespace,
            _ => false,
        };
        self.serves(gateway).workloads() && bound.any(binds)
    }
}
