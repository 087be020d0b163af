//! Codec of RequestAuthentications. One that cannot be decoded in full is replaced by a substitute that rejects every
//! request.

use ambit_model::{self as model, PolicyKey};
use prost::Message;

use super::{
    RecordCodec,
    decode_fields::{decode_all, decode_hostname, none_if_empty, object_name, substitute_targets},
    encode_fields,
};
use crate::{
    ambit as wire,
    decode::{DecodeError, RecordDecodeError, Substitute, check_resource_name, decode_strictly},
    unknown::AMBIT_V1_WAYPOINTAUTHENTICATION,
    workload,
};

impl RecordCodec for model::Authentication {
    const TYPE_URL: &'static str = "type.googleapis.com/ambit.v1.WaypointAuthentication";
    const SHORT_NAME: &'static str = "WPADS";

    fn encode(&self) -> Vec<u8> {
        wire::WaypointAuthentication::from(self).encode_to_vec()
    }

    fn decode(name: &str, bytes: &[u8]) -> Result<Self, RecordDecodeError<Self>> {
        let read = decode_strictly(
            "waypoint_authentication",
            &AMBIT_V1_WAYPOINTAUTHENTICATION,
            bytes,
        )
        .and_then(authentication);
        check_resource_name(
            object_name(name),
            "waypoint_authentication.name",
            read,
            |read| read.key.clone(),
            |key, why| Substitute {
                record: Box::new(reject_all_substitute(key, bytes, why)),
                effect: "every request to its targets is refused",
                is_policy: true,
            },
        )
    }
}

/// Targets of a RequestAuthentication, decoded without its other fields to build the substitute of an invalid one.
#[derive(Message)]
struct AuthenticationOutline {
    #[prost(bool, tag = "3")]
    for_gateway: bool,
    #[prost(message, repeated, tag = "4")]
    services: Vec<workload::NamespacedHostname>,
}

fn reject_all_substitute(
    key: PolicyKey,
    bytes: &[u8],
    why: model::ArcStr,
) -> model::Authentication {
    let outline = AuthenticationOutline::decode(bytes).unwrap_or_default();
    let (for_gateway, services) = substitute_targets(outline.for_gateway, outline.services);
    model::Authentication {
        key,
        for_gateway,
        services,
        rules: Vec::new(),
        not_understood: Some(why),
    }
}

fn authentication(
    from: wire::WaypointAuthentication,
) -> Result<model::Authentication, DecodeError> {
    Ok(model::Authentication {
        key: PolicyKey {
            namespace: from.namespace.into(),
            name: from.name.into(),
        },
        for_gateway: from.for_gateway,
        services: decode_all(from.services, |name| {
            decode_hostname("waypoint_authentication.services", Some(name))
        })?,
        rules: decode_all(from.rules, decode_jwt_rule)?,
        not_understood: none_if_empty(from.not_understood),
    })
}

fn decode_jwt_rule(from: wire::JwtRule) -> Result<model::JwtRule, DecodeError> {
    use wire::jwt_rule::Keys;
    let texts = |all: Vec<String>| all.into_iter().map(Into::into).collect();
    let pairs = |all: Vec<wire::HttpHeader>| {
        let all = all.into_iter();
        all.map(|one| (one.name.into(), one.value.into())).collect()
    };
    if from.issuer.is_empty() {
        return Err(DecodeError::missing("jwt_rule.issuer"));
    }
    Ok(model::JwtRule {
        issuer: from.issuer.into(),
        audiences: texts(from.audiences),
        keys: match from.keys {
            Some(Keys::KeySet(keys)) => model::JwtKeys::Known(keys.into()),
            Some(Keys::Pending(_)) => model::JwtKeys::Pending,
            Some(Keys::Unavailable(why)) => model::JwtKeys::Unavailable(why.into()),
            None => return Err(DecodeError::missing("jwt_rule.keys")),
        },
        key_source: from.key_source.into(),
        headers: pairs(from.headers),
        params: texts(from.params),
        cookies: texts(from.cookies),
        payload_header: none_if_empty(from.payload_header),
        claim_headers: pairs(from.claim_headers),
        forward_token: from.forward_token,
        words: texts(from.space_delimited_claims),
    })
}

