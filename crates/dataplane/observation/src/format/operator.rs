//! Command operators of Envoy's access-log formats, as far as they are supported.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};
use time::OffsetDateTime;

use crate::{NeededHeaders, RequestObservation};

/// Parsed command operator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operator {
    kind: OperatorKind,
    /// Maximum length of the value in bytes.
    max_length: Option<usize>,
}

/// Value of a command operator for one request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OperatorValue<'a> {
    Absent,
    Number(u64),
    /// Text that the proxy generates, which needs no escaping.
    TrustedText(Cow<'a, str>),
    /// Text that a peer sends, which must be escaped.
    UntrustedText(Cow<'a, [u8]>),
}

#[derive(Clone, Debug, PartialEq)]
enum OperatorKind {
    Simple(&'static str),
    /// Start time of the request, in a time format.
    StartTime(TimeFormat),
    /// Value of the first of these request headers that is present.
    RequestHeader(Vec<HeaderRef>),
    ResponseHeader(Vec<HeaderRef>),
    Environment(String),
}

#[derive(Clone, Debug, PartialEq)]
enum TimeFormat {
    Iso,
    Seconds,
    Milliseconds,
    Date(String),
}

#[derive(Clone, Debug, PartialEq)]
enum HeaderRef {
    Header(HeaderName),
    PseudoHeader(&'static str),
}

/// Command operators that take no arguments.
const SIMPLE_OPERATORS: &[&str] = &[
    "PROTOCOL",
    "RESPONSE_CODE",
    "RESPONSE_CODE_DETAILS",
    "RESPONSE_FLAGS",
    "CONNECTION_TERMINATION_DETAILS",
    "UPSTREAM_TRANSPORT_FAILURE_REASON",
    "BYTES_RECEIVED",
    "BYTES_SENT",
    "DURATION",
    "RESPONSE_DURATION",
    "UPSTREAM_HOST",
    "UPSTREAM_REMOTE_ADDRESS",
    "UPSTREAM_CLUSTER",
    "UPSTREAM_CLUSTER_RAW",
    "UPSTREAM_LOCAL_ADDRESS",
    "DOWNSTREAM_LOCAL_ADDRESS",
    "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_LOCAL_PORT",
    "DOWNSTREAM_REMOTE_ADDRESS",
    "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_REMOTE_PORT",
    "DOWNSTREAM_DIRECT_REMOTE_ADDRESS",
    "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_PEER_URI_SAN",
    "REQUESTED_SERVER_NAME",
    "ROUTE_NAME",
    "GRPC_STATUS",
    "GRPC_STATUS_NUMBER",
    "HOSTNAME",
    "TRACE_ID",
];

const UNKNOWN_OPERATOR: &str = "is no operator that is known here";

impl Operator {
    /// Parses a command operator from the text between its two `%`.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (name, rest) = match text.split_once('(') {
            Some((name, rest)) => {
                let (argument, rest) = rest.rsplit_once(')').ok_or("lacks a )")?;
                (name, Some((argument, rest)))
            }
            None => (text, None),
        };
        let argument = rest.map(|(argument, _)| argument);
        let most = match rest.map(|(_, rest)| rest).filter(|rest| !rest.is_empty()) {
            None => None,
            Some(rest) => {
                let number = rest.strip_prefix(':').and_then(|rest| rest.parse().ok());
                Some(
                    number
                        .ok_or("may have a length behind its ), such as :10, and nothing else")?,
                )
            }
        };
        let what = match (name, argument) {
            ("START_TIME", form) => {
                OperatorKind::StartTime(parse_time_format(form.unwrap_or_default())?)
            }
            ("REQ", Some(names)) => OperatorKind::RequestHeader(parse_header_names(names)?),
            ("RESP", Some(names)) => OperatorKind::ResponseHeader(parse_header_names(names)?),
            ("ENVIRONMENT", Some(name)) => OperatorKind::Environment(name.to_owned()),
            ("REQ" | "RESP" | "ENVIRONMENT", None) => return Err("lacks a name in ()"),
            (name, None) => {
                let found = SIMPLE_OPERATORS.iter().find(|one| **one == name);
                OperatorKind::Simple(found.ok_or(UNKNOWN_OPERATOR)?)
            }
            // With arguments: only the form of the status is supported.
            ("GRPC_STATUS", Some("NUMBER")) => OperatorKind::Simple("GRPC_STATUS_NUMBER"),
            (_, Some(_)) => return Err(UNKNOWN_OPERATOR),
        };
        Ok(Self {
            kind: what,
            max_length: most,
        })
    }

    /// Adds the headers that the operator reads to `wants`.
    pub(super) fn collect_headers(&self, wants: &mut NeededHeaders) {
        let (names, is_request) = match &self.kind {
            OperatorKind::RequestHeader(names) => (names, true),
            OperatorKind::ResponseHeader(names) => (names, false),
            _ => return,
        };
        for name in names {
            if let HeaderRef::Header(name) = name {
                let name = crate::observation::OrderedHeaderName(name.clone());
                match is_request {
                    true => wants.request_headers.insert(name),
                    false => wants.response_headers.insert(name),
                };
            }
        }
    }

    /// Evaluates the operator for a finished request.
    pub(super) fn evaluate<'a>(&self, of: &RequestObservation<'a>) -> OperatorValue<'a> {
        let datum = match &self.kind {
            OperatorKind::Simple(name) => simple_value(name, of),
            OperatorKind::StartTime(form) => {
                OperatorValue::TrustedText(format_time(form, of).into())
            }
            OperatorKind::RequestHeader(names) => {
                let found = names.iter().find_map(|name| request_header_value(name, of));
                found.map_or(OperatorValue::Absent, |value| {
                    OperatorValue::UntrustedText(value.into())
                })
            }
            OperatorKind::ResponseHeader(names) => {
                let mut found = names
                    .iter()
                    .filter_map(|name| response_header_value(name, of));
                found.next().unwrap_or(OperatorValue::Absent)
            }
            // Of the program's own environment, which no request can change, only the variables named here are
            // reported.
            OperatorKind::Environment(name) if name == "HOSTNAME" => {
                OperatorValue::TrustedText(of.hostname.into())
            }
            OperatorKind::Environment(_) => OperatorValue::Absent,
        };
        match (datum, self.max_length) {
            (OperatorValue::UntrustedText(Cow::Borrowed(bytes)), Some(most)) => {
                OperatorValue::UntrustedText(bytes.get(..most).unwrap_or(bytes).into())
            }
            (datum, _) => datum,
        }
    }
}

