//! Encodes WDS records and authorization policies of the model as protobuf.
//!
//! Every value can be encoded, and a record has the same bytes on every replica, since resource versions are derived
//! from the bytes.

use std::net::IpAddr;

use ambit_model as model;
use bytes::Bytes;
use ipnet::IpNet;
use prost::Message;
use prost_types::Any;

use crate::{ambit, security, workload};

/// Type URL of WDS records, which are workloads or services.
pub const ADDRESS_TYPE_URL: &str = "type.googleapis.com/istio.workload.Address";
/// Type URL of workloads only, to which old clients subscribe.
pub const WORKLOAD_TYPE_URL: &str = "type.googleapis.com/istio.workload.Workload";
/// Type URL of authorization policies.
pub const AUTHORIZATION_TYPE_URL: &str = "type.googleapis.com/istio.security.Authorization";
/// Name of the extension that carries a [`model::EndpointWaypoint`].
pub const WAYPOINT_EXTENSION: &str = "ambit.io/waypoint";
/// Type URL of the extension [`WAYPOINT_EXTENSION`].
pub const WAYPOINT_EXTENSION_TYPE_URL: &str = "type.googleapis.com/ambit.v1.EndpointWaypoint";
/// Name of the extension that carries [`model::Service::session_affinity`].
pub const AFFINITY_EXTENSION: &str = "ambit.io/session-affinity";
/// Type URL of the extension [`AFFINITY_EXTENSION`].
pub const AFFINITY_EXTENSION_TYPE_URL: &str = "type.googleapis.com/ambit.v1.SessionAffinity";

/// Returns the 4 or 16 bytes of an address.
pub fn ip_bytes(ip: IpAddr) -> Bytes {
    match ip {
        IpAddr::V4(ip) => Bytes::copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => Bytes::copy_from_slice(&ip.octets()),
    }
}

// === addresses ===

impl From<&model::NetworkAddress> for workload::NetworkAddress {
    fn from(address: &model::NetworkAddress) -> Self {
        Self {
            network: address.network.to_string(),
            address: ip_bytes(address.address),
            length: None,
        }
    }
}

impl From<&model::CidrVip> for workload::NetworkAddress {
    fn from(vip: &model::CidrVip) -> Self {
        Self {
            network: vip.network.to_string(),
            address: ip_bytes(vip.cidr.network()),
            length: Some(u32::from(vip.cidr.prefix_len())),
        }
    }
}

impl From<&model::NamespacedHostname> for workload::NamespacedHostname {
    fn from(name: &model::NamespacedHostname) -> Self {
        Self {
            namespace: name.namespace.to_string(),
            hostname: name.hostname.to_string(),
        }
    }
}

impl From<&model::GatewayAddress> for workload::GatewayAddress {
    fn from(gateway: &model::GatewayAddress) -> Self {
        use workload::gateway_address::Destination;
        Self {
            hbone_mtls_port: u32::from(gateway.hbone_mtls_port),
            destination: Some(match &gateway.destination {
                model::GatewayDestination::Address(address) => Destination::Address(address.into()),
                model::GatewayDestination::Hostname(hostname) => {
                    Destination::Hostname(hostname.into())
                }
            }),
        }
    }
}

// === workloads ===

impl From<&model::EndpointWaypoint> for workload::Extension {
    fn from(waypoint: &model::EndpointWaypoint) -> Self {
        let config = ambit::EndpointWaypoint {
            waypoint: Some((&waypoint.waypoint).into()),
            identities: waypoint
                .identities
                .iter()
                .map(ToString::to_string)
                .collect(),
            enforce: waypoint.enforce,
            for_services: waypoint.for_services,
            refuse: waypoint.refuse,
            rules: waypoint.rules.as_ref().map(|rules| ambit::WaypointRules {
                rules: rules.iter().map(Into::into).collect(),
            }),
        };
        extension(WAYPOINT_EXTENSION, WAYPOINT_EXTENSION_TYPE_URL, &config)
    }
}

impl From<&model::WaypointRule> for ambit::WaypointRule {
    fn from(rule: &model::WaypointRule) -> Self {
        Self {
            ports: rule.ports.iter().map(|port| u32::from(*port)).collect(),
            principals: rule.principals.iter().map(Into::into).collect(),
            namespaces: rule.namespaces.iter().map(Into::into).collect(),
        }
    }
}

fn session_affinity_extension() -> workload::Extension {
    let config = ambit::SessionAffinity { client_ip: true };
    extension(AFFINITY_EXTENSION, AFFINITY_EXTENSION_TYPE_URL, &config)
}

