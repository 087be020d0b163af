//! Records that the control plane sends to waypoints: one table of their types, and one value for a record of any.

use std::fmt;

use arcstr::ArcStr;
use serde::Serialize;

use crate::{
    Authentication, GatewayName, HttpPolicy, RateLimit, TelemetryScope, WaypointDestination,
    WaypointExtension, WaypointGateway, WaypointService, WaypointTelemetry,
};

/// Invokes the macro `$then` with every type of record, in the order of pushes: `Variant(Type),` for each, where `Type`
/// is a type of this crate. A policy comes before the services that it restricts.
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
        /// Type of a record. Ordered as pushes go out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum WaypointRecordType {
            $(
                #[doc = concat!("Type of [`", stringify!($record), "`].")]
                $variant,
            )*
        }

        impl WaypointRecordType {
            /// Every type, in the order of pushes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
        }

        /// Record of a waypoint.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        pub enum WaypointRecord {
            $(
                #[doc = concat!("Record of type [`", stringify!($record), "`].")]
                $variant(Box<$record>),
            )*
        }

        impl WaypointRecord {
            /// Type of the record.
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

                fn of(record: &WaypointRecord) -> Option<&Self> {
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
    /// Name of the records of the type in dumps.
    pub fn section(self) -> &'static str {
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

/// Types of this crate that are records of waypoints.
pub trait IsWaypointRecord: Sized + 'static {
    /// Type of the record.
    const TYPE: WaypointRecordType;

    /// Reference to the contents of a record; `None` if it is of another type.
    fn of(record: &WaypointRecord) -> Option<&Self>;
}

impl WaypointRecord {
    /// Name of the record among those of its type and waypoint; empty for a record that is there once.
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

/// Identity of a record: its waypoint, its type, and its name among those. Printed as the name of the xDS resource,
/// `namespace/gateway` or `namespace/gateway/NAME`.
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
    /// Identity of a record of a waypoint.
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
