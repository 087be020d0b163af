//! Access-log lines in Envoy's formats: text with command operators, or JSON whose strings contain command operators.
//!
//! Values from requests are truncated to 1 KiB. All characters but printable ASCII are escaped, so that a client cannot
//! end a field or a line. A JSON value that consists of a single operator has the operator's type, for instance number.

mod operator;

use std::fmt::Write as _;

use ambit_codec::{push_escaped_text, push_json_string};
use serde_json::Value;

use crate::{NeededHeaders, RequestObservation};
use operator::{Operator, OperatorValue};

#[cfg(test)]
mod tests;

/// Istio's default text format of access logs.
pub const ISTIO_TEXT_FORMAT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
     %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \
     \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
     %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \
     \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% \
     %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n";

/// Istio's default JSON format of access logs.
pub const ISTIO_JSON_FORMAT: &str = r#"{"start_time":"%START_TIME%","method":"%REQ(:METHOD)%",
"path":"%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%","protocol":"%PROTOCOL%","response_code":"%RESPONSE_CODE%",
"response_flags":"%RESPONSE_FLAGS%","response_code_details":"%RESPONSE_CODE_DETAILS%",
"connection_termination_details":"%CONNECTION_TERMINATION_DETAILS%",
"upstream_transport_failure_reason":"%UPSTREAM_TRANSPORT_FAILURE_REASON%","bytes_received":"%BYTES_RECEIVED%",
"bytes_sent":"%BYTES_SENT%","duration":"%DURATION%",
"upstream_service_time":"%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%","x_forwarded_for":"%REQ(X-FORWARDED-FOR)%",
"user_agent":"%REQ(USER-AGENT)%","request_id":"%REQ(X-REQUEST-ID)%","authority":"%REQ(:AUTHORITY)%",
"upstream_host":"%UPSTREAM_HOST%","upstream_cluster":"%UPSTREAM_CLUSTER_RAW%",
"upstream_local_address":"%UPSTREAM_LOCAL_ADDRESS%","downstream_local_address":"%DOWNSTREAM_LOCAL_ADDRESS%",
"downstream_remote_address":"%DOWNSTREAM_REMOTE_ADDRESS%","requested_server_name":"%REQUESTED_SERVER_NAME%",
"route_name":"%ROUTE_NAME%"}"#;

/// Maximum length of a format, in bytes.
const MAX_FORMAT_BYTES: usize = 16 << 10;
/// Maximum nesting depth of a JSON format.
const MAX_DEPTH: usize = 8;

/// Reason why an access-log format cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The format is longer than `MAX_FORMAT_BYTES`.
    #[error("is longer than {MAX_FORMAT_BYTES} bytes")]
    TooLong,
    /// The JSON format is nested more deeply than `MAX_DEPTH`.
    #[error("has objects that are more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// The operator at this offset has no closing `%`.
    #[error("a % at byte {0} begins an operator that does not end; a % itself is written %%")]
    UnterminatedOperator(usize),
    /// The operator is unknown, or has invalid arguments.
    #[error("%{0}% {1}")]
    InvalidOperator(String, &'static str),
    /// The JSON format is not an object.
    #[error("is no JSON object")]
    NotAnObject,
}

/// Parsed access-log format, text or JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct LogFormat(LogTemplate);

#[derive(Clone, Debug, PartialEq)]
enum LogTemplate {
    Text(Vec<TemplatePart>),
    Json(Vec<(String, JsonMember)>),
}

#[derive(Clone, Debug, PartialEq)]
enum JsonMember {
    Text(Vec<TemplatePart>),
    Object(Vec<(String, Self)>),
    List(Vec<Self>),
    /// JSON value without operators.
    Fixed(Value),
}

#[derive(Clone, Debug, PartialEq)]
enum TemplatePart {
    Literal(String),
    /// Command operator, and whether its value is inside quotation marks.
    Operator(Operator, bool),
}

impl LogFormat {
    /// Parses a text format.
    ///
    /// # Errors
    ///
    /// When an operator is unknown or invalid.
    pub fn parse_text(text: &str) -> Result<Self, FormatError> {
        Ok(Self(LogTemplate::Text(parse_parts(text)?)))
    }