fn parse_header_names(text: &str) -> Result<Vec<HeaderRef>, &'static str> {
    let names: Vec<_> = text.split('?').collect();
    if names.len() > 2 {
        return Err("names more than two headers");
    }
    names
        .into_iter()
        .map(|name| {
            let pseudo = [":method", ":path", ":authority", ":scheme", ":status"];
            let lower = name.to_ascii_lowercase();
            if let Some(found) = pseudo.into_iter().find(|one| *one == lower) {
                return Ok(HeaderRef::PseudoHeader(found));
            }
            let name = HeaderName::from_bytes(name.as_bytes());
            name.map(HeaderRef::Header).map_err(|_| "names no header")
        })
        .collect()
}

fn request_header_value<'a>(name: &HeaderRef, of: &RequestObservation<'a>) -> Option<&'a [u8]> {
    match name {
        HeaderRef::PseudoHeader(":method") => of.method.map(str::as_bytes),
        HeaderRef::PseudoHeader(":path") => of.path.map(str::as_bytes),
        HeaderRef::PseudoHeader(":authority") => of.authority.map(str::as_bytes),
        HeaderRef::PseudoHeader(":scheme") => Some(b"http"),
        HeaderRef::PseudoHeader(_) => None,
        HeaderRef::Header(name) => first_header_value(of.request_headers, name),
    }
}

