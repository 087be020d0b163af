//! The types of resources that are served. Each is a value; whatever depends on the type asks it, so that a
//! further type is a further value here, and a row in [`ResourceType::ALL`].

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
};

use ambit_wire::encode::{
    ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL, WAYPOINT_AUTHENTICATION_TYPE_URL,
    WAYPOINT_DESTINATION_TYPE_URL, WAYPOINT_GATEWAY_TYPE_URL, WAYPOINT_PLUGIN_TYPE_URL,
    WAYPOINT_POLICY_TYPE_URL, WAYPOINT_RATE_LIMIT_TYPE_URL, WAYPOINT_SERVICE_TYPE_URL,
    WAYPOINT_TELEMETRY_TYPE_URL, WORKLOAD_TYPE_URL,
};

use super::entry::{Collection, Entry, EntryKind};

/// A type of resource. Ordered as pushes go out.
#[derive(Clone, Copy, Debug)]
pub struct ResourceType(&'static Definition);

#[derive(Debug)]
struct Definition {
    type_url: &'static str,
    short_name: &'static str,
    collection: Collection,
    /// Which records of the collection are of the type; all of them if `None`.
    part: Option<fn(&Entry) -> bool>,
    /// A record in the form of the type.
    value: fn(&Entry) -> &[u8],
    /// Pushes of lower ones go out first.
    order: u8,
    audience: Audience,
    /// Clients get all of them, whatever they ask for.
    is_always_wildcard: bool,
    /// Records of other types name those of this one: a client gets these first, and loses one only when
    /// nothing that it has names it any more.
    is_referenced: bool,
}

/// Who may see records of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// Node proxies.
    NodeProxies,
    /// They, and waypoints those that they ask for by name.
    Everybody,
    /// Waypoints, each those of its Gateway.
    Waypoints,
}

static AUTHORIZATION: Definition = Definition {
    type_url: AUTHORIZATION_TYPE_URL,
    short_name: "WADS",
    collection: Collection::POLICIES,
    part: None,
    value: whole,
    order: 0,
    audience: Audience::NodeProxies,
    is_always_wildcard: true,
    is_referenced: true,
};

static ADDRESS: Definition = Definition {
    type_url: ADDRESS_TYPE_URL,
    short_name: "WDS",
    collection: Collection::ADDRESSES,
    part: None,
    value: whole,
    order: 1,
    audience: Audience::Everybody,
    is_always_wildcard: false,
    is_referenced: false,
};

static WORKLOAD: Definition = Definition {
    type_url: WORKLOAD_TYPE_URL,
    short_name: "WLDS",
    part: Some(is_workload),
    value: behind_address,
    order: 2,
    audience: Audience::NodeProxies,
    ..ADDRESS
};

static WAYPOINT_POLICY: Definition = Definition {
    type_url: WAYPOINT_POLICY_TYPE_URL,
    short_name: "WPPDS",
    collection: Collection::WAYPOINT_POLICIES,
    part: None,
    value: whole,
    order: 3,
    audience: Audience::Waypoints,
    is_always_wildcard: true,
    is_referenced: false,
};

static WAYPOINT_GATEWAY: Definition = Definition {
    type_url: WAYPOINT_GATEWAY_TYPE_URL,
    short_name: "WPGDS",
    collection: Collection::WAYPOINT_GATEWAYS,
    order: 4,
    ..WAYPOINT_POLICY
};

static WAYPOINT_SERVICE: Definition = Definition {
    type_url: WAYPOINT_SERVICE_TYPE_URL,
    short_name: "WPSDS",
    collection: Collection::WAYPOINT_SERVICES,
    order: 5,
    ..WAYPOINT_POLICY
};

static WAYPOINT_DESTINATION: Definition = Definition {
    type_url: WAYPOINT_DESTINATION_TYPE_URL,
    short_name: "WPDDS",
    collection: Collection::WAYPOINT_DESTINATIONS,
    order: 6,
    ..WAYPOINT_POLICY
};

static WAYPOINT_AUTHENTICATION: Definition = Definition {
    type_url: WAYPOINT_AUTHENTICATION_TYPE_URL,
    short_name: "WPADS",
    collection: Collection::WAYPOINT_AUTHENTICATIONS,
    order: 7,
    ..WAYPOINT_POLICY
};

static WAYPOINT_EXTENSION: Definition = Definition {
    type_url: WAYPOINT_PLUGIN_TYPE_URL,
    short_name: "WPXDS",
    collection: Collection::WAYPOINT_EXTENSIONS,
    order: 8,
    ..WAYPOINT_POLICY
};

static WAYPOINT_RATE_LIMIT: Definition = Definition {
    type_url: WAYPOINT_RATE_LIMIT_TYPE_URL,
    short_name: "WPRDS",
    collection: Collection::WAYPOINT_RATE_LIMITS,
    order: 10,
    ..WAYPOINT_POLICY
};