    /// Parses a JSON format: an object whose strings may contain operators.
    ///
    /// # Errors
    ///
    /// When an operator is unknown or invalid.
    pub fn from_json(object: &Value) -> Result<Self, FormatError> {
        match parse_member(object, 0)? {
            JsonMember::Object(members) => Ok(Self(LogTemplate::Json(members))),
            _ => Err(FormatError::NotAnObject),
        }
    }

    /// Returns the headers that the format reads.
    pub fn needed_headers(&self) -> NeededHeaders {
        let mut wants = NeededHeaders::default();
        match &self.0 {
            LogTemplate::Text(parts) => collect_part_headers(parts, &mut wants),
            LogTemplate::Json(members) => {
                let all = members.iter();
                all.for_each(|(_, member)| collect_member_headers(member, &mut wants));
            }
        }
        wants
    }

    /// Appends a request's access-log line to `line`.
    pub fn write_line(&self, of: &RequestObservation<'_>, line: &mut String) {
        match &self.0 {
            LogTemplate::Text(parts) => {
                for part in parts {
                    match part {
                        TemplatePart::Literal(text) => line.push_str(text),
                        TemplatePart::Operator(operator, is_quoted) => {
                            push_value(line, &operator.evaluate(of), !is_quoted);
                        }
                    }
                }
            }
            LogTemplate::Json(members) => {
                push_object(line, members, of);
                line.push('\n');
            }
        }
    }

    /// Returns the members of a JSON format with their values for a request; an empty list for a text format.
    pub fn json_members(&self, of: &RequestObservation<'_>) -> Vec<(String, String)> {
        let LogTemplate::Json(members) = &self.0 else {
            return Vec::new();
        };
        let text = |(name, member): &(String, JsonMember)| {
            let text = match member {
                JsonMember::Text(parts) => render_parts(parts, of),
                other => {
                    let mut text = String::new();
                    push_member(&mut text, other, of);
                    text
                }
            };
            (name.clone(), text)
        };
        members.iter().map(text).collect()
    }
}

/// Formats a request for the value of a span tag, without escaping. Empty for a JSON format.
pub(crate) fn plain_text(format: &LogFormat, of: &RequestObservation<'_>) -> String {
    match &format.0 {
        LogTemplate::Text(parts) => render_parts(parts, of),
        LogTemplate::Json(_) => String::new(),
    }
}

fn render_parts(parts: &[TemplatePart], of: &RequestObservation<'_>) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            TemplatePart::Literal(literal) => text.push_str(literal),
            TemplatePart::Operator(operator, _) => match operator.evaluate(of) {
                OperatorValue::Absent => text.push('-'),
                OperatorValue::Number(number) => {
                    let _ = write!(text, "{number}");
                }
                OperatorValue::TrustedText(ours) => text.push_str(&ours),
                OperatorValue::UntrustedText(bytes) => {
                    text.push_str(&String::from_utf8_lossy(&bytes))
                }
            },
        }
    }
    text
}

fn parse_parts(text: &str) -> Result<Vec<TemplatePart>, FormatError> {
    if text.len() > MAX_FORMAT_BYTES {
        return Err(FormatError::TooLong);
    }
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('%') {
        let at = text.len() - behind.len() - 1;
        literal.push_str(before);
        if let Some(behind) = behind.strip_prefix('%') {
            literal.push('%');
            rest = behind;
            continue;
        }
        let (operator, behind) =
            split_operator(behind).ok_or(FormatError::UnterminatedOperator(at))?;
        let operator = Operator::parse(operator)
            .map_err(|error| FormatError::InvalidOperator(operator.to_owned(), error))?;
        let is_quoted =
            literal.ends_with('"') || (literal.is_empty() && ends_with_quoted_operator(&parts));
        if !literal.is_empty() {
            parts.push(TemplatePart::Literal(std::mem::take(&mut literal)));
        }
        parts.push(TemplatePart::Operator(operator, is_quoted));
        rest = behind;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(TemplatePart::Literal(literal));
    }
    Ok(parts)
}

/// Whether the last parsed part is an operator inside quotation marks.
fn ends_with_quoted_operator(parts: &[TemplatePart]) -> bool {
    matches!(parts.last(), Some(TemplatePart::Operator(_, true)))
}

