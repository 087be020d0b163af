//! Clients and ports that a waypoint policy could refuse, published for connections that bypass the waypoint.

use ambit_model::{HttpAction, HttpOperation, HttpRule, HttpSource, WaypointRule};

use crate::{objects::authorization_policy::attached::AttachedPolicy, view::MeshView};

impl AttachedPolicy {
    /// Returns the clients and service ports that the policy could refuse. Dry-run policies refuse none. ALLOW refuses
    /// all clients that it does not name, and CUSTOM refuses all while its provider cannot be called: both apply to
    /// every connection.
    pub(crate) fn refusable_scopes(&self, view: &MeshView) -> Vec<WaypointRule> {
        let policy = self.with_expanded_principals(view);
        if policy.not_understood.is_some() {
            return vec![WaypointRule::default()];
        }
        match policy.action {
            _ if policy.dry_run => Vec::new(),
            HttpAction::Allow | HttpAction::Custom => vec![WaypointRule::default()],
            HttpAction::Deny | HttpAction::Audit => policy.rules.iter().map(rule_scope).collect(),
        }
    }
}

fn rule_scope(rule: &HttpRule) -> WaypointRule {
    let (mut principals, mut namespaces) = (Vec::new(), Vec::new());
    for source in &rule.sources {
        let HttpSource {
            principals: by_principal,
            namespaces: by_namespace,
            ..
        } = source;
        match (by_principal.is_empty(), by_namespace.is_empty()) {
            (false, _) => principals.extend_from_slice(by_principal),
            (true, false) => namespaces.extend_from_slice(by_namespace),
            // A source that names callers in another way, or none.
            (true, true) => return any_client_scope(rule),
        }
    }
    WaypointRule {
        principals,
        namespaces,
        ..any_client_scope(rule)
    }
}

fn any_client_scope(rule: &HttpRule) -> WaypointRule {
    let names_ports = |operation: &HttpOperation| !operation.ports.is_empty();
    let ports = match rule.operations.iter().all(names_ports) {
        true => rule
            .operations
            .iter()
            .flat_map(|one| one.ports.clone())
            .collect(),
        false => Vec::new(),
    };
    WaypointRule {
        ports,
        ..WaypointRule::default()
    }
}
