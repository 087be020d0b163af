//! Encoded xDS record, with its version and the keys by which it is found.

use ambit_derive::ServiceRecord;
use ambit_model::{
    ArcStr, Authorization, NetworkMode, WaypointRecord, WaypointRecordType, Workload,
};
use ambit_wire::{records, security, workload};
use bytes::Bytes;
use prost::Message;
use xxhash_rust::xxh64::xxh64;

/// Set of records whose names are unique within the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collection {
    /// Records of workloads and services.
    Addresses,
    /// Records of layer 4 policies.
    Policies,
    /// Records of one type for waypoints.
    Waypoint(WaypointRecordType),
}

/// Kind of an encoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Record of a workload.
    Workload {
        /// Node of the workload.
        node: ArcStr,
        /// Names of the services of which the workload is an endpoint.
        services: Vec<ArcStr>,
    },
    /// Record of a service.
    Service,
    /// Layer 4 policy.
    Policy,
    /// Record for a waypoint.
    Waypoint,
}

/// Encoded record, shared by all clients.
#[derive(Debug)]
pub struct EncodedRecord {
    /// Name of the resource.
    pub name: ArcStr,
    /// Hash of `value`, as hex.
    pub version: String,
    /// Encoded resource, for instance of type `istio.workload.Address`.
    pub value: Bytes,
    /// Aliases by which clients may subscribe.
    pub aliases: Vec<ArcStr>,
    /// Kind of the record.
    pub kind: RecordKind,
}

impl EncodedRecord {
    fn new(name: ArcStr, value: Bytes, aliases: Vec<ArcStr>, kind: RecordKind) -> Self {
        let version = format!("{:x}", xxh64(&value, 0));
        Self {
            name,
            version,
            value,
            aliases,
            kind,
        }
    }

    pub(crate) fn from_workload(from: &Workload) -> Self {
        let sent: workload::Address = workload::Workload::from(from).into();
        // The addresses of a host-network pod belong to its node, and are no aliases of the pod.
        let by_ip = from.network_mode == NetworkMode::Standard;
        let ips = from.workload_ips.iter().filter(|_| by_ip);
        let kind = RecordKind::Workload {
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

    pub(crate) fn from_service(from: &ServiceRecord) -> Self {
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
            RecordKind::Service,
        )
    }

    /// Encodes a record for a waypoint under its resource name.
    pub(crate) fn from_waypoint(name: ArcStr, record: &WaypointRecord) -> Self {
        let value = records::encode(record).into();
        Self::new(name, value, Vec::new(), RecordKind::Waypoint)
    }

    pub(crate) fn from_policy(from: &Authorization) -> Self {
        let sent = security::Authorization::from(from);
        Self::new(
            from.key().to_string().into(),
            sent.encode_to_vec().into(),
            Vec::new(),
            RecordKind::Policy,
        )
    }
}
