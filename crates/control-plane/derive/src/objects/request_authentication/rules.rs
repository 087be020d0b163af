//! Parsing of `jwtRules`. Values that cannot be parsed make the whole object invalid.

use std::time::Duration;

use ambit_jwt::KeySet;
use ambit_k8s_api::istio::JwtRule as Written;
use ambit_model::{ArcStr, JwtKeys, JwtRule};
use http::{HeaderName, Uri, header};

use crate::{
    objects::{
        destination_rule::values::duration,
        key_source::{KeyForm, KeySource},
        request_authentication::input::RuleInput,
    },
    problem::{FieldError, Note},
};

/// Maximum number of `jwtRules` of one object.
const MAX_RULES: usize = 64;
/// Maximum number of token locations, of output headers, and of audiences of one rule.
const MAX_VALUES: usize = 64;
/// Default timeout for fetching a key set.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum timeout for fetching a key set.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Headers that frame a message or identify a client, which claims may not be copied to.
const NOT_FOR_OUTPUT: [HeaderName; 9] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::COOKIE,
    HeaderName::from_static("x-forwarded-client-cert"),
];

pub(crate) fn read(
    rules: &[Written],
    caller: Option<&ArcStr>,
    notes: &mut Vec<Note>,
) -> Result<Vec<RuleInput>, FieldError> {
    if rules.len() > MAX_RULES {
        let message = format!("{} rules; at most {MAX_RULES}", rules.len());
        return Err(FieldError::new("spec.jwtRules", message));
    }
    let rules = rules.iter().enumerate();
    let read =
        rules.map(|(index, rule)| one(rule, caller, &format!("spec.jwtRules[{index}]"), notes));
    read.collect()
}

fn one(
    from: &Written,
    caller: Option<&ArcStr>,
    at: &str,
    notes: &mut Vec<Note>,
) -> Result<RuleInput, FieldError> {
    let error =
        |field: &str, message: String| Err(FieldError::new(format!("{at}.{field}"), message));
    if from.issuer.is_empty() {
        return error("issuer", "is empty".to_owned());
    }
    let timeout = duration(&format!("{at}.timeout"), from.timeout.as_deref())?;
    let timeout = timeout.unwrap_or(TIMEOUT);
    if timeout > LONGEST_TIMEOUT {
        notes.push(Note::new(
            format!("{at}.timeout"),
            "key sets are waited for at most 30 seconds",
        ));
    }
    let source = |url: &str, form| KeySource {
        url: url.into(),
        form,
        timeout: timeout.min(LONGEST_TIMEOUT),
        namespace: caller.cloned(),
    };
    let (keys, source) = match (from.jwks.as_str(), from.jwks_uri.as_str()) {
        ("", "") => {
            if let Err(why) = fetched_from(&from.issuer) {
                return error(
                    "jwksUri",
                    format!(
                        "is empty, and the issuer's discovery document cannot be fetched: {why}"
                    ),
                );
            }
            (
                JwtKeys::Pending,
                Some(source(&from.issuer, KeyForm::Issuer)),
            )
        }
        ("", url) => {
            if let Err(why) = fetched_from(url) {
                return error("jwksUri", why);
            }
            (JwtKeys::Pending, Some(source(url, KeyForm::KeySet)))
        }
        (_, url) if !url.is_empty() => {
            return error("jwks", "cannot be given together with jwksUri".to_owned());
        }
        (keys, _) => (inline(keys, at, notes)?, None),
    };
    let rule = JwtRule {
        issuer: from.issuer.as_str().into(),
        audiences: texts(&from.audiences, &format!("{at}.audiences"))?,
        keys,
        key_source: ArcStr::new(),
        headers: headers(from, at)?,
        params: texts(&from.from_params, &format!("{at}.fromParams"))?,
        cookies: texts(&from.from_cookies, &format!("{at}.fromCookies"))?,
        payload_header: match from.output_payload_to_header.as_str() {
            "" => None,
            name => Some(output(name, &format!("{at}.outputPayloadToHeader"))?),
        },
        claim_headers: claim_headers(from, at)?,
        forward_token: from.forward_original_token,
        words: texts(
            &from.space_delimited_claims,
            &format!("{at}.spaceDelimitedClaims"),
        )?,
    };
    Ok(RuleInput { rule, source })
}

fn inline(keys: &str, at: &str, notes: &mut Vec<Note>) -> Result<JwtKeys, FieldError> {
    let at = format!("{at}.jwks");
    let set = KeySet::read(keys.as_bytes());
    let set = set.map_err(|error| FieldError::new(&at, error.to_string()))?;
    for why in set.unusable() {
        notes.push(Note::new(&at, format!("{why}: the key is ignored")));
    }
    if set.is_empty() {
        notes.push(Note::new(
            &at,
            "there is no key that can be used: no token of this issuer is valid",
        ));
    }
    Ok(JwtKeys::Known(keys.into()))
}

/// Validates the URL that a key set is fetched from.
fn fetched_from(url: &str) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|_| format!("{url:?} is no address"))?;
    let has_host = uri.authority().is_some_and(|one| !one.host().is_empty());
    let has_user = uri
        .authority()
        .is_some_and(|one| one.as_str().contains('@'));
    match uri.scheme_str() {
        _ if has_user => Err(format!(
            "{:?} has a user in it",
            uri.host().unwrap_or_default()
        )),
        Some("http" | "https") if has_host => Ok(()),
        _ => Err(format!(
            "{url:?} does not begin with https:// or http:// and a host"
        )),
    }
}

fn headers(from: &Written, at: &str) -> Result<Vec<(ArcStr, ArcStr)>, FieldError> {
    let all = from.from_headers.iter().enumerate();
    let all = all.map(|(index, one)| {
        let at = format!("{at}.fromHeaders[{index}].name");
        let name = header_name(&one.name).map_err(|message| FieldError::new(at, message))?;
        Ok((name.as_str().into(), one.prefix.as_str().into()))
    });
    all.collect()
}

fn claim_headers(from: &Written, at: &str) -> Result<Vec<(ArcStr, ArcStr)>, FieldError> {
    let all = from.output_claim_to_headers.iter().enumerate();
    let all = all.map(|(index, one)| {
        let at = format!("{at}.outputClaimToHeaders[{index}]");
        if one.claim.is_empty() {
            return Err(FieldError::new(format!("{at}.claim"), "is empty"));
        }
        let header = output(&one.header, &format!("{at}.header"))?;
        Ok((header, one.claim.as_str().into()))
    });
    all.collect()
}

/// Validates the name of a header that passes a claim to applications.
fn output(name: &str, at: &str) -> Result<ArcStr, FieldError> {
    let name = header_name(name).map_err(|message| FieldError::new(at, message))?;
    if NOT_FOR_OUTPUT.contains(&name) {
        return Err(FieldError::new(
            at,
            format!("{name} has a meaning of its own"),
        ));
    }
    Ok(name.as_str().into())
}

fn header_name(name: &str) -> Result<HeaderName, String> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no header's name"))
}

fn texts(values: &[String], at: &str) -> Result<Vec<ArcStr>, FieldError> {
    if values.len() > MAX_VALUES {
        let message = format!("{} values; at most {MAX_VALUES}", values.len());
        return Err(FieldError::new(at, message));
    }
    let mut empty = values
        .iter()
        .enumerate()
        .filter(|(_, text)| text.is_empty());
    if let Some((index, _)) = empty.next() {
        return Err(FieldError::new(format!("{at}[{index}]"), "is empty"));
    }
    Ok(values.iter().map(|text| text.as_str().into()).collect())
}
