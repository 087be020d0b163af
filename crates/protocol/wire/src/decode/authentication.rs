//! Who requests come from, by JSON web tokens. As in [`super::waypoint`] nothing is ignored: of an object that is not
//! understood there is a substitute that refuses everything.

use ambit_model::{self as model, PolicyKey};
use prost::Message;

use super::{
    DecodeError,
    parts::{all, hostname, optional, places, policy_part, under_own_name, whole},
};
use crate::{ambit as wire, unknown::AMBIT_V1_WAYPOINTAUTHENTICATION, workload};

/// An object that is not understood in full.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct AuthenticationNotUnderstood {
    /// The field that is not understood.
    pub error: DecodeError,
    /// Refuses everything that the object is attached to, as far as that can be read, else everything.
    pub substitute: Box<model::Authentication>,
}

/// Decodes the object that was sent under a name (`<gateway>/namespace/name`).
///
/// # Errors
/// When it is not understood in full.
pub fn waypoint_authentication(
    name: &str,
    bytes: &[u8],
) -> Result<model::Authentication, AuthenticationNotUnderstood> {
    let named = PolicyKey::of_record(policy_part(name));
    let read = whole(
        "waypoint_authentication",
        &AMBIT_V1_WAYPOINTAUTHENTICATION,
        bytes,
    );
    let read = read.and_then(authentication);
    let read = read.and_then(|read| {
        let own = read.key.clone();
        under_own_name(read, own, &named, "waypoint_authentication.name")
    });
    read.map_err(|error| AuthenticationNotUnderstood {
        substitute: Box::new(substitute(named, bytes, error.to_string().into())),
        error,
    })
}

/// Where an object applies.
#[derive(Message)]
struct Outline {
    #[prost(bool, tag = "3")]
    for_gateway: bool,
    #[prost(message, repeated, tag = "4")]
    services: Vec<workload::NamespacedHostname>,
}

fn substitute(key: PolicyKey, bytes: &[u8], why: model::ArcStr) -> model::Authentication {
    let outline = Outline::decode(bytes).unwrap_or_default();
    let (for_gateway, services) = places(outline.for_gateway, outline.services);
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
        services: all(from.services, |name| {
            hostname("waypoint_authentication.services", Some(name))
        })?,
        rules: all(from.rules, rule)?,
        not_understood: optional(from.not_understood),
    })
}

fn rule(from: wire::JwtRule) -> Result<model::JwtRule, DecodeError> {
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
        payload_header: optional(from.payload_header),
        claim_headers: pairs(from.claim_headers),
        forward_token: from.forward_token,
        words: texts(from.words),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_field() -> model::Authentication {
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
            key: PolicyKey::of_record("ns/ra"),
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
        let sent = wire::WaypointAuthentication::from(&every_field()).encode_to_vec();
        let read = waypoint_authentication("gw/w/ns/ra", &sent);
        assert_eq!(read, Ok(every_field()));
    }

    #[test]
    fn what_is_not_understood_refuses_everything_that_it_is_attached_to() {
        let sent = wire::WaypointAuthentication::from(&every_field()).encode_to_vec();
        // A field that nobody knows, another object's name, keys that are not said, a text cut off.
        let unknown = [&sent[..], &[0xf8, 0x07, 1]].concat();
        let mut keyless = wire::WaypointAuthentication::from(&every_field());
        keyless.rules[0].keys = None;
        for (name, bytes) in [
            ("gw/w/ns/ra", unknown),
            ("gw/w/ns/other", sent.clone()),
            ("gw/w/ns/ra", keyless.encode_to_vec()),
        ] {
            let refused = waypoint_authentication(name, &bytes).unwrap_err();
            assert!(refused.substitute.not_understood.is_some());
            assert_eq!(refused.substitute.services, every_field().services);
            assert!(refused.substitute.rules.is_empty());
        }
        let cut = waypoint_authentication("gw/w/ns/ra", &sent[..sent.len() - 1]).unwrap_err();
        assert!(cut.substitute.for_gateway);
    }
}
