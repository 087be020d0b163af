//! Status of a waypoint's Gateway. Does no IO.

use ambit_k8s_api::{
    Gateway,
    status::{DesiredCondition, conditions},
};
use ambit_waypoint_objects::WaypointError;
use serde_json::{Value, json};

/// State of a Gateway's waypoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GatewayState {
    /// The waypoint's objects are written.
    Deployed(DeploymentProgress),
    /// The Gateway's settings cannot be deployed; earlier objects, if any, stay.
    Invalid(WaypointError, Option<DeploymentProgress>),
    /// An object that the waypoint needs exists already, and does not belong to a waypoint.
    NameConflict(String),
    /// Another controller, with this field manager, manages the Gateway.
    ManagedByOther(String),
}

/// Progress of a waypoint's deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeploymentProgress {
    pub(crate) hostname: String,
    pub(crate) ips: Vec<String>,
    /// Addresses of the waypoint's Service at load balancers.
    pub(crate) load_balancers: Vec<String>,
    pub(crate) is_ready: bool,
}

struct Condition {
    name: &'static str,
    is_true: bool,
    reason: &'static str,
    message: String,
}

impl Condition {
    fn to_desired(&self, generation: i64) -> DesiredCondition<'_> {
        DesiredCondition {
            type_: self.name,
            is_true: self.is_true,
            reason: self.reason,
            message: &self.message,
            generation: Some(generation),
        }
    }
}

fn condition(
    name: &'static str,
    is_true: bool,
    reason: &'static str,
    message: impl Into<String>,
) -> Condition {
    Condition {
        name,
        is_true,
        reason,
        message: message.into(),
    }
}

/// Returns the desired status, with all fields that our field manager owns; `None` if the Gateway has it already.
pub(crate) fn status_patch(gateway: &Gateway, state: &GatewayState) -> Option<Value> {
    let (conditions, addresses) = (desired_conditions(state), status_addresses(gateway, state));
    let there = self::conditions(&gateway.status);
    let generation = gateway.metadata.generation.unwrap_or_default();
    let found = |name: &str| {
        let is_it = |one: &&Value| one.get("type").and_then(Value::as_str) == Some(name);
        there.iter().find(is_it)
    };
    let is_published = conditions.iter().all(|wanted| {
        found(wanted.name).is_some_and(|there| wanted.to_desired(generation).is_published(there))
    });
    let mut status = json!({});
    if let Some(addresses) = &addresses {
        status = json!({"addresses": addresses});
    }
    let existing_object =
        addresses.is_none_or(|addresses| gateway.status.get("addresses") == Some(&addresses));
    if is_published && existing_object {
        return None;
    }
    let written: Vec<_> = conditions
        .iter()
        .map(|wanted| wanted.to_desired(generation).to_json(found(wanted.name)))
        .collect();
    if let Some(status) = status.as_object_mut() {
        status.insert("conditions".to_owned(), Value::from(written));
    }
    Some(status)
}

fn desired_conditions(state: &GatewayState) -> Vec<Condition> {
    let accepted = || condition("Accepted", true, "Accepted", "a waypoint is made for it");
    match state {
        GatewayState::Deployed(progress) => vec![accepted(), programmed_condition(progress)],
        GatewayState::Invalid(why, existing_object) => {
            let none = || condition("Programmed", false, "Invalid", "no waypoint is made for it");
            vec![
                condition("Accepted", false, why.reason(), why.to_string()),
                existing_object
                    .as_ref()
                    .map_or_else(none, programmed_condition),
            ]
        }
        GatewayState::NameConflict(what) => vec![
            accepted(),
            condition(
                "Programmed",
                false,
                "Invalid",
                format!(
                    "{what} exists and was not made for a waypoint: rename the Gateway, or delete that object"
                ),
            ),
        ],
        // The other conditions are the other controller's.
        GatewayState::ManagedByOther(manager) => vec![condition(
            "ambit.io/Deployed",
            false,
            "ManagedByOther",
            format!(
                "its waypoint is applied by {manager}: it is left alone; to have Ambit's, remove that controller and then the waypoint's Deployment, Service and ServiceAccount"
            ),
        )],
    }
}

fn programmed_condition(progress: &DeploymentProgress) -> Condition {
    let reason = match progress {
        DeploymentProgress { ips, .. } if ips.is_empty() => "AddressNotAssigned",
        DeploymentProgress {
            is_ready: false, ..
        } => "AddressNotUsable",
        _ => return condition("Programmed", true, "Programmed", "the waypoint is ready"),
    };
    let message = "the waypoint is not ready: connections to objects bound to it are refused (see ambit.io/Introduced)";
    condition("Programmed", false, reason, message)
}

/// Returns the addresses of the waypoint, once one of its pods has been ready. From then on they stay, since bindings
/// depend on them.
fn status_addresses(gateway: &Gateway, state: &GatewayState) -> Option<Value> {
    let (GatewayState::Deployed(progress) | GatewayState::Invalid(_, Some(progress))) = state
    else {
        return None;
    };
    let DeploymentProgress {
        hostname,
        ips,
        load_balancers,
        is_ready,
    } = progress;
    let had = gateway.status.get("addresses").and_then(Value::as_array);
    let had = had.is_some_and(|addresses| !addresses.is_empty());
    if ips.is_empty() || !(*is_ready || had) {
        return None;
    }
    // Clients of the mesh use the first address, or the name.
    let address = |ip: &String| json!({"type": "IPAddress", "value": ip});
    let mut addresses: Vec<_> = ips.iter().map(address).collect();
    addresses.push(json!({"type": "Hostname", "value": hostname}));
    addresses.extend(load_balancers.iter().map(address));
    Some(addresses.into())
}
