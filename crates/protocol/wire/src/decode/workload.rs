//! Decodes `istio.workload.Workload`.

use ambit_model as model;

use super::{
    error::{DecodeError, DecodeErrorReason},
    fields::{
        decode_enum, decode_extension, decode_gateway_address, decode_ip, decode_port,
        decode_port_map, text_or_default,
    },
    policy::decode_string_matches,
};
use crate::{ambit, encode::WAYPOINT_EXTENSION, workload as wire};

impl TryFrom<wire::Workload> for model::Workload {
    type Error = DecodeError;

    fn try_from(from: wire::Workload) -> Result<Self, DecodeError> {
        if from.uid.is_empty() {
            return Err(DecodeError::missing("workload.uid"));
        }
        let services = from
            .services
            .into_iter()
            .map(|(name, ports)| {
                let name = name.parse().map_err(|source| {
                    DecodeError::new("workload.services", DecodeErrorReason::InvalidName(source))
                })?;
                Ok((
                    name,
                    decode_port_map("workload.services.ports", &ports.ports)?,
                ))
            })
            .collect::<Result<_, DecodeError>>()?;
        Ok(Self {
            uid: from.uid.into(),
            name: from.name.into(),
            namespace: from.namespace.into(),
            workload_ips: from
                .addresses
                .iter()
                .map(|bytes| decode_ip("workload.addresses", bytes))
                .collect::<Result<_, _>>()?,
            network: from.network.into(),
            protocol: decode_protocol(from.tunnel_protocol)?,
            network_mode: decode_network_mode(from.network_mode)?,
            native_tunnel: from.native_tunnel,
            trust_domain: text_or_default(from.trust_domain, model::DEFAULT_TRUST_DOMAIN),
            service_account: text_or_default(from.service_account, "default"),
            waypoint: from
                .waypoint
                .map(|at| decode_gateway_address("workload.waypoint", at))
                .transpose()?,
            network_gateway: from
                .network_gateway
                .map(|at| decode_gateway_address("workload.network_gateway", at))
                .transpose()?,
            workload_name: from.workload_name.into(),
            workload_type: decode_workload_kind(from.workload_type)?,
            canonical_name: from.canonical_name.into(),
            canonical_revision: from.canonical_revision.into(),
            hostname: from.hostname.into(),
            node: from.node.into(),
            authorization_policies: from
                .authorization_policies
                .into_iter()
                .map(Into::into)
                .collect(),
            status: decode_status(from.status)?,
            cluster_id: text_or_default(from.cluster_id, "Kubernetes"),
            locality: from.locality.map(decode_locality).unwrap_or_default(),
            services,
            capacity: from.capacity.unwrap_or(1),
            application_tunnel: from
                .application_tunnel
                .map(decode_application_tunnel)
                .transpose()?,
            endpoint_waypoint: decode_endpoint_waypoint(&from.extensions)?,
        })
    }
}

fn decode_protocol(value: i32) -> Result<model::Protocol, DecodeError> {
    const FIELD: &str = "workload.tunnel_protocol";
    match decode_enum(FIELD, value)? {
        wire::TunnelProtocol::None => Ok(model::Protocol::Tcp),
        wire::TunnelProtocol::Hbone => Ok(model::Protocol::Hbone),
        wire::TunnelProtocol::LegacyIstioMtls => {
            Err(DecodeError::new(FIELD, DecodeErrorReason::LegacyTunnel))
        }
    }
}

fn decode_network_mode(value: i32) -> Result<model::NetworkMode, DecodeError> {
    Ok(match decode_enum("workload.network_mode", value)? {
        wire::NetworkMode::Standard => model::NetworkMode::Standard,
        wire::NetworkMode::HostNetwork => model::NetworkMode::HostNetwork,
    })
}

fn decode_workload_kind(value: i32) -> Result<model::WorkloadKind, DecodeError> {
    Ok(match decode_enum("workload.workload_type", value)? {
        wire::WorkloadType::Deployment => model::WorkloadKind::Deployment,
        wire::WorkloadType::Cronjob => model::WorkloadKind::Cronjob,
        wire::WorkloadType::Pod => model::WorkloadKind::Pod,
        wire::WorkloadType::Job => model::WorkloadKind::Job,
    })
}

fn decode_status(value: i32) -> Result<model::WorkloadStatus, DecodeError> {
    Ok(match decode_enum("workload.status", value)? {
        wire::WorkloadStatus::Healthy => model::WorkloadStatus::Healthy,
        wire::WorkloadStatus::Unhealthy => model::WorkloadStatus::Unhealthy,
    })
}

fn decode_locality(from: wire::Locality) -> model::Locality {
    model::Locality {
        region: from.region.into(),
        zone: from.zone.into(),
        subzone: from.subzone.into(),
    }
}

fn decode_application_tunnel(
    from: wire::ApplicationTunnel,
) -> Result<model::AppTunnel, DecodeError> {
    use wire::application_tunnel::Protocol;
    let protocol = match decode_enum("workload.application_tunnel.protocol", from.protocol)? {
        Protocol::None => model::AppTunnelProtocol::None,
        Protocol::Proxy => model::AppTunnelProtocol::Proxy,
    };
    let port = decode_port("workload.application_tunnel.port", from.port)?;
    Ok(model::AppTunnel {
        protocol,
        port: (port != 0).then_some(port),
    })
}

/// Decodes Ambit's extension for an endpoint's own waypoint. Other extensions are ignored. A malformed extension
/// rejects the workload, since traffic would bypass the waypoint without it.
fn decode_endpoint_waypoint(
    extensions: &[wire::Extension],
) -> Result<Option<model::EndpointWaypoint>, DecodeError> {
    const FIELD: &str = "workload.extensions[ambit.io/waypoint]";
    let found: Option<ambit::EndpointWaypoint> =
        decode_extension(FIELD, extensions, WAYPOINT_EXTENSION)?;
    let Some(waypoint) = found else {
        return Ok(None);
    };
    let at = waypoint
        .waypoint
        .ok_or_else(|| DecodeError::missing(FIELD))?;
    let identities = waypoint
        .identities
        .iter()
        .map(|text| text.parse())
        .collect::<Result<_, _>>()
        .map_err(|source| DecodeError::new(FIELD, DecodeErrorReason::InvalidIdentity(source)))?;
    Ok(Some(model::EndpointWaypoint {
        waypoint: decode_gateway_address(FIELD, at)?,
        identities,
        enforce: waypoint.enforce,
        refuse: waypoint.refuse,
        for_services: waypoint.for_services,
        rules: waypoint.rules.map(decode_waypoint_rules).transpose()?,
    }))
}

fn decode_waypoint_rules(
    from: ambit::WaypointRules,
) -> Result<Vec<model::WaypointRule>, DecodeError> {
    const FIELD: &str = "endpoint_waypoint.rules";
    let rule = |from: ambit::WaypointRule| {
        let ports = from
            .ports
            .into_iter()
            .map(|number| decode_port(FIELD, number));
        Ok(model::WaypointRule {
            ports: ports.collect::<Result<_, _>>()?,
            principals: decode_string_matches(FIELD, from.principals)?,
            namespaces: decode_string_matches(FIELD, from.namespaces)?,
        })
    };
    from.rules.into_iter().map(rule).collect()
}
