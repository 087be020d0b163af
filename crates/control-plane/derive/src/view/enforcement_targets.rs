//! Policies that require a waypoint to bind objects before it has been ready: policies that can refuse requests, and
//! originated TLS, without which requests would leave the mesh in plaintext.

use std::collections::BTreeSet;

use ambit_k8s_api::{AuthorizationPolicy, Kind, ObjectKey, Service};
use ambit_model::{ArcStr, GatewayName, NamespacedHostname};

use crate::{
    objects::{gateway::GatewayInput, serves::AllowedNamespaces},
    relations::references::ReferenceKind,
    view::{MeshView, attachment::AttacherFilter},
};

/// Objects that policies which can refuse requests are attached to, and waypoints that originate TLS.
#[derive(Debug, Default)]
pub(crate) struct EnforcementTargets {
    gateways: BTreeSet<GatewayName>,
    classes: BTreeSet<ArcStr>,
    /// Waypoints of the Services and ServiceEntries that policies target, or that TLS is originated to.
    serving_waypoints: BTreeSet<GatewayName>,
    /// Namespaces of the Services and ServiceEntries that policies target.
    namespaces: BTreeSet<ArcStr>,
}

/// Reason why policies require a waypoint to bind objects before it has been ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnforcementReason {
    /// Policies target the Gateway or its class.
    GatewayTargeted,
    /// Policies target Services or pods that the waypoint will serve.
    ServedObjectsTargeted,
}

/// Whether policies of a kind can refuse requests at waypoints, or make waypoints originate TLS.
fn is_enforcing_kind(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::AuthorizationPolicy
            | Kind::RequestAuthentication
            | Kind::RateLimit
            | Kind::WasmPlugin
            | Kind::BackendTLSPolicy
    )
}

impl EnforcementTargets {
    /// Returns why policies require traffic to pass a waypoint even if the waypoint has never been ready, so that it fails
    /// until then; `None` if no policy does.
    pub(crate) fn enforcement_reason(
        &self,
        view: &MeshView,
        gateway: &GatewayInput,
    ) -> Option<EnforcementReason> {
        let name = &gateway.name;
        if self.gateways.contains(name) || self.classes.contains(&gateway.class) {
            return Some(EnforcementReason::GatewayTargeted);
        }
        let mut namespaces = self.namespaces.iter();
        let is_served = self.serving_waypoints.contains(name)
            || namespaces.any(|namespace| view.attaches_pods_of(gateway, namespace));
        is_served.then_some(EnforcementReason::ServedObjectsTargeted)
    }
}

impl MeshView {
    /// Whether a policy is the waypoint's copy of a layer 4 policy that the node proxies of all pods of the target
    /// enforce.
    fn is_enforced_at_pods(&self, policy: &ObjectKey, target: &ObjectKey) -> bool {
        let original = self.enforced_l4_original(policy);
        let Some(original) = original.and_then(|key| self.get::<AuthorizationPolicy>(&key)) else {
            return false;
        };
        match target.kind {
            Kind::Gateway => {
                let name = GatewayName::new(target.namespace.clone(), target.name.clone());
                let gateway = self.gateway(&name);
                let is_own = gateway.is_some_and(|gateway| {
                    gateway.allowed_namespaces == AllowedNamespaces::SameNamespace
                });
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

    /// Collects the targets of policies that can refuse requests, and the waypoints that originate TLS to services.
    pub(crate) fn enforcement_targets(&self) -> EnforcementTargets {
        let mut guarded = EnforcementTargets::default();
        for target in self
            .references
            .referenced_names(ReferenceKind::PolicyTarget)
        {
            let mut policies = self
                .references
                .referrers(ReferenceKind::PolicyTarget, target);
            if !policies.any(|policy| {
                is_enforcing_kind(policy.kind) && !self.is_enforced_at_pods(policy, target)
            }) {
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
                    guarded.serving_waypoints.extend(self.gateways_of(target));
                }
            }
        }
        let hosts = self.hosts_with_tls();
        for host in &hosts {
            for (key, _) in self.record_owners(host) {
                let service = NamespacedHostname::new(key.namespace.clone(), host.clone());
                let gateways = self.gateways_of(key);
                let gateways = gateways.filter(|one| self.waypoint_originates_tls(one, &service));
                guarded.serving_waypoints.extend(gateways);
            }
        }
        guarded
    }

    /// Returns the waypoint of a Service or ServiceEntry, and the awaited one.
    fn gateways_of(&self, key: &ObjectKey) -> impl Iterator<Item = GatewayName> + use<> {
        let attachment = self.waypoint_of_service(key).into_iter();
        attachment.flat_map(|one| one.awaited_gateway.into_iter().chain([one.gateway]))
    }

    /// Whether any pod of a namespace is attached to a waypoint, or will be once the waypoint is ready. A pod counts
    /// also if only its Service is attached, since a Service's policies also apply to requests to its pods' own
    /// addresses.
    fn attaches_pods_of(&self, gateway: &GatewayInput, namespace: &ArcStr) -> bool {
        let mut unlabelled_attachers = self.unlabelled_attachers(namespace, AttacherFilter::All);
        if unlabelled_attachers
            .any(|(one, serves)| one.name == gateway.name && serves.includes_workloads())
        {
            return true;
        }
        let mut bound = self
            .references
            .referrers(ReferenceKind::Waypoint, &gateway.name);
        let binds = |key: &ObjectKey| match key.kind {
            Kind::Namespace => key.name == *namespace,
            // Its endpoints may have the label.
            Kind::Pod | Kind::WorkloadEntry | Kind::ServiceEntry => key.namespace == *namespace,
            _ => false,
        };
        self.served_traffic(gateway).includes_workloads() && bound.any(binds)
    }
}
