//! Who requests come from, by JSON web tokens.

use ambit_model as model;

use super::waypoint::{all, optional, texts};
use crate::{ambit as wire, workload};

/// Type URL of what waypoints authenticate by.
pub const WAYPOINT_AUTHENTICATION_TYPE_URL: &str =
    "type.googleapis.com/ambit.v1.WaypointAuthentication";

impl From<&model::Authentication> for wire::WaypointAuthentication {
    fn from(from: &model::Authentication) -> Self {
        Self {
            namespace: from.key.namespace.to_string(),
            name: from.key.name.to_string(),
            for_gateway: from.for_gateway,
            services: all::<_, workload::NamespacedHostname>(&from.services),
            rules: all(&from.rules),
            not_understood: optional(from.not_understood.as_ref()),
        }
    }
}

impl From<&model::JwtRule> for wire::JwtRule {
    fn from(from: &model::JwtRule) -> Self {
        use wire::jwt_rule::Keys;
        let pairs = |all: &[(model::ArcStr, model::ArcStr)]| {
            let one = |(name, value): &(model::ArcStr, model::ArcStr)| wire::HttpHeader {
                name: name.to_string(),
                value: value.to_string(),
            };
            all.iter().map(one).collect()
        };
        Self {
            issuer: from.issuer.to_string(),
            audiences: texts(&from.audiences),
            keys: Some(match &from.keys {
                model::JwtKeys::Known(keys) => Keys::KeySet(keys.to_string()),
                model::JwtKeys::Pending => Keys::Pending(true),
                model::JwtKeys::Unavailable(why) => Keys::Unavailable(why.to_string()),
            }),
            key_source: from.key_source.to_string(),
            headers: pairs(&from.headers),
            params: texts(&from.params),
            cookies: texts(&from.cookies),
            payload_header: optional(from.payload_header.as_ref()),
            claim_headers: pairs(&from.claim_headers),
            forward_token: from.forward_token,
            words: texts(&from.words),
        }
    }
}
