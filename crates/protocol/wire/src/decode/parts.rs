//! What the records of waypoints have in common. Of none of them anything is ignored.

use ambit_model::{self as model, PolicyKey};
use prost::Message;

use super::{DecodeError, Refusal};
use crate::{unknown, workload};

pub(super) fn whole<M: Message + Default>(
    field: &'static str,
    schema: &'static unknown::Message,
    bytes: &[u8],
) -> Result<M, DecodeError> {
    let malformed = |source| DecodeError::new(field, Refusal::Malformed(source));
    let message = M::decode(bytes).map_err(malformed)?;
    let mut unknown = None;
    schema
        .unknown_fields(bytes, &mut |field| {
            unknown.get_or_insert(field);
        })
        .map_err(malformed)?;
    match unknown {
        Some(field) => Err(DecodeError::new(
            field.message,
            Refusal::UnknownField(field.number),
        )),
        None => Ok(message),
    }
}

pub(super) fn all<W, M>(
    from: Vec<W>,
    one: impl Fn(W) -> Result<M, DecodeError>,
) -> Result<Vec<M>, DecodeError> {
    from.into_iter().map(one).collect()
}

pub(super) fn hostname(
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

pub(super) fn optional(text: String) -> Option<model::ArcStr> {
    (!text.is_empty()).then(|| text.into())
}

/// What follows the gateway in a record's name.
pub(super) fn policy_part(name: &str) -> &str {
    name.splitn(3, '/').nth(2).unwrap_or(name)
}

/// An object that was sent under the name that it says itself.
pub(super) fn under_own_name<T>(
    read: T,
    own: PolicyKey,
    named: &PolicyKey,
    field: &'static str,
) -> Result<T, DecodeError> {
    if own == *named {
        Ok(read)
    } else {
        Err(DecodeError::new(field, Refusal::OtherPolicy(own)))
    }
}

/// Where the substitute of an object applies, whether that is to the whole gateway first: there, if no service can be
/// read.
pub(super) fn places(
    for_gateway: bool,
    services: Vec<workload::NamespacedHostname>,
) -> (bool, Vec<model::NamespacedHostname>) {
    let name = |name: workload::NamespacedHostname| {
        model::NamespacedHostname::new(name.namespace, name.hostname)
    };
    let services: Vec<_> = services.into_iter().map(name).collect();
    (for_gateway || services.is_empty(), services)
}