fn extension(name: &str, type_url: &str, config: &impl Message) -> workload::Extension {
    workload::Extension {
        name: name.to_owned(),
        config: Some(Any {
            type_url: type_url.to_owned(),
            value: config.encode_to_vec(),
        }),
    }
}

fn port_list(ports: &model::PortMap) -> workload::PortList {
    let port = |(service, target): (&u16, &u16)| workload::Port {
        service_port: u32::from(*service),
        target_port: u32::from(*target),
        app_protocol: workload::AppProtocol::Unknown.into(),
    };
    workload::PortList {
        ports: ports.iter().map(port).collect(),
    }
}

fn application_tunnel(tunnel: model::AppTunnel) -> workload::ApplicationTunnel {
    use workload::application_tunnel::Protocol;
    let protocol = match tunnel.protocol {
        model::AppTunnelProtocol::None => Protocol::None,
        model::AppTunnelProtocol::Proxy => Protocol::Proxy,
    };
    workload::ApplicationTunnel {
        protocol: protocol.into(),
        port: tunnel.port.map_or(0, u32::from),
    }
}

impl From<&model::Workload> for workload::Workload {
    fn from(from: &model::Workload) -> Self {
        let tunnel_protocol = match from.protocol {
            model::Protocol::Tcp => workload::TunnelProtocol::None,
            model::Protocol::Hbone => workload::TunnelProtocol::Hbone,
        };
        let status = match from.status {
            model::WorkloadStatus::Healthy => workload::WorkloadStatus::Healthy,
            model::WorkloadStatus::Unhealthy => workload::WorkloadStatus::Unhealthy,
        };
        let network_mode = match from.network_mode {
            model::NetworkMode::Standard => workload::NetworkMode::Standard,
            model::NetworkMode::HostNetwork => workload::NetworkMode::HostNetwork,
        };
        let workload_type = match from.workload_type {
            model::WorkloadKind::Deployment => workload::WorkloadType::Deployment,
            model::WorkloadKind::Cronjob => workload::WorkloadType::Cronjob,
            model::WorkloadKind::Pod => workload::WorkloadType::Pod,
            model::WorkloadKind::Job => workload::WorkloadType::Job,
        };
        let locality = (!from.locality.is_empty()).then(|| workload::Locality {
            region: from.locality.region.to_string(),
            zone: from.locality.zone.to_string(),
            subzone: from.locality.subzone.to_string(),
        });
        let trust_domain = if from.has_default_trust_domain() {
            ""
        } else {
            &from.trust_domain
        };
        Self {
            name: from.name.to_string(),
            namespace: from.namespace.to_string(),
            addresses: from.workload_ips.iter().copied().map(ip_bytes).collect(),
            network: from.network.to_string(),
            tunnel_protocol: tunnel_protocol.into(),
            trust_domain: trust_domain.to_owned(),
            service_account: from.service_account.to_string(),
            waypoint: from.waypoint.as_ref().map(Into::into),
            node: from.node.to_string(),
            canonical_name: from.canonical_name.to_string(),
            canonical_revision: from.canonical_revision.to_string(),
            workload_type: workload_type.into(),
            workload_name: from.workload_name.to_string(),
            native_tunnel: from.native_tunnel,
            authorization_policies: from
                .authorization_policies
                .iter()
                .map(ToString::to_string)
                .collect(),
            status: status.into(),
            cluster_id: from.cluster_id.to_string(),
            network_gateway: from.network_gateway.as_ref().map(Into::into),
            uid: from.uid.to_string(),
            hostname: from.hostname.to_string(),
            services: from
                .services
                .iter()
                .map(|(name, ports)| (name.to_string(), port_list(ports)))
                .collect(),
            application_tunnel: from.application_tunnel.map(application_tunnel),
            locality,
            network_mode: network_mode.into(),
            extensions: from
                .endpoint_waypoint
                .as_ref()
                .map(Into::into)
                .into_iter()
                .collect(),
            capacity: (from.capacity != 1).then_some(from.capacity),
        }
    }
}

// === services ===

