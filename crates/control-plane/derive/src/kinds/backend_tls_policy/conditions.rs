//! Status conditions of a BackendTLSPolicy, by ancestor: whether a waypoint applies it, and whether its references
//! resolve.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{ObjectKey, gateway};
use ambit_model::GatewayName;
use serde_json::{Value, json};

use crate::{
    condition::{ConditionContent, DerivedStatus, StatusEntry},
    objects::{
        backend_tls_policy::input::{BackendTlsInput, TlsTarget},
        gateway_class::CONTROLLER,
    },
    view::MeshView,
};

/// Maximum number of `ancestors` in a status, as in the Gateway API.
const MAX_ANCESTORS: usize = 16;

pub(crate) fn derived_status(view: &MeshView, policy: &BackendTlsInput) -> DerivedStatus {
    let mut waypoints: BTreeMap<GatewayName, Vec<&TlsTarget>> = BTreeMap::new();
    let mut unbound = Vec::new();
    for target in &policy.targets {
        let reaching = waypoints_reaching_target(view, &target.key);
        if reaching.is_empty() {
            unbound.push(target);
        }
        for gateway in reaching {
            waypoints.entry(gateway).or_default().push(target);
        }
    }
    let of_waypoints = waypoints.iter().map(|(gateway, targets)| {
        let reference = json!({
            "group": gateway::GROUP, "kind": "Gateway",
            "namespace": gateway.namespace.as_str(), "name": gateway.name.as_str(),
        });
        ancestor_status(
            view,
            policy,
            reference,
            accepted_condition(view, policy, targets),
        )
    });
    let of_others = unbound.into_iter().map(|target| {
        let key = &target.key;
        let reference = json!({
            "group": key.kind.group(), "kind": key.kind.as_str(), "name": key.name.as_str(),
        });
        let message = format!("{key} does not exist or has no waypoint: the policy has no effect");
        ancestor_status(
            view,
            policy,
            reference,
            condition_false("TargetNotFound", message),
        )
    });
    DerivedStatus {
        entries: of_waypoints.chain(of_others).take(MAX_ANCESTORS).collect(),
        ..DerivedStatus::default()
    }
}

/// Returns the waypoints that forward requests to the hosts of a target.
fn waypoints_reaching_target(view: &MeshView, target: &ObjectKey) -> BTreeSet<GatewayName> {
    let hosts = view.hosts_of(target).into_iter();
    hosts
        .flat_map(|host| view.waypoints_reaching(target, &host))
        .collect()
}

fn ancestor_status(
    view: &MeshView,
    policy: &BackendTlsInput,
    ancestor: Value,
    accepted: ConditionContent,
) -> StatusEntry {
    let resolved = match policy.resolve_tls(view) {
        Err(refused) if refused.is_unresolved_reference => {
            condition_false(refused.reason, refused.message)
        }
        _ => condition_true("ResolvedRefs", "every reference is found".to_owned()),
    };
    StatusEntry {
        identity: BTreeMap::from([
            ("ancestorRef", ancestor),
            ("controllerName", CONTROLLER.into()),
        ]),
        other_fields: BTreeMap::new(),
        conditions: vec![("Accepted", accepted), ("ResolvedRefs", resolved)],
    }
}

fn accepted_condition(
    view: &MeshView,
    policy: &BackendTlsInput,
    targets: &[&TlsTarget],
) -> ConditionContent {
    if let Err(refused) = policy.resolve_tls(view) {
        let reason = if refused.is_unresolved_reference {
            "NoValidCACertificate"
        } else {
            refused.reason
        };
        let message = format!("{}: requests are answered with 503", refused.message);
        return condition_false(reason, message);
    }
    let missing = targets.iter().find_map(|target| {
        let name = target.port.as_ref()?;
        let is_there = !view.port_numbers_named(&target.key, name).is_empty();
        (!is_there).then(|| format!("{} has no port {name:?}", target.key))
    });
    if let Some(message) = missing {
        return condition_false("TargetNotFound", message);
    }
    let other = targets.iter().find_map(|target| {
        let mut all = view.tls_policies(&target.key).into_iter();
        let meant = |port: Option<u16>| match (&target.port, port) {
            (None, None) => true,
            (Some(name), Some(port)) => view.port_numbers_named(&target.key, name).contains(&port),
            _ => false,
        };
        let (first, _) = all.find(|(_, port)| meant(*port))?;
        (first.key != policy.key).then_some(&first.key)
    });
    match other {
        Some(other) => condition_false(
            "Conflicted",
            format!("{other} is followed in its place: of several for a service the oldest counts"),
        ),
        None => condition_true("Accepted", "the policy is followed".to_owned()),
    }
}

fn condition_true(reason: &'static str, message: String) -> ConditionContent {
    ConditionContent {
        is_true: true,
        reason,
        message,
        needs_attention: false,
    }
}

fn condition_false(reason: &'static str, message: String) -> ConditionContent {
    ConditionContent {
        is_true: false,
        needs_attention: true,
        ..condition_true(reason, message)
    }
}
