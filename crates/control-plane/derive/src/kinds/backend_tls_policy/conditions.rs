//! Status conditions of a BackendTLSPolicy, by ancestor: whether a waypoint applies it, and whether its references
//! resolve.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{ObjectKey, gateway};
use ambit_model::GatewayName;
use serde_json::{Value, json};

use crate::{
    condition::{Part, Standing, Verdict},
    objects::{
        backend_tls_policy::input::{BackendTlsInput, Target},
        gateway_class::CONTROLLER,
    },
    view::MeshView,
};

/// Maximum number of `ancestors` in a status, as in the Gateway API.
const MAX_ANCESTORS: usize = 16;

pub(crate) fn of(view: &MeshView, policy: &BackendTlsInput) -> Standing {
    let mut waypoints: BTreeMap<GatewayName, Vec<&Target>> = BTreeMap::new();
    let mut unbound = Vec::new();
    for target in &policy.targets {
        let reaching = reaching(view, &target.key);
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
        part(view, policy, reference, accepted(view, policy, targets))
    });
    let of_others = unbound.into_iter().map(|target| {
        let key = &target.key;
        let reference = json!({
            "group": key.kind.group(), "kind": key.kind.as_str(), "name": key.name.as_str(),
        });
        let message = format!("{key} does not exist or has no waypoint: the policy has no effect");
        part(view, policy, reference, bad("TargetNotFound", message))
    });
    Standing {
        parts: of_waypoints.chain(of_others).take(MAX_ANCESTORS).collect(),
        ..Standing::default()
    }
}

/// Returns the waypoints that forward requests to the hosts of a target.
fn reaching(view: &MeshView, target: &ObjectKey) -> BTreeSet<GatewayName> {
    let hosts = view.hosts_of(target).into_iter();
    hosts
        .flat_map(|host| view.waypoints_reaching(target, &host))
        .collect()
}

fn part(view: &MeshView, policy: &BackendTlsInput, ancestor: Value, accepted: Verdict) -> Part {
    let resolved = match policy.resolved(view) {
        Err(refused) if refused.is_reference => bad(refused.reason, refused.message),
        _ => good("ResolvedRefs", "every reference is found".to_owned()),
    };
    Part {
        identity: BTreeMap::from([
            ("ancestorRef", ancestor),
            ("controllerName", CONTROLLER.into()),
        ]),
        fields: BTreeMap::new(),
        conditions: vec![("Accepted", accepted), ("ResolvedRefs", resolved)],
    }
}

fn accepted(view: &MeshView, policy: &BackendTlsInput, targets: &[&Target]) -> Verdict {
    if let Err(refused) = policy.resolved(view) {
        let reason = if refused.is_reference {
            "NoValidCACertificate"
        } else {
            refused.reason
        };
        let message = format!("{}: requests are answered with 503", refused.message);
        return bad(reason, message);
    }
    let missing = targets.iter().find_map(|target| {
        let name = target.port.as_ref()?;
        let is_there = !view.ports_named(&target.key, name).is_empty();
        (!is_there).then(|| format!("{} has no port {name:?}", target.key))
    });
    if let Some(message) = missing {
        return bad("TargetNotFound", message);
    }
    let other = targets.iter().find_map(|target| {
        let mut all = view.tls_policies(&target.key).into_iter();
        let meant = |port: Option<u16>| match (&target.port, port) {
            (None, None) => true,
            (Some(name), Some(port)) => view.ports_named(&target.key, name).contains(&port),
            _ => false,
        };
        let (first, _) = all.find(|(_, port)| meant(*port))?;
        (first.key != policy.key).then_some(&first.key)
    });
    match other {
        Some(other) => bad(
            "Conflicted",
            format!("{other} is followed in its place: of several for a service the oldest counts"),
        ),
        None => good("Accepted", "the policy is followed".to_owned()),
    }
}

fn good(reason: &'static str, message: String) -> Verdict {
    Verdict {
        is_true: true,
        reason,
        message,
        is_trouble: false,
    }
}

fn bad(reason: &'static str, message: String) -> Verdict {
    Verdict {
        is_true: false,
        is_trouble: true,
        ..good(reason, message)
    }
}