impl From<&model::LoadBalancing> for workload::LoadBalancing {
    fn from(from: &model::LoadBalancing) -> Self {
        use workload::load_balancing::{HealthPolicy, Mode, Scope};
        let scope = |scope: &model::LbScope| match scope {
            model::LbScope::Region => Scope::Region,
            model::LbScope::Zone => Scope::Zone,
            model::LbScope::Subzone => Scope::Subzone,
            model::LbScope::Node => Scope::Node,
            model::LbScope::Cluster => Scope::Cluster,
            model::LbScope::Network => Scope::Network,
        };
        let mode = match from.mode {
            model::LbMode::Standard => Mode::UnspecifiedMode,
            model::LbMode::Strict => Mode::Strict,
            model::LbMode::Failover => Mode::Failover,
            model::LbMode::Passthrough => Mode::Passthrough,
        };
        let health_policy = match from.health_policy {
            model::HealthPolicy::OnlyHealthy => HealthPolicy::OnlyHealthy,
            model::HealthPolicy::AllowAll => HealthPolicy::AllowAll,
        };
        Self {
            routing_preference: from
                .routing_preferences
                .iter()
                .map(|one| scope(one).into())
                .collect(),
            mode: mode.into(),
            health_policy: health_policy.into(),
        }
    }
}

fn service_ports(from: &model::Service) -> Vec<workload::Port> {
    let mut ports = port_list(&from.ports).ports;
    for port in &mut ports {
        let number = u16::try_from(port.service_port).unwrap_or_default();
        port.app_protocol = workload::AppProtocol::from(from.app_protocol(number)).into();
    }
    ports
}

impl From<model::AppProtocol> for workload::AppProtocol {
    fn from(from: model::AppProtocol) -> Self {
        match from {
            model::AppProtocol::Unknown => Self::Unknown,
            model::AppProtocol::Http11 => Self::Http11,
            model::AppProtocol::Http2 => Self::Http2,
            model::AppProtocol::Grpc => Self::Grpc,
            model::AppProtocol::Tls => Self::Tls,
            model::AppProtocol::Tcp => Self::Tcp,
        }
    }
}

impl From<&model::Service> for workload::Service {
    fn from(from: &model::Service) -> Self {
        let ip_families = match from.ip_families {
            None => workload::IpFamilies::Automatic,
            Some(model::IpFamilies::Ipv4) => workload::IpFamilies::Ipv4Only,
            Some(model::IpFamilies::Ipv6) => workload::IpFamilies::Ipv6Only,
            Some(model::IpFamilies::Dual) => workload::IpFamilies::Dual,
        };
        let visibility = match from.visibility {
            model::Visibility::Public => workload::Visibility::Public,
            model::Visibility::Namespace => workload::Visibility::Namespace,
        };
        let weighted = |one: &model::WeightedWaypoint| workload::WeightedWaypoint {
            destination: Some((&one.destination).into()),
            weight: one.weight,
        };
        Self {
            name: from.name.to_string(),
            namespace: from.namespace.to_string(),
            hostname: from.hostname.to_string(),
            addresses: from
                .vips
                .iter()
                .map(Into::into)
                .chain(from.cidr_vips.iter().map(Into::into))
                .collect(),
            ports: service_ports(from),
            subject_alt_names: from
                .subject_alt_names
                .iter()
                .map(ToString::to_string)
                .collect(),
            waypoint: from.waypoint.as_ref().map(Into::into),
            load_balancing: from.load_balancing.as_ref().map(Into::into),
            ip_families: ip_families.into(),
            extensions: from
                .session_affinity
                .then(session_affinity_extension)
                .into_iter()
                .collect(),
            canonical: from.canonical,
            ingress_use_waypoint: false,
            weighted_waypoints: from.weighted_waypoints.iter().map(weighted).collect(),
            visibility: visibility.into(),
        }
    }
}

impl From<workload::Workload> for workload::Address {
    fn from(workload: workload::Workload) -> Self {
        Self {
            r#type: Some(workload::address::Type::Workload(workload)),
        }
    }
}

impl From<workload::Service> for workload::Address {
    fn from(service: workload::Service) -> Self {
        Self {
            r#type: Some(workload::address::Type::Service(service)),
        }
    }
}

// === policies ===

impl From<&model::StringMatch> for security::StringMatch {
    fn from(from: &model::StringMatch) -> Self {
        use security::string_match::MatchType;
        Self {
            match_type: Some(match from {
                model::StringMatch::Exact(text) => MatchType::Exact(text.to_string()),
                model::StringMatch::Prefix(text) => MatchType::Prefix(text.to_string()),
                model::StringMatch::Suffix(text) => MatchType::Suffix(text.to_string()),
                model::StringMatch::Presence => MatchType::Presence(()),
            }),
        }
    }
}

impl From<&IpNet> for security::Address {
    fn from(net: &IpNet) -> Self {
        Self {
            address: ip_bytes(net.network()),
            length: u32::from(net.prefix_len()),
        }
    }
}

impl From<&model::ServiceAccountMatch> for security::ServiceAccountMatch {
    fn from(from: &model::ServiceAccountMatch) -> Self {
        Self {
            namespace: from.namespace.to_string(),
            service_account: from.service_account.to_string(),
        }
    }
}