fn response_header_value<'a>(
    name: &HeaderRef,
    of: &RequestObservation<'a>,
) -> Option<OperatorValue<'a>> {
    match name {
        HeaderRef::PseudoHeader(":status") => {
            // As text, whereas the response code is a number.
            let code = of.response_code;
            (code != 0).then(|| OperatorValue::TrustedText(code.to_string().into()))
        }
        HeaderRef::PseudoHeader(_) => None,
        HeaderRef::Header(name) => {
            let own = || {
                // Envoy's router adds the header; here the value is known without it.
                let is_it = name.as_str() == "x-envoy-upstream-service-time";
                let time = of.upstream_time.filter(|_| is_it)?;
                Some(OperatorValue::TrustedText(
                    time.as_millis().to_string().into(),
                ))
            };
            let sent = first_header_value(of.response_headers, name);
            sent.map(|value| OperatorValue::UntrustedText(value.into()))
                .or_else(own)
        }
    }
}

fn first_header_value<'a>(all: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    all.get(name).map(http::HeaderValue::as_bytes)
}

fn response_code<'a>(of: &RequestObservation<'_>) -> OperatorValue<'a> {
    OperatorValue::Number(of.response_code.into())
}

fn milliseconds<'a>(of: std::time::Duration) -> OperatorValue<'a> {
    OperatorValue::Number(u64::try_from(of.as_millis()).unwrap_or(u64::MAX))
}

fn simple_value<'a>(name: &str, of: &RequestObservation<'a>) -> OperatorValue<'a> {
    let ours = |value: Option<String>| {
        value.map_or(OperatorValue::Absent, |text| {
            OperatorValue::TrustedText(text.into())
        })
    };
    let text = |value: Option<&'a str>| {
        value.map_or(OperatorValue::Absent, |text| {
            OperatorValue::UntrustedText(text.as_bytes().into())
        })
    };
    let (local, remote) = (of.downstream_local_address, of.downstream_remote_address);
    match name {
        "PROTOCOL" => text(of.protocol),
        "RESPONSE_CODE" => response_code(of),
        "RESPONSE_CODE_DETAILS" => text(of.response_code_details),
        "RESPONSE_FLAGS" => OperatorValue::TrustedText(of.response_flags.into()),
        "CONNECTION_TERMINATION_DETAILS" => text(of.termination_details),
        "UPSTREAM_TRANSPORT_FAILURE_REASON" => text(of.upstream_transport_failure),
        "BYTES_RECEIVED" => OperatorValue::Number(of.request_bytes),
        "BYTES_SENT" => OperatorValue::Number(of.response_bytes),
        "DURATION" => milliseconds(of.duration),
        "RESPONSE_DURATION" => of.upstream_time.map_or(OperatorValue::Absent, milliseconds),
        "UPSTREAM_HOST" | "UPSTREAM_REMOTE_ADDRESS" => {
            ours(of.upstream_host.map(|address| address.to_string()))
        }
        "UPSTREAM_CLUSTER" | "UPSTREAM_CLUSTER_RAW" => text(of.upstream_cluster),
        "UPSTREAM_LOCAL_ADDRESS" => {
            ours(of.upstream_local_address.map(|address| address.to_string()))
        }
        "DOWNSTREAM_LOCAL_ADDRESS" => ours(Some(local.to_string())),
        "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT" => ours(Some(local.ip().to_string())),
        "DOWNSTREAM_LOCAL_PORT" => OperatorValue::Number(local.port().into()),
        "DOWNSTREAM_REMOTE_ADDRESS" | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS" => {
            ours(Some(remote.to_string()))
        }
        "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT"
        | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT" => ours(Some(remote.ip().to_string())),
        "DOWNSTREAM_REMOTE_PORT" => OperatorValue::Number(remote.port().into()),
        "DOWNSTREAM_PEER_URI_SAN" => text(of.downstream_spiffe_id),
        "REQUESTED_SERVER_NAME" => text(of.server_name),
        "ROUTE_NAME" => text(of.route_name),
        "GRPC_STATUS" => grpc_status(of).map_or(OperatorValue::Absent, |name| {
            OperatorValue::TrustedText(name.into())
        }),
        "GRPC_STATUS_NUMBER" => {
            let status = of.grpc_status.filter(|_| of.is_grpc);
            status.map_or(OperatorValue::Absent, |status| {
                OperatorValue::Number(status.into())
            })
        }
        "HOSTNAME" => OperatorValue::TrustedText(of.hostname.into()),
        "TRACE_ID" => text(of.trace_id),
        _ => OperatorValue::Absent,
    }
}

