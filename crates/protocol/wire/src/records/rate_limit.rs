//! Codec of rate limits. One that cannot be decoded in full is replaced by a substitute that evaluates no limit: its
//! `failOpen` decides whether requests to its targets pass.

use std::time::Duration;

use ambit_model::{self as model, PolicyKey};
use prost::Message;

use super::{
    RecordCodec,
    decode_fields::{decode_all, decode_hostname, none_if_empty, object_name, substitute_targets},
    encode_fields,
    http_route::route_match,
};
use crate::{
    ambit as wire,
    decode::{
        DecodeError, RecordDecodeError, Substitute, check_resource_name, decode_port,
        decode_strictly,
    },
    unknown::AMBIT_V1_WAYPOINTRATELIMIT,
    workload,
};

impl RecordCodec for model::RateLimit {
    const TYPE_URL: &'static str = "type.googleapis.com/ambit.v1.WaypointRateLimit";
    const SHORT_NAME: &'static str = "WPRDS";

    fn encode(&self) -> Vec<u8> {
        wire::WaypointRateLimit::from(self).encode_to_vec()
    }

    fn decode(name: &str, bytes: &[u8]) -> Result<Self, RecordDecodeError<Self>> {
        let read = decode_strictly("waypoint_rate_limit", &AMBIT_V1_WAYPOINTRATELIMIT, bytes)
            .and_then(rate_limit);
        check_resource_name(
            object_name(name),
            "waypoint_rate_limit.name",
            read,
            |read| read.key.clone(),
            |key, why| Substitute {
                record: Box::new(inactive_substitute(key, bytes, why)),
                effect: "requests to its targets follow its failOpen",
                is_policy: false,
            },
        )
    }
}

fn rate_limit(from: wire::WaypointRateLimit) -> Result<model::RateLimit, DecodeError> {
    Ok(model::RateLimit {
        key: PolicyKey {
            namespace: from.namespace.into(),
            name: from.name.into(),
        },
        for_gateway: from.for_gateway,
        services: decode_all(from.services, |name| {
            decode_hostname("waypoint_rate_limit.services", Some(name))
        })?,
        local: decode_all(from.local, decode_local_limit)?,
        global: from.global.map(decode_global_limit).transpose()?,
        dry_run: from.dry_run,
        fail_open: from.fail_open,
        sends_headers: from.rate_limit_headers,
        not_understood: none_if_empty(from.not_understood),
    })
}

fn decode_local_limit(from: wire::LocalLimit) -> Result<model::LocalLimit, DecodeError> {
    if from.requests == 0 {
        return Err(DecodeError::missing("local_limit.requests"));
    }
    if from.per == 0 {
        return Err(DecodeError::missing("local_limit.per"));
    }
    Ok(model::LocalLimit {
        matches: decode_all(from.matches, route_match)?,
        bucket_keys: decode_all(from.by, decode_limit_key)?,
        requests: from.requests,
        per: Duration::from_millis(from.per),
        burst: from.burst,
        buckets: from.buckets,
    })
}

fn decode_limit_key(from: wire::LimitKey) -> Result<model::LimitKey, DecodeError> {
    use wire::limit_key::Kind;
    match from.kind {
        Some(Kind::Principal(_)) => Ok(model::LimitKey::Principal),
        Some(Kind::Namespace(_)) => Ok(model::LimitKey::Namespace),
        Some(Kind::Address(_)) => Ok(model::LimitKey::Address),
        Some(Kind::Header(name)) => Ok(model::LimitKey::Header(name.into())),
        Some(Kind::Method(_)) => Ok(model::LimitKey::Method),
        Some(Kind::Path(_)) => Ok(model::LimitKey::Path),
        None => Err(DecodeError::missing("limit_key.kind")),
    }
}

