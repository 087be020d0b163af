//! Parsing of `jwtRules`. Values that cannot be parsed make the whole object invalid.

use std::time::Duration;

use ambit_jwt::KeySet;
use ambit_k8s_api::istio::JwtRule as JwtRuleSpec;
use ambit_model::{ArcStr, JwtKeys, JwtRule};
use http::{HeaderName, Uri, header};

use crate::{
    objects::{
        destination_rule::values::parse_duration,
        key_source::{KeyFormat, KeySource},
        request_authentication::input::JwtRuleInput,
    },
    problem::{FieldError, Note},
};

/// Maximum number of `jwtRules` of one object.
const MAX_RULES: usize = 64;
/// Maximum number of token locations, of output headers, and of audiences of one rule.
const MAX_LIST_VALUES: usize = 64;
/// Default timeout for fetching a key set.
const DEFAULT_FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum timeout for fetching a key set.
const MAX_FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Headers that frame a message or identify a client, which claims may not be copied to.
const FORBIDDEN_OUTPUT_HEADERS: [HeaderName; 9] = [
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
    rules: &[JwtRuleSpec],
    caller: Option<&ArcStr>,
    notes: &mut Vec<Note>,
) -> Result<Vec<JwtRuleInput>, FieldError> {
    if rules.len() > MAX_RULES {
        let message = format!("{} rules; at most {MAX_RULES}", rules.len());
        return Err(FieldError::new("spec.jwtRules", message));
    }
    let rules = rules.iter().enumerate();
    let read = rules
        .map(|(index, rule)| parse_rule(rule, caller, &format!("spec.jwtRules[{index}]"), notes));
    read.collect()
}

fn parse_rule(
    from: &JwtRuleSpec,
    caller: Option<&ArcStr>,
    at: &str,
    notes: &mut Vec<Note>,
) -> Result<JwtRuleInput, FieldError> {
    let error =
        |field: &str, message: String| Err(FieldError::new(format!("{at}.{field}"), message));
    if from.issuer.is_empty() {
        return error("issuer", "is empty".to_owned());
    }
    let timeout = parse_duration(&format!("{at}.timeout"), from.timeout.as_deref())?;
    let timeout = timeout.unwrap_or(DEFAULT_FETCH_TIMEOUT);
    if timeout > MAX_FETCH_TIMEOUT {
        notes.push(Note::new(
            format!("{at}.timeout"),
            "key sets are waited for at most 30 seconds",
        ));
    }
    let source = |url: &str, form| KeySource {
        url: url.into(),
        format: form,
        timeout: timeout.min(MAX_FETCH_TIMEOUT),
        namespace: caller.cloned(),
    };
    let (keys, source) = match (from.jwks.as_str(), from.jwks_uri.as_str()) {
        ("", "") => {
            if let Err(why) = validate_keys_url(&from.issuer) {
                return error(
                    "jwksUri",
                    format!(
                        "is empty, and the issuer's discovery document cannot be fetched: {why}"
                    ),
                );
            }
            (
                JwtKeys::Pending,
                Some(source(&from.issuer, KeyFormat::Issuer)),
            )
        }
        ("", url) => {
            if let Err(why) = validate_keys_url(url) {
                return error("jwksUri", why);
            }
            (JwtKeys::Pending, Some(source(url, KeyFormat::KeySet)))
        }
        (_, url) if !url.is_empty() => {
            return error("jwks", "cannot be given together with jwksUri".to_owned());
        }
        (keys, _) => (parse_inline_keys(keys, at, notes)?, None),
    };
    let rule = JwtRule {
        issuer: from.issuer.as_str().into(),
        audiences: parse_string_list(&from.audiences, &format!("{at}.audiences"))?,
        keys,
        key_source: ArcStr::new(),
        headers: parse_token_headers(from, at)?,
        params: parse_string_list(&from.from_params, &format!("{at}.fromParams"))?,
        cookies: parse_string_list(&from.from_cookies, &format!("{at}.fromCookies"))?,
        payload_header: match from.output_payload_to_header.as_str() {
            "" => None,
            name => Some(validate_output_header(
                name,
                &format!("{at}.outputPayloadToHeader"),
            )?),
        },
        claim_headers: parse_claim_headers(from, at)?,
        forward_token: from.forward_original_token,
        words: parse_string_list(
            &from.space_delimited_claims,
            &format!("{at}.spaceDelimitedClaims"),
        )?,
    };
    Ok(JwtRuleInput { rule, source })
}

fn parse_inline_keys(keys: &str, at: &str, notes: &mut Vec<Note>) -> Result<JwtKeys, FieldError> {
    let at = format!("{at}.jwks");
    let set = KeySet::parse_jwks(keys.as_bytes());
    let set = set.map_err(|error| FieldError::new(&at, error.to_string()))?;
    for why in set.unusable_keys() {
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
fn validate_keys_url(url: &str) -> Result<(), String> {
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

fn parse_token_headers(from: &JwtRuleSpec, at: &str) -> Result<Vec<(ArcStr, ArcStr)>, FieldError> {
    let all = from.from_headers.iter().enumerate();
    let all = all.map(|(index, one)| {
        let at = format!("{at}.fromHeaders[{index}].name");
        let name = parse_header_name(&one.name).map_err(|message| FieldError::new(at, message))?;
        Ok((name.as_str().into(), one.prefix.as_str().into()))
    });
    all.collect()
}

fn parse_claim_headers(from: &JwtRuleSpec, at: &str) -> Result<Vec<(ArcStr, ArcStr)>, FieldError> {
    let all = from.output_claim_to_headers.iter().enumerate();
    let all = all.map(|(index, one)| {
        let at = format!("{at}.outputClaimToHeaders[{index}]");
        if one.claim.is_empty() {
            return Err(FieldError::new(format!("{at}.claim"), "is empty"));
        }
        let header = validate_output_header(&one.header, &format!("{at}.header"))?;
        Ok((header, one.claim.as_str().into()))
    });
    all.collect()
}

/// Validates the name of a header that passes a claim to applications.
fn validate_output_header(name: &str, at: &str) -> Result<ArcStr, FieldError> {
    let name = parse_header_name(name).map_err(|message| FieldError::new(at, message))?;
    if FORBIDDEN_OUTPUT_HEADERS.contains(&name) {
        return Err(FieldError::new(
            at,
            format!("{name} has a meaning of its own"),
        ));
    }
    Ok(name.as_str().into())
}

fn parse_header_name(name: &str) -> Result<HeaderName, String> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no header's name"))
}

fn parse_string_list(values: &[String], at: &str) -> Result<Vec<ArcStr>, FieldError> {
    if values.len() > MAX_LIST_VALUES {
        let message = format!("{} values; at most {MAX_LIST_VALUES}", values.len());
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