/// Splits the text behind a `%` at the end of the operator. A `%` inside the operator's parentheses, such as in a time
/// format, does not end it.
fn split_operator(text: &str) -> Option<(&str, &str)> {
    let end = text.find('%')?;
    match text.find('(') {
        Some(open) if open < end => {
            let close = text.get(open..)?.find(')')? + open;
            let end = text.get(close..)?.find('%')? + close;
            Some((text.get(..end)?, text.get(end + 1..)?))
        }
        _ => Some((text.get(..end)?, text.get(end + 1..)?)),
    }
}

fn parse_member(value: &Value, depth: usize) -> Result<JsonMember, FormatError> {
    if depth > MAX_DEPTH {
        return Err(FormatError::TooDeep);
    }
    Ok(match value {
        Value::String(text) => JsonMember::Text(parse_parts(text)?),
        Value::Object(all) => JsonMember::Object(
            all.iter()
                .map(|(name, value)| Ok((name.clone(), parse_member(value, depth + 1)?)))
                .collect::<Result<_, FormatError>>()?,
        ),
        Value::Array(all) => JsonMember::List(
            all.iter()
                .map(|value| parse_member(value, depth + 1))
                .collect::<Result<_, FormatError>>()?,
        ),
        fixed => JsonMember::Fixed(fixed.clone()),
    })
}

fn collect_member_headers(member: &JsonMember, wants: &mut NeededHeaders) {
    match member {
        JsonMember::Text(parts) => collect_part_headers(parts, wants),
        JsonMember::Object(all) => all
            .iter()
            .for_each(|(_, one)| collect_member_headers(one, wants)),
        JsonMember::List(all) => all
            .iter()
            .for_each(|one| collect_member_headers(one, wants)),
        JsonMember::Fixed(_) => {}
    }
}

fn collect_part_headers(parts: &[TemplatePart], wants: &mut NeededHeaders) {
    for part in parts {
        if let TemplatePart::Operator(operator, _) = part {
            operator.collect_headers(wants);
        }
    }
}

fn push_value(line: &mut String, datum: &OperatorValue<'_>, is_bare: bool) {
    // Writing to a string cannot fail.
    let _ = match datum {
        OperatorValue::Absent => write!(line, "-"),
        OperatorValue::Number(number) => write!(line, "{number}"),
        OperatorValue::TrustedText(text) => write!(line, "{text}"),
        OperatorValue::UntrustedText(bytes) if bytes.is_empty() => write!(line, "-"),
        OperatorValue::UntrustedText(bytes) => {
            push_escaped_text(line, bytes, is_bare);
            Ok(())
        }
    };
}

fn push_object(line: &mut String, members: &[(String, JsonMember)], of: &RequestObservation<'_>) {
    let mut separator = '{';
    for (name, member) in members {
        line.push(std::mem::replace(&mut separator, ','));
        push_json_string(line, name.as_bytes());
        line.push(':');
        push_member(line, member, of);
    }
    if separator == '{' {
        line.push('{');
    }
    line.push('}');
}

fn push_member(line: &mut String, member: &JsonMember, of: &RequestObservation<'_>) {
    match member {
        JsonMember::Object(all) => push_object(line, all, of),
        JsonMember::List(all) => {
            line.push('[');
            for (at, one) in all.iter().enumerate() {
                if at > 0 {
                    line.push(',');
                }
                push_member(line, one, of);
            }
            line.push(']');
        }
        JsonMember::Fixed(value) => {
            let _ = write!(line, "{value}");
        }
        JsonMember::Text(parts) => match parts.as_slice() {
            [TemplatePart::Operator(operator, _)] => match operator.evaluate(of) {
                OperatorValue::Absent => line.push_str("null"),
                OperatorValue::Number(number) => {
                    let _ = write!(line, "{number}");
                }
                OperatorValue::TrustedText(text) => push_json_string(line, text.as_bytes()),
                OperatorValue::UntrustedText(bytes) => push_json_string(line, &bytes),
            },
            parts => push_json_string(line, render_parts(parts, of).as_bytes()),
        },
    }
}
