//! Records that the control plane sends to waypoints: their types in push order, and an enum over all of them.

use std::fmt;

use arcstr::ArcStr;
use serde::Serialize;

use crate::{
    Authentication, GatewayName, HttpPolicy, RateLimit, TelemetryScope, WaypointDestination,
    WaypointExtension, WaypointGateway, WaypointService, WaypointTelemetry,
};

/// Invokes the macro `$then` with every record type in push order: `Variant(Type),` for each, where `Type` is a type of
/// this crate. Policies are pushed before the services that they protect.
#[macro_export]
macro_rules! for_each_waypoint_record {
    ($then:ident) => {
        $then! {
            Policy(HttpPolicy),
            Gateway(WaypointGateway),
            Service(WaypointService),
            Destination(WaypointDestination),
            Authentication(Authentication),
            Extension(WaypointExtension),
            Telemetry(WaypointTelemetry),
            RateLimit(RateLimit),
        }
    };
}

macro_rules! define {
    ($($variant:ident($record:ident),)*) => {
        /// Type of a waypoint record. The order of the types is the order in which they are pushed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum WaypointRecordType {
            $(
                #[doc = concat!("Type of [`", stringify!($record), "`].")]
                $variant,
            )*
        }

        impl WaypointRecordType {
            /// All record types in push order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
        }

        /// Record of any type that the control plane sends to a waypoint.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        pub enum WaypointRecord {
            $(
                #[doc = concat!("Record of type [`", stringify!($record), "`].")]
                $variant(Box<$record>),
            )*
        }

        impl WaypointRecord {
            /// Returns the type of the record.
            pub fn record_type(&self) -> WaypointRecordType {
                match self {
                    $(Self::$variant(_) => WaypointRecordType::$variant,)*
                }
            }
        }

        $(
            impl From<$record> for WaypointRecord {
                fn from(record: $record) -> Self {
                    Self::$variant(Box::new(record))
                }
            }

            impl IsWaypointRecord for $record {
                const TYPE: WaypointRecordType = WaypointRecordType::$variant;

                fn from_record(record: &WaypointRecord) -> Option<&Self> {
                    match record {
                        WaypointRecord::$variant(record) => Some(record),
                        _ => None,
                    }
                }
            }
        )*
    };
}

for_each_waypoint_record!(define);

impl WaypointRecordType {
    /// Returns the key under which config dumps list records of this type.
    pub fn config_dump_key(self) -> &'static str {
        match self {
            Self::Policy => "policies",
            Self::Gateway => "gateway",
            Self::Service => "services",
            Self::Destination => "destinations",
            Self::Authentication => "authentications",
            Self::Extension => "plugins",
            Self::Telemetry => "telemetry",
            Self::RateLimit => "limits",
        }
    }
}

/// Type of the model that is sent as a waypoint record.
pub trait IsWaypointRecord: Sized + 'static {
    /// Record type of the implementing type.
    const TYPE: WaypointRecordType;

    /// Returns the record's contents if it is of this type.
    fn from_record(record: &WaypointRecord) -> Option<&Self>;
}

impl WaypointRecord {
    /// Returns the name of the record, unique among the waypoint's records of its type. Empty for a type of which a
    /// waypoint has one record.
    pub fn name(&self) -> ArcStr {
        match self {
            Self::Gateway(_) => ArcStr::new(),
            Self::Service(service) => service.service.to_string().into(),
            Self::Destination(destination) => destination.service.to_string().into(),
            Self::Policy(policy) => policy.key.to_string().into(),
            Self::Authentication(authentication) => authentication.key.to_string().into(),
            Self::Extension(extension) => extension.key().into(),
            Self::RateLimit(limit) => limit.key.to_string().into(),
            Self::Telemetry(telemetry) => match &telemetry.scope {
                TelemetryScope::Waypoint => ArcStr::new(),
                TelemetryScope::Namespace(namespace) => namespace.clone(),
                TelemetryScope::Service(service) => service.to_string().into(),
            },
        }
    }
}

/// Key of a waypoint record: waypoint, type and name. Displayed as the xDS resource name, `namespace/gateway` or
/// `namespace/gateway/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaypointRecordKey {
    /// Gateway of the waypoint.
    pub gateway: GatewayName,
    /// Type of the record.
    pub record_type: WaypointRecordType,
    /// Name of the record, see [`WaypointRecord::name`].
    pub name: ArcStr,
}

impl WaypointRecordKey {
    /// Returns the key of a record of a waypoint.
    pub fn new(gateway: GatewayName, record: &WaypointRecord) -> Self {
        Self {
            gateway,
            record_type: record.record_type(),
            name: record.name(),
        }
    }
}

impl fmt::Display for WaypointRecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.gateway.fmt(f)?;
        match self.name.as_str() {
            "" => Ok(()),
            name => write!(f, "/{name}"),
        }
    }
}