impl From<&model::Authentication> for wire::WaypointAuthentication {
    fn from(from: &model::Authentication) -> Self {
        Self {
            namespace: from.key.namespace.to_string(),
            name: from.key.name.to_string(),
            for_gateway: from.for_gateway,
            services: encode_fields::encode_all::<_, workload::NamespacedHostname>(&from.services),
            rules: encode_fields::encode_all(&from.rules),
            not_understood: encode_fields::encode_optional(from.not_understood.as_ref()),
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
            audiences: encode_fields::encode_texts(&from.audiences),
            keys: Some(match &from.keys {
                model::JwtKeys::Known(keys) => Keys::KeySet(keys.to_string()),
                model::JwtKeys::Pending => Keys::Pending(true),
                model::JwtKeys::Unavailable(why) => Keys::Unavailable(why.to_string()),
            }),
            key_source: from.key_source.to_string(),
            headers: pairs(&from.headers),
            params: encode_fields::encode_texts(&from.params),
            cookies: encode_fields::encode_texts(&from.cookies),
            payload_header: encode_fields::encode_optional(from.payload_header.as_ref()),
            claim_headers: pairs(&from.claim_headers),
            forward_token: from.forward_token,
            space_delimited_claims: encode_fields::encode_texts(&from.words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full_authentication() -> model::Authentication {
        let pair = |a: &str, b: &str| (a.into(), b.into());
        let rule = |keys| model::JwtRule {
            issuer: "https://i".into(),
            audiences: vec!["a".into()],
            keys,
            key_source: "https://i/keys".into(),
            headers: vec![pair("x-a", "P "), pair("x-b", "")],
            params: vec!["p".into()],
            cookies: vec!["c".into()],
            payload_header: Some("x-p".into()),
            claim_headers: vec![pair("x-s", "sub")],
            forward_token: true,
            words: vec!["w".into()],
        };
        model::Authentication {
            key: PolicyKey::from_resource_name("ns/ra"),
            for_gateway: false,
            services: vec![model::NamespacedHostname::new("ns", "a")],
            rules: vec![
                rule(model::JwtKeys::Known("{}".into())),
                rule(model::JwtKeys::Pending),
                rule(model::JwtKeys::Unavailable("gone".into())),
            ],
            not_understood: Some("why".into()),
        }
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        let sent = wire::WaypointAuthentication::from(&full_authentication()).encode_to_vec();
        let read = model::Authentication::decode("gw/w/ns/ra", &sent);
        assert_eq!(read, Ok(full_authentication()));
    }

    #[test]
    fn what_is_not_understood_refuses_everything_that_it_is_attached_to() {
        let sent = wire::WaypointAuthentication::from(&full_authentication()).encode_to_vec();
        // An unknown field, another object's name, missing keys, a truncated text.
        let unknown = [&sent[..], &[0xf8, 0x07, 1]].concat();
        let mut keyless = wire::WaypointAuthentication::from(&full_authentication());
        keyless.rules[0].keys = None;
        for (name, bytes) in [
            ("gw/w/ns/ra", unknown),
            ("gw/w/ns/other", sent.clone()),
            ("gw/w/ns/ra", keyless.encode_to_vec()),
        ] {
            let refused = model::Authentication::decode(name, &bytes).unwrap_err();
            let substitute = refused.substitute_record();
            assert!(substitute.not_understood.is_some());
            assert_eq!(substitute.services, full_authentication().services);
            assert!(substitute.rules.is_empty());
        }
        let cut = model::Authentication::decode("gw/w/ns/ra", &sent[..sent.len() - 1]).unwrap_err();
        assert!(cut.substitute_record().for_gateway);
    }
}
