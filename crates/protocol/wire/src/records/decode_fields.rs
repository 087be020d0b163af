//! Decoding functions that several record codecs use.

use ambit_model as model;

use crate::{decode::DecodeError, workload};

pub(super) fn decode_all<W, M>(
    from: Vec<W>,
    decode_one: impl Fn(W) -> Result<M, DecodeError>,
) -> Result<Vec<M>, DecodeError> {
    from.into_iter().map(decode_one).collect()
}

pub(super) fn decode_hostname(
    field: &'static str,
    name: Option<workload::NamespacedHostname>,
) -> Result<model::NamespacedHostname, DecodeError> {
    let name = name.filter(|name| !name.hostname.is_empty());
    let name = name.ok_or_else(|| DecodeError::missing(field))?;
    Ok(model::NamespacedHostname::new(
        name.namespace,
        name.hostname,
    ))
}

pub(super) fn none_if_empty(text: String) -> Option<model::ArcStr> {
    (!text.is_empty()).then(|| text.into())
}

/// Returns the name of the object in a resource name, `namespace/gateway/NAME`.
pub(super) fn object_name(name: &str) -> &str {
    name.splitn(3, '/').nth(2).unwrap_or(name)
}

/// Returns the targets of a substitute: whether it applies to the whole waypoint, and the services to which it applies.
/// Without services it applies to the whole waypoint.
pub(super) fn substitute_targets(
    for_gateway: bool,
    services: Vec<workload::NamespacedHostname>,
) -> (bool, Vec<model::NamespacedHostname>) {
    let name = |name: workload::NamespacedHostname| {
        model::NamespacedHostname::new(name.namespace, name.hostname)
    };
    let services: Vec<_> = services.into_iter().map(name).collect();
    (for_gateway || services.is_empty(), services)
}
