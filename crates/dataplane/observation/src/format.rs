//! Access-log lines in Envoy's formats: text with command operators, and JSON whose strings are such texts.
//!
//! Values of requests are truncated to 1 KiB; all but printable ASCII is escaped, so that a client cannot end a field
//! or a line. In JSON a value that is one operator has the operator's type.

mod operator;

use std::fmt::Write as _;

use ambit_codec::{push_json, push_text};
use serde_json::Value;

use crate::{Observation, Wants};
use operator::{Datum, Operator};

#[cfg(test)]
mod tests;

/// Istio's default text format of access logs.
pub const ISTIO_TEXT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
     %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \
     \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
     %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \
     \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% \
     %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n";

/// Istio's default JSON format of access logs.
pub const ISTIO_JSON: &str = r#"{"start_time":"%START_TIME%","method":"%REQ(:METHOD)%",
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
    Unended(usize),
    /// The operator is unknown, or has invalid arguments.
    #[error("%{0}% {1}")]
    Operator(String, &'static str),
    /// The JSON format is not an object.
    #[error("is no JSON object")]
    NoObject,
}

/// Parsed format of an access log.
#[derive(Clone, Debug, PartialEq)]
pub struct Format(Form);

#[derive(Clone, Debug, PartialEq)]
enum Form {
    Text(Vec<Part>),
    Json(Vec<(String, Member)>),
}

#[derive(Clone, Debug, PartialEq)]
enum Member {
    Text(Vec<Part>),
    Object(Vec<(String, Self)>),
    List(Vec<Self>),
    /// JSON value without operators.
    Fixed(Value),
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Literal(String),
    /// Command operator, and whether it follows a quotation mark.
    Operator(Operator, bool),
}

impl Format {
    /// Parses a text format.
    ///
    /// # Errors
    ///
    /// When an operator is unknown or invalid.
    pub fn text(text: &str) -> Result<Self, FormatError> {
        Ok(Self(Form::Text(parts(text)?)))
    }

    /// Parses a JSON format: an object whose strings may contain operators.
    ///
    /// # Errors
    ///
    /// When an operator is unknown or invalid.
    pub fn json(object: &Value) -> Result<Self, FormatError> {
        match member(object, 0)? {
            Member::Object(members) => Ok(Self(Form::Json(members))),
            _ => Err(FormatError::NoObject),
        }
    }

    /// Returns the headers that the format reads.
    pub fn wants(&self) -> Wants {
        let mut wants = Wants::default();
        match &self.0 {
            Form::Text(parts) => of_parts(parts, &mut wants),
            Form::Json(members) => {
                let all = members.iter();
                all.for_each(|(_, member)| of_member(member, &mut wants));
            }
        }
        wants
    }

    /// Appends a request's access-log line to `line`.
    pub fn write(&self, of: &Observation<'_>, line: &mut String) {
        match &self.0 {
            Form::Text(parts) => {
                for part in parts {
                    match part {
                        Part::Literal(text) => line.push_str(text),
                        Part::Operator(operator, is_quoted) => {
                            push_datum(line, &operator.datum(of), !is_quoted);
                        }
                    }
                }
            }
            Form::Json(members) => {
                push_object(line, members, of);
                line.push('\n');
            }
        }
    }