/// Returns Envoy's name of the request's gRPC status.
fn grpc_status(of: &RequestObservation<'_>) -> Option<String> {
    const GRPC_STATUS_NAMES: [&str; 17] = [
        "OK",
        "Canceled",
        "Unknown",
        "InvalidArgument",
        "DeadlineExceeded",
        "NotFound",
        "AlreadyExists",
        "PermissionDenied",
        "ResourceExhausted",
        "FailedPrecondition",
        "Aborted",
        "OutOfRange",
        "Unimplemented",
        "Internal",
        "Unavailable",
        "DataLoss",
        "Unauthenticated",
    ];
    let status = of.grpc_status.filter(|_| of.is_grpc)?;
    let name = usize::try_from(status)
        .ok()
        .and_then(|at| GRPC_STATUS_NAMES.get(at));
    Some(name.map_or_else(|| status.to_string(), |name| (*name).to_owned()))
}

fn parse_time_format(text: &str) -> Result<TimeFormat, &'static str> {
    match text {
        "" => Ok(TimeFormat::Iso),
        "%s" => Ok(TimeFormat::Seconds),
        "%s%3f" => Ok(TimeFormat::Milliseconds),
        form => {
            let mut letters = form.chars();
            while let Some(letter) = letters.next() {
                if letter != '%' {
                    continue;
                }
                match letters.next() {
                    Some('Y' | 'm' | 'd' | 'H' | 'M' | 'S' | 'T' | 'F' | 'z' | 'Z' | '%') => {}
                    Some('3' | '6' | '9') if letters.next() == Some('f') => {}
                    _ => return Err("has a form of time of which not all is known here"),
                }
            }
            Ok(TimeFormat::Date(form.to_owned()))
        }
    }
}

fn format_time(form: &TimeFormat, of: &RequestObservation<'_>) -> String {
    let at = OffsetDateTime::from(of.start_time);
    let date = |form: &str| {
        let mut text = String::new();
        let mut letters = form.chars();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                text.push(letter);
                continue;
            }
            let clock = || format!("{:02}:{:02}:{:02}", at.hour(), at.minute(), at.second());
            let month = u8::from(at.month());
            text += &match letters.next() {
                Some('Y') => format!("{:04}", at.year()),
                Some('m') => format!("{month:02}"),
                Some('d') => format!("{:02}", at.day()),
                Some('H') => format!("{:02}", at.hour()),
                Some('M') => format!("{:02}", at.minute()),
                Some('S') => format!("{:02}", at.second()),
                Some('T') => clock(),
                Some('F') => format!("{:04}-{month:02}-{:02}", at.year(), at.day()),
                Some('z') => "+0000".to_owned(),
                Some('Z') => "UTC".to_owned(),
                Some(digits @ ('3' | '6' | '9')) => {
                    // Skips the letter of the directive, which `time_form` has checked.
                    letters.next();
                    match digits {
                        '3' => format!("{:03}", at.millisecond()),
                        '6' => format!("{:06}", at.microsecond()),
                        _ => format!("{:09}", at.nanosecond()),
                    }
                }
                _ => "%".to_owned(),
            };
        }
        text
    };
    match form {
        TimeFormat::Iso => date("%Y-%m-%dT%H:%M:%S.%3fZ"),
        TimeFormat::Seconds => at.unix_timestamp().to_string(),
        TimeFormat::Milliseconds => (at.unix_timestamp_nanos() / 1_000_000).to_string(),
        TimeFormat::Date(form) => date(form),
    }
}