fn decode_global_limit(from: wire::GlobalLimit) -> Result<model::GlobalLimit, DecodeError> {
    use wire::global_limit::Target;
    const TARGET_FIELD: &str = "global_limit.target";
    let target = match from.target {
        Some(Target::Service(name)) => Ok((
            decode_hostname(TARGET_FIELD, Some(name))?,
            decode_port("global_limit.port", from.port)?,
        )),
        Some(Target::Error(error)) => Err(error.into()),
        None => return Err(DecodeError::missing(TARGET_FIELD)),
    };
    if from.timeout == 0 {
        return Err(DecodeError::missing("global_limit.timeout"));
    }
    Ok(model::GlobalLimit {
        target,
        domain: from.domain.into(),
        timeout: Duration::from_millis(from.timeout),
        hits: from.hits,
        descriptors: decode_all(from.descriptors, descriptor)?,
    })
}

fn descriptor(from: wire::LimitDescriptor) -> Result<model::LimitDescriptor, DecodeError> {
    if from.entries.is_empty() {
        return Err(DecodeError::missing("limit_descriptor.entries"));
    }
    Ok(model::LimitDescriptor {
        matches: decode_all(from.matches, route_match)?,
        entries: decode_all(from.entries, decode_descriptor_entry)?,
    })
}

fn decode_descriptor_entry(
    from: wire::LimitEntry,
) -> Result<(model::ArcStr, model::LimitValue), DecodeError> {
    use wire::limit_entry::Value;
    let value = match from.value {
        Some(Value::Text(text)) => model::LimitValue::Text(text.into()),
        Some(Value::Attribute(of)) => model::LimitValue::Attribute(decode_limit_key(of)?),
        None => return Err(DecodeError::missing("limit_entry.value")),
    };
    Ok((from.key.into(), value))
}

/// Targets and failure mode of a rate limit, decoded without its other fields to build the substitute of an invalid
/// one.
#[derive(Message)]
struct RateLimitOutline {
    #[prost(bool, tag = "3")]
    for_gateway: bool,
    #[prost(message, repeated, tag = "4")]
    services: Vec<workload::NamespacedHostname>,
    #[prost(bool, tag = "7")]
    dry_run: bool,
    #[prost(bool, tag = "8")]
    fail_open: bool,
}

fn inactive_substitute(key: PolicyKey, bytes: &[u8], why: model::ArcStr) -> model::RateLimit {
    let outline = RateLimitOutline::decode(bytes).unwrap_or_default();
    let (for_gateway, services) = substitute_targets(outline.for_gateway, outline.services);
    model::RateLimit {
        key,
        for_gateway,
        services,
        dry_run: outline.dry_run,
        fail_open: outline.fail_open,
        not_understood: Some(why),
        ..model::RateLimit::default()
    }
}

impl From<&model::RateLimit> for wire::WaypointRateLimit {
    fn from(from: &model::RateLimit) -> Self {
        Self {
            namespace: from.key.namespace.to_string(),
            name: from.key.name.to_string(),
            for_gateway: from.for_gateway,
            services: from.services.iter().map(Into::into).collect(),
            local: encode_fields::encode_all(&from.local),
            global: from.global.as_ref().map(Into::into),
            dry_run: from.dry_run,
            fail_open: from.fail_open,
            rate_limit_headers: from.sends_headers,
            not_understood: encode_fields::encode_optional(from.not_understood.as_ref()),
        }
    }
}

