//! Names of services that waypoints call.

use ambit_model::ArcStr;

/// The host in a provider's name of a service.
pub(crate) fn host(service: &str) -> ArcStr {
    let host = service.split_once('/').map_or(service, |(_, host)| host);
    host.to_ascii_lowercase().into()
}
