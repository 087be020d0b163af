//! Decodes fields that several record types have.

use std::net::IpAddr;

use ambit_model as model;
use ipnet::IpNet;
use prost::Message;

use super::error::{DecodeError, DecodeErrorReason};
use crate::workload as wire;

/// Decodes an IP address of 4 or 16 bytes; converts an IPv4-mapped address to IPv4.
pub(crate) fn decode_ip(field: &'static str, bytes: &[u8]) -> Result<IpAddr, DecodeError> {
    let ip = match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
        (Ok(four), _) => IpAddr::from(four),
        (_, Ok(sixteen)) => IpAddr::from(sixteen),
        _ => {
            return Err(DecodeError::new(
                field,
                DecodeErrorReason::AddressLength(bytes.len()),
            ));
        }
    };
    Ok(ip.to_canonical())
}

/// Decodes an IP prefix; converts a prefix of IPv4-mapped addresses to an IPv4 prefix.
pub(crate) fn decode_prefix(
    field: &'static str,
    bytes: &[u8],
    length: u32,
) -> Result<IpNet, DecodeError> {
    let too_long = || DecodeError::new(field, DecodeErrorReason::PrefixLength(length));
    let address = decode_ip(field, bytes)?;
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

/// Decodes a port number from 0 to 65535.
pub(crate) fn decode_port(field: &'static str, port: u32) -> Result<u16, DecodeError> {
    u16::try_from(port).map_err(|_| DecodeError::new(field, DecodeErrorReason::InvalidPort(port)))
}

/// Decodes the number of an enum value; an unknown number is an error.
pub(crate) fn decode_enum<T: TryFrom<i32>>(
    field: &'static str,
    value: i32,
) -> Result<T, DecodeError> {
    T::try_from(value).map_err(|_| DecodeError::new(field, DecodeErrorReason::UnknownValue(value)))
}

/// Decodes the configuration of the extension with this name; `None` if the record has no such extension.
pub(super) fn decode_extension<M: Message + Default>(
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
        .map_err(|source| DecodeError::new(field, DecodeErrorReason::Malformed(source)))
}

/// Decodes a list of ports to a map from service port to target port.
pub(super) fn decode_port_map(
    field: &'static str,
    ports: &[wire::Port],
) -> Result<model::PortMap, DecodeError> {
    ports
        .iter()
        .map(|entry| {
            Ok((
                decode_port(field, entry.service_port)?,
                decode_port(field, entry.target_port)?,
            ))
        })
        .collect()
}

/// Decodes the address of a waypoint or network gateway.
pub(super) fn decode_gateway_address(
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
        Destination::Hostname(name) => model::GatewayDestination::Hostname(
            model::NamespacedHostname::new(name.namespace, name.hostname),
        ),
        Destination::Address(at) => model::GatewayDestination::Address(model::NetworkAddress::new(
            at.network,
            decode_ip(field, &at.address)?,
        )),
    };
    Ok(model::GatewayAddress {
        destination,
        hbone_mtls_port: decode_port(field, gateway.hbone_mtls_port)?,
    })
}

/// Returns the text, or Istio's default for the field if the text is empty.
pub(super) fn text_or_default(text: String, default: &str) -> model::ArcStr {
    if text.is_empty() {
        default.into()
    } else {
        text.into()
    }
}
