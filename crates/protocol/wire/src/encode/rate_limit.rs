//! Rate limits of waypoints, as they are sent.

use ambit_model as model;

use super::waypoint::{all, milliseconds, optional};
use crate::ambit as wire;

/// Type URL of the rate limits of waypoints.
pub const WAYPOINT_RATE_LIMIT_TYPE_URL: &str = "type.googleapis.com/ambit.v1.WaypointRateLimit";

impl From<&model::RateLimit> for wire::WaypointRateLimit {
    fn from(from: &model::RateLimit) -> Self {
        Self {
            namespace: from.key.namespace.to_string(),
            name: from.key.name.to_string(),
            for_gateway: from.for_gateway,
            services: from.services.iter().map(Into::into).collect(),
            local: all(&from.local),
            global: from.global.as_ref().map(Into::into),
            dry_run: from.dry_run,
            fail_open: from.fail_open,
            tells: from.tells,
            not_understood: optional(from.not_understood.as_ref()),
        }
    }
}

impl From<&model::LocalLimit> for wire::LocalLimit {
    fn from(from: &model::LocalLimit) -> Self {
        Self {
            matches: all(&from.matches),
            by: all(&from.by),
            requests: from.requests,
            per: milliseconds(Some(from.per)),
            burst: from.burst,
            buckets: from.buckets,
        }
    }
}

impl From<&model::LimitKey> for wire::LimitKey {
    fn from(from: &model::LimitKey) -> Self {
        use wire::limit_key::Kind;
        Self {
            kind: Some(match from {
                model::LimitKey::Principal => Kind::Principal(true),
                model::LimitKey::Namespace => Kind::Namespace(true),
                model::LimitKey::Address => Kind::Address(true),
                model::LimitKey::Header(name) => Kind::Header(name.to_string()),
                model::LimitKey::Method => Kind::Method(true),
                model::LimitKey::Path => Kind::Path(true),
            }),
        }
    }
}

impl From<&model::GlobalLimit> for wire::GlobalLimit {
    fn from(from: &model::GlobalLimit) -> Self {
        use wire::global_limit::Place;
        let (place, port) = match &from.place {
            Ok((service, port)) => (Place::Service(service.into()), *port),
            Err(error) => (Place::Error(error.to_string()), 0),
        };
        Self {
            place: Some(place),
            port: port.into(),
            domain: from.domain.to_string(),
            timeout: milliseconds(Some(from.timeout)),
            hits: from.hits,
            descriptors: all(&from.descriptors),
        }
    }
}

impl From<&model::LimitDescriptor> for wire::LimitDescriptor {
    fn from(from: &model::LimitDescriptor) -> Self {
        use wire::limit_entry::Value;
        let entry = |(key, value): &(model::ArcStr, model::LimitValue)| wire::LimitEntry {
            key: key.to_string(),
            value: Some(match value {
                model::LimitValue::Text(text) => Value::Text(text.to_string()),
                model::LimitValue::Of(key) => Value::Of(key.into()),
            }),
        };
        Self {
            matches: all(&from.matches),
            entries: from.entries.iter().map(entry).collect(),
        }
    }
}
