//! Layer 7 rules of a pod's waypoint, with the ports and clients that they apply to. A node proxy cannot evaluate such
//! rules for connections that bypass the waypoint because they are older than it.
//!
//! Rules are AuthorizationPolicies, RequestAuthentications, RateLimits and WasmPlugins, attached to the waypoint or to
//! a service of the pod. Routes do not count: they forward requests and refuse none.

use ambit_k8s_api::{AuthorizationPolicy, Kind, ObjectKey, RateLimit};
use ambit_model::{GatewayName, PortMap, WaypointRule, Workload};

use crate::{
    relations::references::ReferenceKind,
    view::{MeshView, attachment::Attachment},
};

/// Maximum number of rules of one pod, and of clients or ports of one rule. If exceeded, one rule without restrictions
/// is published, or the rule without the restriction.
const MAX_POD_RULES: usize = 64;

impl MeshView {
    /// Returns the rules at a pod's waypoint that could apply to connections to the pod. `None` if they are unknown:
    /// the waypoint belongs to another controller or cannot be used, or services of other namespaces may have the pod
    /// as an endpoint.
    pub(crate) fn waypoint_rules(
        &self,
        pod: &Workload,
        attachment: &Attachment,
    ) -> Option<Vec<WaypointRule>> {
        let gateway = self.gateway(attachment.own_gateway()?)?;
        let mut grants = self.references.mesh_referrers(ReferenceKind::PodGrant);
        if grants.any(|grant| grant.namespace == pod.namespace) {
            return None;
        }
        let GatewayName { namespace, name } = &gateway.name;
        let key = ObjectKey::new(Kind::Gateway, namespace.clone(), name.clone());
        let class = ObjectKey::new(Kind::GatewayClass, "", gateway.class.clone());
        let mut targets = vec![(key, None), (class, None)];
        for (service, ports) in &pod.services {
            let objects_declaring = self.objects_declaring(&service.hostname);
            let own = objects_declaring.filter(|key| key.namespace == service.namespace);
            targets.extend(own.map(|key| (key.clone(), Some(ports))));
        }
        let mut rules = Vec::new();
        for (target, ports) in &targets {
            for object in self
                .references
                .referrers(ReferenceKind::PolicyTarget, target)
            {
                if self.enforces_original(pod, object) {
                    continue;
                }
                let scopes = self.refusable_scopes(object).into_iter();
                rules.extend(scopes.map(|scope| rule_at_pod(scope, *ports, pod)));
            }
        }
        rules.sort_unstable_by_key(|rule| format!("{rule:?}"));
        rules.dedup();
        if rules.len() > MAX_POD_RULES {
            return Some(vec![WaypointRule::default()]);
        }
        Some(rules)
    }

    /// Whether the node proxy enforces on the pod the layer 4 policy that `rule` is a copy of.
    fn enforces_original(&self, pod: &Workload, rule: &ObjectKey) -> bool {
        let Some(key) = self.enforced_l4_original(rule) else {
            return false;
        };
        let original = self.get::<AuthorizationPolicy>(&key);
        if original.is_some_and(|original| original.selector.is_none()) {
            // Of a whole namespace, or of the mesh; no workload lists it.
            return key.namespace == pod.namespace || key.namespace == self.config.root_namespace;
        }
        let name = format!("{}/{}", key.namespace, key.name);
        pod.authorization_policies.iter().any(|one| *one == name)
    }

    /// Returns the ports and clients that a policy can refuse; empty if it refuses nothing.
    fn refusable_scopes(&self, object: &ObjectKey) -> Vec<WaypointRule> {
        match object.kind {
            Kind::AuthorizationPolicy => {
                let policy = self.get::<AuthorizationPolicy>(object);
                let attached = policy.and_then(|policy| policy.attached.as_ref());
                attached
                    .map(|one| one.refusable_scopes(self))
                    .unwrap_or_default()
            }
            Kind::RateLimit => {
                let limit = self.get::<RateLimit>(object);
                let refuses = limit.is_some_and(|limit| !limit.is_dry_run());
                refuses.then(WaypointRule::default).into_iter().collect()
            }
            Kind::RequestAuthentication | Kind::WasmPlugin => vec![WaypointRule::default()],
            _ => Vec::new(),
        }
    }
}

/// Converts a rule's service ports to ports of the pod: target ports of the pod's services, and the rule's own ports,
/// since requests to the pod itself name the pod's ports. `of_target` are the ports of the service that the rule is
/// attached to.
fn rule_at_pod(
    mut rule: WaypointRule,
    of_target: Option<&PortMap>,
    pod: &Workload,
) -> WaypointRule {
    if rule.ports.is_empty() {
        rule.ports = of_target
            .into_iter()
            .flat_map(|map| map.iter().map(|(_, target)| *target))
            .collect();
    } else {
        let maps = pod.services.values();
        let named = |map: &PortMap| -> Vec<u16> {
            let ports = rule.ports.iter();
            ports.filter_map(|port| map.get(port).copied()).collect()
        };
        let targets: Vec<u16> = maps.flat_map(named).collect();
        rule.ports.extend(targets);
    }
    rule.ports.sort_unstable();
    rule.ports.dedup();
    if rule.ports.len() > MAX_POD_RULES {
        rule.ports.clear();
    }
    if rule.principals.len() + rule.namespaces.len() > MAX_POD_RULES {
        rule.principals.clear();
        rule.namespaces.clear();
    }
    rule
}