impl From<&model::LocalLimit> for wire::LocalLimit {
    fn from(from: &model::LocalLimit) -> Self {
        Self {
            matches: encode_fields::encode_all(&from.matches),
            by: encode_fields::encode_all(&from.bucket_keys),
            requests: from.requests,
            per: encode_fields::encode_milliseconds(Some(from.per)),
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
        use wire::global_limit::Target;
        let (target, port) = match &from.target {
            Ok((service, port)) => (Target::Service(service.into()), *port),
            Err(error) => (Target::Error(error.to_string()), 0),
        };
        Self {
            target: Some(target),
            port: port.into(),
            domain: from.domain.to_string(),
            timeout: encode_fields::encode_milliseconds(Some(from.timeout)),
            hits: from.hits,
            descriptors: encode_fields::encode_all(&from.descriptors),
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
                model::LimitValue::Attribute(key) => Value::Attribute(key.into()),
            }),
        };
        Self {
            matches: encode_fields::encode_all(&from.matches),
            entries: from.entries.iter().map(entry).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ambit_model::{
        GlobalLimit, HttpPathMatch, HttpRouteMatch, LimitDescriptor, LimitKey, LimitValue,
        LocalLimit, NamespacedHostname, RateLimit,
    };

    use super::*;

    fn full_rate_limit() -> RateLimit {
        let matches = vec![HttpRouteMatch {
            path: Some(HttpPathMatch::Prefix("/a".into())),
            method: Some("GET".into()),
            ..HttpRouteMatch::default()
        }];
        RateLimit {
            key: PolicyKey::from_resource_name("shop/l"),
            for_gateway: true,
            services: vec![NamespacedHostname::new("shop", "cart.example")],
            local: vec![LocalLimit {
                matches: matches.clone(),
                bucket_keys: vec![
                    LimitKey::Principal,
                    LimitKey::Namespace,
                    LimitKey::Address,
                    LimitKey::Header("x-user".into()),
                    LimitKey::Method,
                    LimitKey::Path,
                ],
                requests: 10,
                per: Duration::from_millis(1500),
                burst: 20,
                buckets: 30,
            }],
            global: Some(GlobalLimit {
                target: Ok((NamespacedHostname::new("infra", "limits.example"), 8081)),
                domain: "shop".into(),
                timeout: Duration::from_millis(20),
                hits: 2,
                descriptors: vec![LimitDescriptor {
                    matches,
                    entries: vec![
                        ("generic_key".into(), LimitValue::Text("all".into())),
                        (
                            "user".into(),
                            LimitValue::Attribute(LimitKey::Header("u".into())),
                        ),
                    ],
                }],
            }),
            dry_run: true,
            fail_open: true,
            sends_headers: true,
            not_understood: Some("why".into()),
        }
    }

    fn decode_rate_limit(
        sent: &wire::WaypointRateLimit,
    ) -> Result<RateLimit, RecordDecodeError<RateLimit>> {
        model::RateLimit::decode("ns/gw/shop/l", &sent.encode_to_vec())
    }

    #[test]
    fn a_limit_is_read_as_it_was_sent() {
        let mut sent = full_rate_limit();
        assert_eq!(decode_rate_limit(&(&sent).into()), Ok(sent.clone()));
        if let Some(global) = &mut sent.global {
            global.target = Err("there is no service".into());
        }
        assert_eq!(decode_rate_limit(&(&sent).into()), Ok(sent));
    }

    #[test]
    fn what_is_not_understood_decides_nothing_where_the_limit_was() {
        let mut sent = wire::WaypointRateLimit::from(&full_rate_limit());
        sent.local[0].requests = 0;
        let refused = decode_rate_limit(&sent).unwrap_err();
        assert_eq!(refused.error.field(), "local_limit.requests");
        let substitute = refused.substitute_record();
        assert!(substitute.local.is_empty() && substitute.global.is_none());
        assert!(substitute.not_understood.is_some());
        assert!(substitute.fail_open && substitute.dry_run && substitute.for_gateway);
        assert_eq!(substitute.services, full_rate_limit().services);
    }

    #[test]
    fn limits_without_a_rate_or_target_are_rejected() {
        let refused = |change: fn(&mut wire::WaypointRateLimit)| {
            let mut sent = wire::WaypointRateLimit::from(&full_rate_limit());
            change(&mut sent);
            decode_rate_limit(&sent).unwrap_err().error.field()
        };
        assert_eq!(refused(|of| of.local[0].per = 0), "local_limit.per");
        assert_eq!(
            refused(|of| of.local[0].by[0].kind = None),
            "limit_key.kind"
        );
        assert_eq!(
            refused(|of| of.global.as_mut().unwrap().target = None),
            "global_limit.target"
        );
        assert_eq!(
            refused(|of| of.global.as_mut().unwrap().timeout = 0),
            "global_limit.timeout"
        );
        let of_entries = |of: &mut wire::WaypointRateLimit| {
            of.global.as_mut().unwrap().descriptors[0].entries.clear();
        };
        assert_eq!(refused(of_entries), "limit_descriptor.entries");
        assert_eq!(
            refused(|of| of.name = "other".to_owned()),
            "waypoint_rate_limit.name"
        );
    }
}