    /// Returns the members of a JSON format with their values for a request; none for a text format.
    pub fn members(&self, of: &Observation<'_>) -> Vec<(String, String)> {
        let Form::Json(members) = &self.0 else {
            return Vec::new();
        };
        let text = |(name, member): &(String, Member)| {
            let text = match member {
                Member::Text(parts) => plain(parts, of),
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

/// Formats a request for the value of a span's tag, without escaping; empty if all operators have no value.
pub(crate) fn plain_text(format: &Format, of: &Observation<'_>) -> String {
    match &format.0 {
        Form::Text(parts) => plain(parts, of),
        Form::Json(_) => String::new(),
    }
}

fn plain(parts: &[Part], of: &Observation<'_>) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Literal(literal) => text.push_str(literal),
            Part::Operator(operator, _) => match operator.datum(of) {
                Datum::Nothing => text.push('-'),
                Datum::Number(number) => {
                    let _ = write!(text, "{number}");
                }
                Datum::Ours(ours) => text.push_str(&ours),
                Datum::Peers(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
            },
        }
    }
    text
}

fn parts(text: &str) -> Result<Vec<Part>, FormatError> {
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
        let (operator, behind) = ended(behind).ok_or(FormatError::Unended(at))?;
        let operator = Operator::read(operator)
            .map_err(|error| FormatError::Operator(operator.to_owned(), error))?;
        let is_quoted = literal.ends_with('"') || (literal.is_empty() && is_quoted_so_far(&parts));
        if !literal.is_empty() {
            parts.push(Part::Literal(std::mem::take(&mut literal)));
        }
        parts.push(Part::Operator(operator, is_quoted));
        rest = behind;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Literal(literal));
    }
    Ok(parts)
}

/// Whether the operator that directly precedes is within quotation marks.
fn is_quoted_so_far(parts: &[Part]) -> bool {
    matches!(parts.last(), Some(Part::Operator(_, true)))
}

/// Splits the text at the end of an operator. A `%` within its parentheses, such as in a time format, does not end
/// the operator.
fn ended(text: &str) -> Option<(&str, &str)> {
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

fn member(value: &Value, depth: usize) -> Result<Member, FormatError> {
    if depth > MAX_DEPTH {
        return Err(FormatError::TooDeep);
    }
    Ok(match value {
        Value::String(text) => Member::Text(parts(text)?),
        Value::Object(all) => Member::Object(
            all.iter()
                .map(|(name, value)| Ok((name.clone(), member(value, depth + 1)?)))
                .collect::<Result<_, FormatError>>()?,
        ),
        Value::Array(all) => Member::List(
            all.iter()
                .map(|value| member(value, depth + 1))
                .collect::<Result<_, FormatError>>()?,
        ),
        fixed => Member::Fixed(fixed.clone()),
    })
}

fn of_member(member: &Member, wants: &mut Wants) {
    match member {
        Member::Text(parts) => of_parts(parts, wants),
        Member::Object(all) => all.iter().for_each(|(_, one)| of_member(one, wants)),
        Member::List(all) => all.iter().for_each(|one| of_member(one, wants)),
        Member::Fixed(_) => {}
    }
}

fn of_parts(parts: &[Part], wants: &mut Wants) {
    for part in parts {
        if let Part::Operator(operator, _) = part {
            operator.wants(wants);
        }
    }
}

fn push_datum(line: &mut String, datum: &Datum<'_>, is_bare: bool) {
    // Writing to a string cannot fail.
    let _ = match datum {
        Datum::Nothing => write!(line, "-"),
        Datum::Number(number) => write!(line, "{number}"),
        Datum::Ours(text) => write!(line, "{text}"),
        Datum::Peers(bytes) if bytes.is_empty() => write!(line, "-"),
        Datum::Peers(bytes) => {
            push_text(line, bytes, is_bare);
            Ok(())
        }
    };
}

fn push_object(line: &mut String, members: &[(String, Member)], of: &Observation<'_>) {
    let mut separator = '{';
    for (name, member) in members {
        line.push(std::mem::replace(&mut separator, ','));
        push_json(line, name.as_bytes());
        line.push(':');
        push_member(line, member, of);
    }
    if separator == '{' {
        line.push('{');
    }
    line.push('}');
}

fn push_member(line: &mut String, member: &Member, of: &Observation<'_>) {
    match member {
        Member::Object(all) => push_object(line, all, of),
        Member::List(all) => {
            line.push('[');
            for (at, one) in all.iter().enumerate() {
                if at > 0 {
                    line.push(',');
                }
                push_member(line, one, of);
            }
            line.push(']');
        }
        Member::Fixed(value) => {
            let _ = write!(line, "{value}");
        }
        Member::Text(parts) => match parts.as_slice() {
            [Part::Operator(operator, _)] => match operator.datum(of) {
                Datum::Nothing => line.push_str("null"),
                Datum::Number(number) => {
                    let _ = write!(line, "{number}");
                }
                Datum::Ours(text) => push_json(line, text.as_bytes()),
                Datum::Peers(bytes) => push_json(line, &bytes),
            },
            parts => push_json(line, plain(parts, of).as_bytes()),
        },
    }
}
