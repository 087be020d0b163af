//! Names of services that waypoints call, such as authorization providers.

use ambit_model::ArcStr;

/// Returns the host of a provider's `service`, which is `host` or `namespace/host`.
pub(crate) fn host_of_service(service: &str) -> ArcStr {
    let host = service.split_once('/').map_or(service, |(_, host)| host);
    host.to_ascii_lowercase().into()
}