static WAYPOINT_TELEMETRY: Definition = Definition {
    type_url: WAYPOINT_TELEMETRY_TYPE_URL,
    short_name: "WPTDS",
    collection: Collection::WAYPOINT_TELEMETRY,
    order: 9,
    ..WAYPOINT_POLICY
};

impl ResourceType {
    /// Policies.
    pub const AUTHORIZATION: Self = Self(&AUTHORIZATION);
    /// Workloads and services.
    pub const ADDRESS: Self = Self(&ADDRESS);
    /// Workloads alone.
    pub const WORKLOAD: Self = Self(&WORKLOAD);

    /// What waypoints enforce.
    pub const WAYPOINT_POLICY: Self = Self(&WAYPOINT_POLICY);
    /// Settings of waypoints.
    pub const WAYPOINT_GATEWAY: Self = Self(&WAYPOINT_GATEWAY);
    /// What waypoints serve.
    pub const WAYPOINT_SERVICE: Self = Self(&WAYPOINT_SERVICE);
    /// How waypoints treat the endpoints of services.
    pub const WAYPOINT_DESTINATION: Self = Self(&WAYPOINT_DESTINATION);
    /// What waypoints authenticate by.
    pub const WAYPOINT_AUTHENTICATION: Self = Self(&WAYPOINT_AUTHENTICATION);
    /// How many requests waypoints let pass.
    pub const WAYPOINT_RATE_LIMIT: Self = Self(&WAYPOINT_RATE_LIMIT);
    /// What waypoints tell of requests.
    pub const WAYPOINT_TELEMETRY: Self = Self(&WAYPOINT_TELEMETRY);
    /// What runs in waypoints.
    pub const WAYPOINT_EXTENSION: Self = Self(&WAYPOINT_EXTENSION);

    /// Every type that is served.
    pub const ALL: &[Self] = &[
        Self::AUTHORIZATION,
        Self::ADDRESS,
        Self::WORKLOAD,
        Self::WAYPOINT_POLICY,
        Self::WAYPOINT_GATEWAY,
        Self::WAYPOINT_SERVICE,
        Self::WAYPOINT_DESTINATION,
        Self::WAYPOINT_AUTHENTICATION,
        Self::WAYPOINT_EXTENSION,
        Self::WAYPOINT_TELEMETRY,
        Self::WAYPOINT_RATE_LIMIT,
    ];

    /// The type of a URL.
    pub fn from_type_url(url: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|one| one.type_url() == url)
    }

    /// Its URL.
    pub fn type_url(self) -> &'static str {
        self.0.type_url
    }

    /// Short name, for status and metrics.
    pub fn short_name(self) -> &'static str {
        self.0.short_name
    }

    /// Where its records are.
    pub fn collection(self) -> Collection {
        self.0.collection
    }

    /// Whether all records of the collection are of the type.
    pub fn is_whole_collection(self) -> bool {
        self.0.part.is_none()
    }

    /// Whether a record of the collection is of the type.
    pub fn has(self, entry: &Entry) -> bool {
        self.0.part.is_none_or(|part| part(entry))
    }

    /// A record in the form of the type.
    pub(super) fn value(self, entry: &Entry) -> &[u8] {
        (self.0.value)(entry)
    }

    /// Who may see them.
    pub(super) fn audience(self) -> Audience {
        self.0.audience
    }

    /// Whether clients get all of them, whatever they ask for.
    pub(super) fn is_always_wildcard(self) -> bool {
        self.0.is_always_wildcard
    }

    /// Whether records of other types name those of this one.
    pub(super) fn is_referenced(self) -> bool {
        self.0.is_referenced
    }
}

impl PartialEq for ResourceType {
    fn eq(&self, other: &Self) -> bool {
        self.type_url() == other.type_url()
    }
}

impl Eq for ResourceType {}

impl Hash for ResourceType {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.type_url().hash(state);
    }
}

impl PartialOrd for ResourceType {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ResourceType {
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |of: &Self| (of.0.order, of.type_url());
        place(self).cmp(&place(other))
    }
}

fn whole(entry: &Entry) -> &[u8] {
    &entry.value
}

fn is_workload(entry: &Entry) -> bool {
    matches!(entry.kind, EntryKind::Workload { .. })
}

/// An `Address` is a `Workload` behind one key and a length, so the workload alone is its tail.
fn behind_address(entry: &Entry) -> &[u8] {
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
    fn each_type_is_found_by_its_url_and_what_others_name_comes_first() {
        for of in ResourceType::ALL {
            assert_eq!(ResourceType::from_type_url(of.type_url()), Some(*of));
        }
        assert!(ResourceType::ALL.is_sorted_by(|a, b| a < b));
        assert!(ResourceType::ALL.is_sorted_by_key(|of| !of.is_referenced()));
    }
}
