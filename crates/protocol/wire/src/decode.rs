//! Wire to model: WDS records and authorization policies, parsed strictly.
//!
//! A record that is not understood in full is refused as a whole, with the field and the reason:
//! ignoring a part would widen or narrow a policy, or send traffic elsewhere. The contract's exception is
//! unknown extensions and unknown fields of workloads and services: they are ignored (fields are
//! counted). In a policy they refuse it. Decoded addresses are canonical.

mod delta;
mod policy;
mod service;
mod strict;
#[cfg(test)]
mod tests;
mod workload;

use std::net::IpAddr;

use ambit_model as model;
use ipnet::IpNet;
use prost::Message;

use crate::workload as wire;

pub use crate::unknown::UnknownField;
pub use policy::policy;
pub use strict::{NotUnderstood, Substitute};

pub(crate) use policy::{accounts, nets, ports, texts};
pub(crate) use strict::{under_own_name, whole};

use crate::unknown::{ISTIO_SECURITY_AUTHORIZATION, ISTIO_WORKLOAD_ADDRESS};

pub use delta::{DELTA_PATH, DeltaCodec, LeanDeltaResponse, LeanResource};

/// Why a record is refused: the field and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct DecodeError {
    field: &'static str,
    reason: Refusal,
}

/// Reason why a field is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("not the protobuf message it should be: {0}")]
    Malformed(#[source] prost::DecodeError),
    #[error("is missing")]
    Missing,
    #[error("an address of {0} bytes; 4 or 16 are possible")]
    AddressLength(usize),
    #[error("a prefix of {0} bits is too long for the address")]
    PrefixLength(u32),
    #[error("{0:?} is no prefix of addresses")]
    Prefix(String),
    #[error("unknown value {0}")]
    UnknownValue(i32),
    #[error("{0} is not a port")]
    Port(u32),
    #[error("{0}")]
    Name(#[source] model::ParseNameError),
    #[error("{0}")]
    Identity(#[source] model::ParseIdentityError),
    #[error("{0} is not a status of an error, 400 to 599")]
    Status(u32),
    #[error("{0} is no status that a request could be answered with")]
    FaultStatus(u32),
    #[error("legacy Istio mTLS is not supported")]
    LegacyTunnel,
    #[error("a match without a value")]
    EmptyMatch,
    #[error("is empty")]
    Empty,
    #[error("field {0} is unknown")]
    UnknownField(u32),
    #[error("the extension {0:?} is unknown")]
    Extension(String),
    #[error("names {0}, not the policy that it was sent as")]
    OtherPolicy(model::PolicyKey),
}

impl DecodeError {
    pub(crate) fn new(field: &'static str, reason: Refusal) -> Self {
        Self { field, reason }
    }

    pub(crate) fn missing(field: &'static str) -> Self {
        Self::new(field, Refusal::Missing)
    }

    /// The field that is wrong.
    pub fn field(&self) -> &'static str {
        self.field
    }
}

/// A WDS record.
#[derive(Clone, Debug, PartialEq)]
pub enum AddressRecord {
    /// Record of a workload.
    Workload(Box<model::Workload>),
    /// Record of a service.
    Service(Box<model::Service>),
}

impl AddressRecord {
    /// Decodes an `istio.workload.Address`.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::Address::decode(bytes)
            .map_err(|source| DecodeError::new("address", Refusal::Malformed(source)))?
            .try_into()
    }

    /// Counts the fields of an `istio.workload.Address` that this build does not know and ignores.
    pub fn unknown_fields(bytes: &[u8]) -> u64 {
        let mut count = 0;
        let walked = ISTIO_WORKLOAD_ADDRESS.unknown_fields(bytes, &mut |_| count += 1);
        // Bytes that are not protobuf are refused by `decode`.
        walked.map_or(0, |()| count)
    }
}

impl TryFrom<wire::Address> for AddressRecord {
    type Error = DecodeError;

    fn try_from(address: wire::Address) -> Result<Self, DecodeError> {
        match address
            .r#type
            .ok_or_else(|| DecodeError::missing("address.type"))?
        {
            wire::address::Type::Workload(workload) => {
                Ok(Self::Workload(Box::new(workload.try_into()?)))
            }
            wire::address::Type::Service(service) => {
                Ok(Self::Service(Box::new(service.try_into()?)))
            }
        }
    }
}

