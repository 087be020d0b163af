//! Decodes `istio.workload.Service`.

use std::collections::BTreeMap;

use ambit_model as model;

use super::{
    error::{DecodeError, DecodeErrorReason},
    fields::{
        decode_enum, decode_extension, decode_gateway_address, decode_ip, decode_port,
        decode_port_map, decode_prefix,
    },
};
use crate::{ambit, encode::AFFINITY_EXTENSION, workload as wire};

impl TryFrom<wire::Service> for model::Service {
    type Error = DecodeError;

    fn try_from(from: wire::Service) -> Result<Self, DecodeError> {
        if from.hostname.is_empty() {
            return Err(DecodeError::missing("service.hostname"));
        }
        if from.hostname.contains('/') || from.namespace.contains('/') {
            // Its name (`namespace/hostname`) could be another service's.
            let name = format!("{}/{}", from.namespace, from.hostname);
            if let Err(source) = name.parse::<model::NamespacedHostname>() {
                return Err(DecodeError::new(
                    "service.hostname",
                    DecodeErrorReason::InvalidName(source),
                ));
            }
        }
        let mut vips = Vec::new();
        let mut cidr_vips = Vec::new();
        for at in from.addresses {
            match decode_vip(at)? {
                Vip::Address(address) => vips.push(address),
                Vip::Prefix(prefix) => cidr_vips.push(prefix),
            }
        }
        Ok(Self {
            name: from.name.into(),
            namespace: from.namespace.into(),
            hostname: from.hostname.into(),
            vips,
            cidr_vips,
            ports: decode_port_map("service.ports", &from.ports)?,
            app_protocols: decode_app_protocols(&from.ports)?,
            subject_alt_names: from.subject_alt_names.into_iter().map(Into::into).collect(),
            waypoint: from
                .waypoint
                .map(|at| decode_gateway_address("service.waypoint", at))
                .transpose()?,
            weighted_waypoints: from
                .weighted_waypoints
                .into_iter()
                .map(decode_weighted_waypoint)
                .collect::<Result<_, _>>()?,
            load_balancing: from.load_balancing.map(decode_load_balancing).transpose()?,
            session_affinity: decode_session_affinity(&from.extensions)?,
            ip_families: decode_ip_families(from.ip_families)?,
            canonical: from.canonical,
            // The one field whose unknown values mean its default: a newer kind of visibility must not hide
            // the service from all clients.
            visibility: match wire::Visibility::try_from(from.visibility) {
                Ok(wire::Visibility::Namespace) => model::Visibility::Namespace,
                Ok(wire::Visibility::Public) | Err(_) => model::Visibility::Public,
            },
        })
    }
}

enum Vip {
    Address(model::NetworkAddress),
    Prefix(model::CidrVip),
}

fn decode_vip(at: wire::NetworkAddress) -> Result<Vip, DecodeError> {
    const FIELD: &str = "service.addresses";
    let Some(length) = at.length else {
        return Ok(Vip::Address(model::NetworkAddress::new(
            at.network,
            decode_ip(FIELD, &at.address)?,
        )));
    };
    let cidr = decode_prefix(FIELD, &at.address, length)?;
    Ok(if cidr.prefix_len() == cidr.max_prefix_len() {
        Vip::Address(model::NetworkAddress::new(at.network, cidr.addr()))
    } else {
        Vip::Prefix(model::CidrVip {
            network: at.network.into(),
            cidr,
        })
    })
}

fn decode_weighted_waypoint(
    from: wire::WeightedWaypoint,
) -> Result<model::WeightedWaypoint, DecodeError> {
    const FIELD: &str = "service.weighted_waypoints";
    let destination = from
        .destination
        .ok_or_else(|| DecodeError::missing(FIELD))?;
    Ok(model::WeightedWaypoint {
        destination: decode_gateway_address(FIELD, destination)?,
        weight: from.weight,
    })
}

/// Decodes the application protocols that ports declare. A protocol that this build does not know counts as undeclared.
fn decode_app_protocols(
    ports: &[wire::Port],
) -> Result<BTreeMap<u16, model::AppProtocol>, DecodeError> {
    use wire::AppProtocol as Wire;
    let mut protocols = BTreeMap::new();
    for entry in ports {
        let protocol = match Wire::try_from(entry.app_protocol) {
            Ok(Wire::Http11) => model::AppProtocol::Http11,
            Ok(Wire::Http2) => model::AppProtocol::Http2,
            Ok(Wire::Grpc) => model::AppProtocol::Grpc,
            Ok(Wire::Tls) => model::AppProtocol::Tls,
            Ok(Wire::Tcp) => model::AppProtocol::Tcp,
            Ok(Wire::Unknown) | Err(_) => continue,
        };
        protocols.insert(decode_port("service.ports", entry.service_port)?, protocol);
    }
    Ok(protocols)
}

/// Decodes Ambit's extension for session affinity. Other extensions are ignored.
fn decode_session_affinity(extensions: &[wire::Extension]) -> Result<bool, DecodeError> {
    const FIELD: &str = "service.extensions[ambit.io/session-affinity]";
    let affinity: Option<ambit::SessionAffinity> =
        decode_extension(FIELD, extensions, AFFINITY_EXTENSION)?;
    Ok(affinity.is_some_and(|affinity| affinity.client_ip))
}

fn decode_load_balancing(from: wire::LoadBalancing) -> Result<model::LoadBalancing, DecodeError> {
    use wire::load_balancing::{HealthPolicy, Mode, Scope};
    const SCOPE_FIELD: &str = "service.load_balancing.routing_preference";
    let scope = |value: i32| {
        Ok(match decode_enum(SCOPE_FIELD, value)? {
            Scope::UnspecifiedScope => {
                return Err(DecodeError::new(
                    SCOPE_FIELD,
                    DecodeErrorReason::UnknownValue(value),
                ));
            }
            Scope::Region => model::LbScope::Region,
            Scope::Zone => model::LbScope::Zone,
            Scope::Subzone => model::LbScope::Subzone,
            Scope::Node => model::LbScope::Node,
            Scope::Cluster => model::LbScope::Cluster,
            Scope::Network => model::LbScope::Network,
        })
    };
    Ok(model::LoadBalancing {
        routing_preferences: from
            .routing_preference
            .into_iter()
            .map(scope)
            .collect::<Result<_, _>>()?,
        mode: match decode_enum("service.load_balancing.mode", from.mode)? {
            Mode::UnspecifiedMode => model::LbMode::Standard,
            Mode::Strict => model::LbMode::Strict,
            Mode::Failover => model::LbMode::Failover,
            Mode::Passthrough => model::LbMode::Passthrough,
        },
        health_policy: match decode_enum(
            "service.load_balancing.health_policy",
            from.health_policy,
        )? {
            HealthPolicy::OnlyHealthy => model::HealthPolicy::OnlyHealthy,
            HealthPolicy::AllowAll => model::HealthPolicy::AllowAll,
        },
    })
}

fn decode_ip_families(value: i32) -> Result<Option<model::IpFamilies>, DecodeError> {
    Ok(match decode_enum("service.ip_families", value)? {
        wire::IpFamilies::Automatic => None,
        wire::IpFamilies::Ipv4Only => Some(model::IpFamilies::Ipv4),
        wire::IpFamilies::Ipv6Only => Some(model::IpFamilies::Ipv6),
        wire::IpFamilies::Dual => Some(model::IpFamilies::Dual),
    })
}
