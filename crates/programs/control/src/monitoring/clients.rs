//! Page `/debug/syncz`: connected clients and the versions that they acknowledged, under the type names of Istio's
//! control plane and under those of Ambit's own types.

use ambit_model::WaypointRecordType;
use serde_json::{Map, Value, json};

use ambit_xds_server::{ResourceType, SessionStatus, session::SubscriptionStatus};

/// Envoy's resource types by their names on Istio's page, with the corresponding resource types of waypoints.
const ENVOY_TYPES: [(&str, ResourceType); 4] = [
    (
        "cluster",
        ResourceType::Waypoint(WaypointRecordType::Destination),
    ),
    (
        "listener",
        ResourceType::Waypoint(WaypointRecordType::Gateway),
    ),
    ("route", ResourceType::Waypoint(WaypointRecordType::Service)),
    ("endpoint", ResourceType::Address),
];

/// Returns the entries of the page, one for each client.
pub(super) fn clients_page(sessions: &[SessionStatus], cluster_id: &str) -> Vec<Value> {
    let clients = sessions.iter();
    clients
        .map(|session| client_json(session, cluster_id))
        .collect()
}

fn client_json(status: &SessionStatus, cluster_id: &str) -> Value {
    let node = status.node.as_ref();
    let subscriptions = status.subscriptions.iter();
    let subscriptions: Map<_, _> = subscriptions
        .map(|one| {
            (
                one.resource_type.type_url().to_owned(),
                subscription_json(one),
            )
        })
        .collect();
    let mut client = json!({
        "cluster_id": cluster_id,
        "proxy": node.map(|node| node.display_name()),
        "id": node.map(|node| node.id.as_str()),
        "node": node.map(|node| node.node_name.as_str()),
        "version": node.map(|node| node.version.as_str()),
        // Field name that `istioctl version` reads.
        "istio_version": node.map(|node| node.version.as_str()),
        "caller": status.caller.to_string(),
        "peer": status.peer_address,
        "connectedSeconds": status.opened_at.elapsed().unwrap_or_default().as_secs(),
        "subscriptions": subscriptions,
    });
    if let Value::Object(client) = &mut client {
        for (name, resource_type) in ENVOY_TYPES {
            let mut all = status.subscriptions.iter();
            if let Some(one) = all.find(|one| one.resource_type == resource_type) {
                client.insert(format!("{name}_sent"), json!(one.sent_nonce));
                client.insert(format!("{name}_acked"), json!(one.acknowledged_nonce));
            }
        }
    }
    client
}

fn subscription_json(status: &SubscriptionStatus) -> Value {
    let state = match &status.error {
        Some(_) => "ERROR",
        None if status.sent_nonce == status.acknowledged_nonce => "SYNCED",
        None => "STALE",
    };
    json!({
        "state": state,
        "sent": status.sent_nonce,
        "acknowledged": status.acknowledged_nonce,
        "wildcard": status.is_wildcard,
        "names": status.name_count,
        "error": status.error,
    })
}