/// Decodes an `istio.security.Authorization` in full: one with a field that this build does not know is
/// refused.
pub fn authorization(bytes: &[u8]) -> Result<model::Authorization, DecodeError> {
    let policy: crate::security::Authorization =
        whole("authorization", &ISTIO_SECURITY_AUTHORIZATION, bytes)?;
    policy.try_into()
}

// === parts shared by several records ===

pub(crate) fn ip(field: &'static str, bytes: &[u8]) -> Result<IpAddr, DecodeError> {
    let ip = match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
        (Ok(four), _) => IpAddr::from(four),
        (_, Ok(sixteen)) => IpAddr::from(sixteen),
        _ => return Err(DecodeError::new(field, Refusal::AddressLength(bytes.len()))),
    };
    Ok(ip.to_canonical())
}

/// A prefix; one of IPv4-mapped addresses becomes the IPv4 prefix it is.
pub(crate) fn prefix(field: &'static str, bytes: &[u8], length: u32) -> Result<IpNet, DecodeError> {
    let too_long = || DecodeError::new(field, Refusal::PrefixLength(length));
    let address = ip(field, bytes)?;
    let mapped = address.is_ipv4() && bytes.len() == 16;
    let (address, length) = match (mapped, length.checked_sub(96)) {
        (true, Some(length)) => (address, length),
        (true, None) => {
            let raw = <[u8; 16]>::try_from(bytes).map_or(address, IpAddr::from);
            (raw, length)
        }
        (false, _) => (address, length),
    };
    let length = u8::try_from(length).map_err(|_| too_long())?;
    IpNet::new(address, length)
        .map(|net| net.trunc())
        .map_err(|_| too_long())
}

pub(crate) fn port(field: &'static str, port: u32) -> Result<u16, DecodeError> {
    u16::try_from(port).map_err(|_| DecodeError::new(field, Refusal::Port(port)))
}

pub(crate) fn known<T: TryFrom<i32>>(field: &'static str, value: i32) -> Result<T, DecodeError> {
    T::try_from(value).map_err(|_| DecodeError::new(field, Refusal::UnknownValue(value)))
}

/// Decodes the extension of that name, if there is one.
fn extension<M: Message + Default>(
    field: &'static str,
    extensions: &[wire::Extension],
    name: &str,
) -> Result<Option<M>, DecodeError> {
    let Some(extension) = extensions.iter().find(|one| one.name == name) else {
        return Ok(None);
    };
    let config = extension
        .config
        .as_ref()
        .ok_or_else(|| DecodeError::missing(field))?;
    M::decode(config.value.as_slice())
        .map(Some)
        .map_err(|source| DecodeError::new(field, Refusal::Malformed(source)))
}

fn port_map(field: &'static str, ports: &[wire::Port]) -> Result<model::PortMap, DecodeError> {
    ports
        .iter()
        .map(|entry| {
            Ok((
                port(field, entry.service_port)?,
                port(field, entry.target_port)?,
            ))
        })
        .collect()
}

fn gateway(
    field: &'static str,
    gateway: wire::GatewayAddress,
) -> Result<model::GatewayAddress, DecodeError> {
    use wire::gateway_address::Destination;
    let destination = match gateway
        .destination
        .ok_or_else(|| DecodeError::missing(field))?
    {
        Destination::Hostname(name) if name.hostname.is_empty() => {
            return Err(DecodeError::missing(field));
        }
        Destination::Hostname(name) => model::Destination::Hostname(
            model::NamespacedHostname::new(name.namespace, name.hostname),
        ),
        Destination::Address(at) => model::Destination::Address(model::NetworkAddress::new(
            at.network,
            ip(field, &at.address)?,
        )),
    };
    Ok(model::GatewayAddress {
        destination,
        hbone_mtls_port: port(field, gateway.hbone_mtls_port)?,
    })
}

/// The text, or the contract's default for an empty one.
fn or_default(text: String, default: &str) -> model::ArcStr {
    if text.is_empty() {
        default.into()
    } else {
        text.into()
    }
}
