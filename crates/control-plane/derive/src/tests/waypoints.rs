//! Waypoints of pods and services, and the records of waypoints.

mod attachment;
mod authentications;
mod backend_tls;
mod destinations;
mod foreign;
mod foreign_proxies;
mod grants;
mod hosts;
mod instances;
mod introductions;
mod kinds;
mod limits;
mod misspelt_targets;
mod own_kinds;
mod plugins;
mod routes_and_conditions;
mod rules;
mod service_scope;
mod sessions;
mod telemetry;
mod virtual_services;
mod warnings;

use ambit_model::NamespacedHostname;

use super::*;

/// Returns a Gateway manifest for a waypoint of the namespace `shop`; `more_metadata` continues its metadata.
pub(super) fn gateway(name: &str, more_metadata: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n\
         metadata: {{name: {name}, namespace: shop{more_metadata}}}\n\
         spec: {{gatewayClassName: istio-waypoint, listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]}}\n"
    )
}