impl From<&model::Match> for security::Match {
    fn from(from: &model::Match) -> Self {
        let texts = |texts: &[model::StringMatch]| texts.iter().map(Into::into).collect();
        let nets = |nets: &[IpNet]| nets.iter().map(Into::into).collect();
        let ports = |ports: &[u16]| ports.iter().copied().map(u32::from).collect();
        let accounts =
            |accounts: &[model::ServiceAccountMatch]| accounts.iter().map(Into::into).collect();
        Self {
            namespaces: texts(&from.namespaces),
            not_namespaces: texts(&from.not_namespaces),
            principals: texts(&from.principals),
            not_principals: texts(&from.not_principals),
            source_ips: nets(&from.source_ips),
            not_source_ips: nets(&from.not_source_ips),
            destination_ips: nets(&from.destination_ips),
            not_destination_ips: nets(&from.not_destination_ips),
            destination_ports: ports(&from.destination_ports),
            not_destination_ports: ports(&from.not_destination_ports),
            service_accounts: accounts(&from.service_accounts),
            not_service_accounts: accounts(&from.not_service_accounts),
            extensions: Vec::new(),
        }
    }
}

impl From<&model::Authorization> for security::Authorization {
    fn from(from: &model::Authorization) -> Self {
        let scope = match from.scope {
            model::Scope::Global => security::Scope::Global,
            model::Scope::Namespace => security::Scope::Namespace,
            model::Scope::WorkloadSelector => security::Scope::WorkloadSelector,
        };
        let action = match from.action {
            model::Action::Allow => security::Action::Allow,
            model::Action::Deny => security::Action::Deny,
        };
        let clause = |clause: &model::Clause| security::Clause {
            matches: clause.iter().map(Into::into).collect(),
        };
        let rule = |rule: &model::Rule| security::Rule {
            clauses: rule.iter().map(clause).collect(),
        };
        Self {
            name: from.name.to_string(),
            namespace: from.namespace.to_string(),
            scope: scope.into(),
            action: action.into(),
            rules: from.rules.iter().map(rule).collect(),
            dry_run: from.dry_run,
            extensions: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_left_out() {
        let sent = workload::Workload::from(&model::Workload {
            uid: "c1//Pod/shop/cart".into(),
            ..model::Workload::default()
        });
        assert_eq!(
            (sent.trust_domain.as_str(), sent.capacity, sent.locality),
            ("", None, None)
        );
    }

    #[test]
    fn a_prefix_has_a_length_and_an_address_has_none() {
        let service = workload::Service::from(&model::Service {
            vips: vec!["/10.0.0.1".parse().unwrap()],
            cidr_vips: vec![model::CidrVip {
                network: "".into(),
                cidr: "10.1.2.3/16".parse().unwrap(),
            }],
            ..model::Service::default()
        });
        assert_eq!(service.addresses[0].length, None);
        assert_eq!(service.addresses[1].length, Some(16));
        assert_eq!(service.addresses[1].address.as_ref(), [10, 1, 0, 0]);
    }

    #[test]
    fn the_extension_names_the_waypoint_of_an_endpoint() {
        let waypoint = model::EndpointWaypoint {
            waypoint: model::GatewayAddress {
                destination: "shop/wp.shop.svc.cluster.local".parse().unwrap(),
                hbone_mtls_port: 15008,
            },
            identities: vec![model::Identity::new("cluster.local", "shop", "wp")],
            enforce: true,
            refuse: true,
            for_services: true,
            rules: None,
        };
        let sent = workload::Workload::from(&model::Workload {
            endpoint_waypoint: Some(waypoint),
            ..model::Workload::default()
        });
        let extension = &sent.extensions[0];
        assert_eq!(extension.name, WAYPOINT_EXTENSION);
        let config = extension.config.as_ref().unwrap();
        let read = ambit::EndpointWaypoint::decode(config.value.as_slice()).unwrap();
        assert_eq!(read.identities, ["spiffe://cluster.local/ns/shop/sa/wp"]);
        assert!(read.enforce && read.refuse);
    }

    #[test]
    fn the_same_record_has_the_same_bytes() {
        let mut from = model::Workload::default();
        for index in 0..64_u16 {
            let name = model::NamespacedHostname::new("shop", format!("s{index}.shop.svc"));
            from.services.insert(name, [(80, 8080 + index)].into());
        }
        let bytes = || workload::Address::from(workload::Workload::from(&from)).encode_to_vec();
        assert_eq!(bytes(), bytes());
        assert!((1..20).all(|_| bytes() == bytes()));
    }
}
