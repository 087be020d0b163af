//! Parsing of `envoyExtAuthzGrpc` and `envoyExtAuthzHttp`: authorization providers for CUSTOM policies.
//!
//! An invalid provider makes the whole MeshConfig invalid, so that the last usable version stays in effect: skipping
//! the provider would change authorization decisions.

use std::time::Duration;

use ambit_model::{
    ArcStr, HttpProvider, Provider, ProviderBody, ProviderProtocol, StringMatch, is_reserved_header,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    objects::{config_map::fields::field_error, destination_rule::values::parse_duration},
    problem::{FieldError, Note},
};

/// MeshConfig field of authorization providers that check over gRPC.
pub(crate) const GRPC_PROVIDER_KIND: &str = "envoyExtAuthzGrpc";
pub(crate) const HTTP_PROVIDER_KIND: &str = "envoyExtAuthzHttp";

/// Default timeout of a check, as in Istio.
pub(crate) const DEFAULT_CHECK_TIMEOUT: Duration = Duration::from_secs(600);
pub(crate) const DEFAULT_STATUS_ON_ERROR: u16 = 403;
/// Maximum number of bytes of a request body that a check contains.
const MAX_BODY_BYTES: u32 = 1 << 20;

/// Parsed authorization provider, before its service is resolved.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AuthorizationProvider {
    pub(crate) service: String,
    pub(crate) port: u16,
    pub(crate) provider: Provider,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProviderFields {
    service: String,
    port: u64,
    timeout: Option<String>,
    path_prefix: String,
    status_on_error: Option<Value>,
    fail_open: bool,
    include_request_headers_in_check: Vec<String>,
    include_headers_in_check: Vec<String>,
    include_additional_headers_in_check: std::collections::BTreeMap<String, String>,
    include_request_body_in_check: Option<BodyFields>,
    headers_to_upstream_on_allow: Vec<String>,
    headers_to_downstream_on_allow: Vec<String>,
    headers_to_downstream_on_deny: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BodyFields {
    max_request_bytes: u32,
    allow_partial_message: bool,
    pack_as_bytes: bool,
}

/// Settings that `envoyExtAuthzGrpc` and `envoyExtAuthzHttp` both have.
const COMMON_FIELDS: [&str; 7] = [
    "service",
    "port",
    "timeout",
    "statusOnError",
    "failOpen",
    "clearRouteCache",
    "includeRequestBodyInCheck",
];
/// Settings that only `envoyExtAuthzHttp` has.
const HTTP_ONLY_FIELDS: [&str; 7] = [
    "pathPrefix",
    "includeRequestHeadersInCheck",
    "includeHeadersInCheck",
    "includeAdditionalHeadersInCheck",
    "headersToUpstreamOnAllow",
    "headersToDownstreamOnAllow",
    "headersToDownstreamOnDeny",
];

/// Parses the settings of a provider; `at` is the path of their field.
pub(crate) fn read(
    name: &ArcStr,
    kind: &str,
    settings: &Map<String, Value>,
    at: &str,
    notes: &mut Vec<Note>,
) -> Result<AuthorizationProvider, FieldError> {
    let field = |name: &str| format!("{at}.{name}");
    let is_http = kind == HTTP_PROVIDER_KIND;
    for name in settings.keys() {
        let known = COMMON_FIELDS.contains(&name.as_str())
            || is_http && HTTP_ONLY_FIELDS.contains(&name.as_str());
        if !known {
            let message = "is not a field of such a provider";
            return Err(field_error(&field(name), message));
        }
    }
    let given = ProviderFields::deserialize(Value::Object(settings.clone()));
    let given = given.map_err(|cause| field_error(at, cause.to_string()))?;
    if settings.get("clearRouteCache") == Some(&Value::Bool(false)) {
        notes.push(field_error(
            &field("clearRouteCache"),
            "has no effect: routes are chosen after the provider has answered",
        ));
    }
    if given.service.is_empty() {
        return Err(field_error(&field("service"), "is missing"));
    }
    let port = u16::try_from(given.port).ok().filter(|port| *port > 0);
    let port =
        port.ok_or_else(|| field_error(&field("port"), format!("{} is not a port", given.port)))?;
    let timeout = parse_duration("", given.timeout.as_deref());
    let timeout = timeout.map_err(|cause| field_error(&field("timeout"), cause.message))?;
    let body = given.include_request_body_in_check.map(|body| {
        if (1..=MAX_BODY_BYTES).contains(&body.max_request_bytes) {
            return Ok(ProviderBody {
                max_bytes: body.max_request_bytes,
                allow_partial: body.allow_partial_message,
                as_bytes: body.pack_as_bytes,
            });
        }
        let message = format!(
            "{} is not within 1 to {MAX_BODY_BYTES}",
            body.max_request_bytes
        );
        let field = field("includeRequestBodyInCheck.maxRequestBytes");
        Err(field_error(&field, message))
    });
    let protocol = if is_http {
        let mut headers = given.include_request_headers_in_check;
        headers.extend(given.include_headers_in_check);
        if !given.path_prefix.is_empty() && !given.path_prefix.starts_with('/') {
            return Err(field_error(
                &field("pathPrefix"),
                "does not begin with a slash",
            ));
        }
        let mut added = Vec::new();
        for (name, value) in given.include_additional_headers_in_check {
            let field = field("includeAdditionalHeadersInCheck");
            let is_value = value
                .bytes()
                .all(|byte| byte == b'\t' || (32..127).contains(&byte));
            if !is_token(&name) || is_reserved_header(&name) || !is_value {
                return Err(field_error(
                    &field,
                    format!("{name:?} cannot be added to a request"),
                ));
            }
            added.push((name.to_ascii_lowercase().into(), value.into()));
        }
        ProviderProtocol::Http(HttpProvider {
            path_prefix: given.path_prefix.into(),
            headers: parse_header_patterns(&field("includeRequestHeadersInCheck"), &headers)?,
            added,
            to_application: parse_header_patterns(
                &field("headersToUpstreamOnAllow"),
                &given.headers_to_upstream_on_allow,
            )?,
            to_client_allowed: parse_header_patterns(
                &field("headersToDownstreamOnAllow"),
                &given.headers_to_downstream_on_allow,
            )?,
            to_client_denied: parse_header_patterns(
                &field("headersToDownstreamOnDeny"),
                &given.headers_to_downstream_on_deny,
            )?,
        })
    } else {
        ProviderProtocol::Grpc
    };
    let status_on_error =
        parse_status_on_error(&field("statusOnError"), given.status_on_error.as_ref())?;
    Ok(AuthorizationProvider {
        service: given.service,
        port,
        provider: Provider {
            name: name.clone(),
            target: Err(ArcStr::new()),
            timeout: timeout.unwrap_or(DEFAULT_CHECK_TIMEOUT),
            status_on_error,
            fail_open: given.fail_open,
            body: body.transpose()?,
            protocol,
        },
    })
}

/// Parses `statusOnError`, a string in Istio; numbers are accepted too. The default is 403.
fn parse_status_on_error(at: &str, of: Option<&Value>) -> Result<u16, FieldError> {
    let text = match of {
        None | Some(Value::Null) => return Ok(DEFAULT_STATUS_ON_ERROR),
        Some(Value::String(text)) if text.is_empty() => return Ok(DEFAULT_STATUS_ON_ERROR),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let status = text.parse().ok();
    let status = status.filter(|status| (400..600).contains(status));
    status.ok_or_else(|| {
        field_error(
            at,
            format!("{text} is not a status of an error, 400 to 599"),
        )
    })
}

/// Parses header name patterns, which may begin or end with `*`.
fn parse_header_patterns(at: &str, of: &[String]) -> Result<Vec<StringMatch>, FieldError> {
    let one = |text: &String| {
        let bare = text.strip_prefix('*').unwrap_or(text);
        let bare = bare.strip_suffix('*').unwrap_or(bare);
        if text != "*" && !is_token(bare) {
            return Err(field_error(at, format!("{text:?} is no name of a header")));
        }
        Ok(StringMatch::from_pattern(&text.to_ascii_lowercase()))
    };
    of.iter().map(one).collect()
}

fn is_token(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}
