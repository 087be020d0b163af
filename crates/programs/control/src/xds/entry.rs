//! A record as it is sent: encoded once, with its version and what it can be found by.

use ambit_derive::ServiceRecord;
use ambit_model::{ArcStr, Authorization, NetworkMode, Workload};
use ambit_wire::{security, workload};
use bytes::Bytes;
use prost::Message;
use xxhash_rust::xxh64::xxh64;

/// A set of records with names of its own. Further ones are further values; the store makes them as they are
/// written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Collection(&'static str);

impl Collection {
    /// Workloads and services.
    pub const ADDRESSES: Self = Self("addresses");
    /// Policies.
    pub const POLICIES: Self = Self("policies");
    /// Settings of waypoints.
    pub const WAYPOINT_GATEWAYS: Self = Self("waypoint gateways");
    /// What waypoints serve.
    pub const WAYPOINT_SERVICES: Self = Self("waypoint services");
    /// What waypoints enforce.
    pub const WAYPOINT_POLICIES: Self = Self("waypoint policies");
    /// How waypoints treat the endpoints of services.
    pub const WAYPOINT_DESTINATIONS: Self = Self("waypoint destinations");
    /// What waypoints authenticate by.
    pub const WAYPOINT_AUTHENTICATIONS: Self = Self("waypoint authentications");
    /// How many requests waypoints let pass.
    pub const WAYPOINT_RATE_LIMITS: Self = Self("waypoint rate limits");
    /// What waypoints tell of requests.
    pub const WAYPOINT_TELEMETRY: Self = Self("waypoint telemetry");
    /// What runs in waypoints.
    pub const WAYPOINT_EXTENSIONS: Self = Self("waypoint extensions");
}

/// What a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A workload.
    Workload {
        /// Node it runs on.
        node: ArcStr,
        /// Names of the services it is an endpoint of.
        services: Vec<ArcStr>,
    },
    /// A service.
    Service,
    /// A policy.
    Policy,
    /// Of waypoints.
    Waypoint,
}

/// One record as it is sent. Shared by all clients.
#[derive(Debug)]
pub struct Entry {
    /// Resource name.
    pub name: ArcStr,
    /// Hash of `value`, as hex.
    pub version: String,
    /// As its type is encoded: `istio.workload.Address` and so on.
    pub value: Bytes,
    /// Further names clients may ask for it by.
    pub aliases: Vec<ArcStr>,
    /// What it is.
    pub kind: EntryKind,
}

impl Entry {
    fn new(name: ArcStr, value: Bytes, aliases: Vec<ArcStr>, kind: EntryKind) -> Self {
        let version = format!("{:x}", xxh64(&value, 0));
        Self {
            name,
            version,
            value,
            aliases,
            kind,
        }
    }

    pub(super) fn workload(from: &Workload) -> Self {
        let sent: workload::Address = workload::Workload::from(from).into();
        // The addresses of a host-network pod are its node's: it is not found by them.
        let by_ip = from.network_mode == NetworkMode::Standard;
        let ips = from.workload_ips.iter().filter(|_| by_ip);
        let kind = EntryKind::Workload {
            node: from.node.clone(),
            services: from
                .services
                .keys()
                .map(|name| ArcStr::from(name.to_string()))
                .collect(),
        };
        let aliases = ips
            .map(|ip| arcstr::format!("{}/{ip}", from.network))
            .collect();
        Self::new(from.uid.clone(), sent.encode_to_vec().into(), aliases, kind)
    }

    pub(super) fn service(from: &ServiceRecord) -> Self {
        let mut sent = workload::Service::from(&from.service);
        for (port, protocol) in sent.ports.iter_mut().zip(&from.app_protocols) {
            port.app_protocol = workload::AppProtocol::from(*protocol).into();
        }
        sent.ingress_use_waypoint = from.ingress_use_waypoint;
        let sent: workload::Address = sent.into();
        let vips = from
            .service
            .vips
            .iter()
            .map(|vip| ArcStr::from(vip.to_string()));
        let cidrs = from.service.cidr_vips.iter().map(|vip| {
            arcstr::format!(
                "{}/{}/{}",
                vip.network,
                vip.cidr.network(),
                vip.cidr.prefix_len()
            )
        });
        let name = from.service.namespaced_hostname().to_string();
        Self::new(
            name.into(),
            sent.encode_to_vec().into(),
            vips.chain(cidrs).collect(),
            EntryKind::Service,
        )
    }

    /// A record of waypoints, by its name.
    pub(super) fn waypoint(name: ArcStr, sent: &impl Message) -> Self {
        let value = sent.encode_to_vec().into();
        Self::new(name, value, Vec::new(), EntryKind::Waypoint)
    }

    pub(super) fn policy(from: &Authorization) -> Self {
        let sent = security::Authorization::from(from);
        Self::new(
            from.key().to_string().into(),
            sent.encode_to_vec().into(),
            Vec::new(),
            EntryKind::Policy,
        )
    }
}
