//! Resource types that are served over xDS: their names in the protocol, in status and in metrics, and for each the
//! collection, encoding and audience of its records.

use ambit_model::WaypointRecordType;
use ambit_wire::{
    encode::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL, WORKLOAD_TYPE_URL},
    records,
};

use crate::encoded_record::{Collection, EncodedRecord, RecordKind};

/// Resource type of xDS. The order is that in which pushes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// Layer 4 policies.
    Authorization,
    /// Workloads and services.
    Address,
    /// Workloads alone, without services.
    Workload,
    /// Records of one type for waypoints.
    Waypoint(WaypointRecordType),
}

/// Clients that may subscribe to a resource type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subscribers {
    /// Only node proxies, to all records.
    NodeProxies,
    /// Node proxies to all records, and waypoints to single records by name.
    NodeProxiesAndWaypoints,
    /// Only waypoints, each to the records of its Gateway.
    Waypoints,
}

impl ResourceType {
    /// Iterates over all resource types in the order of pushes.
    pub fn all() -> impl Iterator<Item = Self> {
        let of_nodes = [Self::Authorization, Self::Address, Self::Workload];
        let of_waypoints = WaypointRecordType::ALL.iter().copied();
        of_nodes.into_iter().chain(of_waypoints.map(Self::Waypoint))
    }

    /// Returns the resource type with this type URL.
    pub fn from_type_url(url: &str) -> Option<Self> {
        Self::all().find(|one| one.type_url() == url)
    }

    /// Returns the type URL of the resource type.
    pub fn type_url(self) -> &'static str {
        match self {
            Self::Authorization => AUTHORIZATION_TYPE_URL,
            Self::Address => ADDRESS_TYPE_URL,
            Self::Workload => WORKLOAD_TYPE_URL,
            Self::Waypoint(of) => records::type_url(of),
        }
    }

    /// Returns the short name of the resource type, for status and metrics.
    pub fn short_name(self) -> &'static str {
        match self {
            Self::Authorization => "WADS",
            Self::Address => "WDS",
            Self::Workload => "WLDS",
            Self::Waypoint(of) => records::short_name(of),
        }
    }

    /// Returns the collection that has the type's records.
    pub fn collection(self) -> Collection {
        match self {
            Self::Authorization => Collection::Policies,
            Self::Address | Self::Workload => Collection::Addresses,
            Self::Waypoint(of) => Collection::Waypoint(of),
        }
    }

    /// Returns whether every record of the type's collection belongs to the type.
    pub fn is_whole_collection(self) -> bool {
        self != Self::Workload
    }

    /// Returns whether a record of the type's collection belongs to the type.
    pub fn contains(self, entry: &EncodedRecord) -> bool {
        self.is_whole_collection() || is_workload(entry)
    }

    /// Returns the encoding of a record for this type, which for workloads is a part of the `Address`.
    pub(crate) fn encoded_value(self, entry: &EncodedRecord) -> &[u8] {
        match self {
            Self::Workload => workload_in_address(entry),
            _ => &entry.value,
        }
    }

    /// Returns the clients that may subscribe to this type.
    pub(crate) fn subscribers(self) -> Subscribers {
        match self {
            Self::Authorization | Self::Workload => Subscribers::NodeProxies,
            Self::Address => Subscribers::NodeProxiesAndWaypoints,
            Self::Waypoint(_) => Subscribers::Waypoints,
        }
    }

    /// Returns whether clients always receive all records of the type.
    pub(crate) fn is_always_wildcard(self) -> bool {
        matches!(self, Self::Authorization | Self::Waypoint(_))
    }

    /// Returns whether records of other types reference records of this type. A client gets the referenced records
    /// first, and loses one only when no record of the client references it any more.
    pub(crate) fn is_referenced(self) -> bool {
        self == Self::Authorization
    }
}

fn is_workload(entry: &EncodedRecord) -> bool {
    matches!(entry.kind, RecordKind::Workload { .. })
}

/// Returns the encoded workload within an encoded `Address`: the bytes after the field's tag and length.
fn workload_in_address(entry: &EncodedRecord) -> &[u8] {
    if !is_workload(entry) {
        return &entry.value;
    }
    let mut tail: &[u8] = &entry.value;
    let key = prost::encoding::decode_key(&mut tail);
    let length = prost::encoding::decode_varint(&mut tail);
    if key.is_ok() && length.is_ok() {
        tail
    } else {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_url_and_pushed_in_order() {
        for of in ResourceType::all() {
            assert_eq!(ResourceType::from_type_url(of.type_url()), Some(of));
        }
        assert!(ResourceType::all().is_sorted_by(|a, b| a < b));
        assert!(ResourceType::all().is_sorted_by_key(|of| !of.is_referenced()));
    }
}
