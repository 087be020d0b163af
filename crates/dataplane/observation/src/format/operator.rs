//! Command operators of Envoy's access-log formats that are supported.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};
use time::OffsetDateTime;

use crate::{Observation, Wants};

/// Parsed command operator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operator {
    what: What,
    /// Maximum length of the value in bytes.
    most: Option<usize>,
}

/// Value of a command operator for one request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Datum<'a> {
    Nothing,
    Number(u64),
    /// Text of the proxy itself, which is not escaped.
    Ours(Cow<'a, str>),
    /// Text from a peer, which must be escaped.
    Peers(Cow<'a, [u8]>),
}

#[derive(Clone, Debug, PartialEq)]
enum What {
    Simple(&'static str),
    /// Start time of the request, in a time format.
    StartTime(TimeForm),
    /// First of these request headers that is present.
    Request(Vec<Name>),
    Response(Vec<Name>),
    Environment(String),
}

#[derive(Clone, Debug, PartialEq)]
enum TimeForm {
    Iso,
    Seconds,
    Milliseconds,
    Date(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Name {
    Header(HeaderName),
    Pseudo(&'static str),
}

/// Command operators that take no arguments.
const SIMPLE: &[&str] = &[
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

const UNKNOWN: &str = "is no operator that is known here";

impl Operator {
    /// Parses the text of an operator between its two `%`.
    pub(super) fn read(text: &str) -> Result<Self, &'static str> {
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
            ("START_TIME", form) => What::StartTime(time_form(form.unwrap_or_default())?),
            ("REQ", Some(names)) => What::Request(read_names(names)?),
            ("RESP", Some(names)) => What::Response(read_names(names)?),
            ("ENVIRONMENT", Some(name)) => What::Environment(name.to_owned()),
            ("REQ" | "RESP" | "ENVIRONMENT", None) => return Err("lacks a name in ()"),
            (name, None) => {
                let found = SIMPLE.iter().find(|one| **one == name);
                What::Simple(found.ok_or(UNKNOWN)?)
            }
            // With arguments: only the form of the status is supported.
            ("GRPC_STATUS", Some("NUMBER")) => What::Simple("GRPC_STATUS_NUMBER"),
            (_, Some(_)) => return Err(UNKNOWN),
        };
        Ok(Self { what, most })
    }

    /// Adds the headers that the operator reads to `wants`.
    pub(super) fn wants(&self, wants: &mut Wants) {
        let (names, is_request) = match &self.what {
            What::Request(names) => (names, true),
            What::Response(names) => (names, false),
            _ => return,
        };
        for name in names {
            if let Name::Header(name) = name {
                let name = crate::observation::HeaderOrder(name.clone());
                match is_request {
                    true => wants.request.insert(name),
                    false => wants.response.insert(name),
                };
            }
        }
    }

    /// Evaluates the operator for a request.
    pub(super) fn datum<'a>(&self, of: &Observation<'a>) -> Datum<'a> {
        let datum = match &self.what {
            What::Simple(name) => simple(name, of),
            What::StartTime(form) => Datum::Ours(time(form, of).into()),
            What::Request(names) => {
                let found = names.iter().find_map(|name| request(name, of));
                found.map_or(Datum::Nothing, |value| Datum::Peers(value.into()))
            }
            What::Response(names) => {
                let mut found = names.iter().filter_map(|name| response(name, of));
                found.next().unwrap_or(Datum::Nothing)
            }
            // Of the program's own environment, which no request can change, only the variables named here are
            // reported.
            What::Environment(name) if name == "HOSTNAME" => Datum::Ours(of.hostname.into()),
            What::Environment(_) => Datum::Nothing,
        };
        match (datum, self.most) {
            (Datum::Peers(Cow::Borrowed(bytes)), Some(most)) => {
                Datum::Peers(bytes.get(..most).unwrap_or(bytes).into())
            }
            (datum, _) => datum,
        }
    }
}

fn read_names(text: &str) -> Result<Vec<Name>, &'static str> {
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
                return Ok(Name::Pseudo(found));
            }
            let name = HeaderName::from_bytes(name.as_bytes());
            name.map(Name::Header).map_err(|_| "names no header")
        })
        .collect()
}

fn request<'a>(name: &Name, of: &Observation<'a>) -> Option<&'a [u8]> {
    match name {
        Name::Pseudo(":method") => of.method.map(str::as_bytes),
        Name::Pseudo(":path") => of.path.map(str::as_bytes),
        Name::Pseudo(":authority") => of.authority.map(str::as_bytes),
        Name::Pseudo(":scheme") => Some(b"http"),
        Name::Pseudo(_) => None,
        Name::Header(name) => first(of.request_headers, name),
    }
}

fn response<'a>(name: &Name, of: &Observation<'a>) -> Option<Datum<'a>> {
    match name {
        Name::Pseudo(":status") => {
            // As text, whereas the response code is a number.
            let code = of.response_code;
            (code != 0).then(|| Datum::Ours(code.to_string().into()))
        }
        Name::Pseudo(_) => None,
        Name::Header(name) => {
            let own = || {
                // Envoy's router adds the header; here the value is known without it.
                let is_it = name.as_str() == "x-envoy-upstream-service-time";
                let time = of.upstream_time.filter(|_| is_it)?;
                Some(Datum::Ours(time.as_millis().to_string().into()))
            };
            let sent = first(of.response_headers, name);
            sent.map(|value| Datum::Peers(value.into())).or_else(own)
        }
    }
}

fn first<'a>(all: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    all.get(name).map(http::HeaderValue::as_bytes)
}

fn code<'a>(of: &Observation<'_>) -> Datum<'a> {
    Datum::Number(of.response_code.into())
}

fn milliseconds<'a>(of: std::time::Duration) -> Datum<'a> {
    Datum::Number(u64::try_from(of.as_millis()).unwrap_or(u64::MAX))
}

fn simple<'a>(name: &str, of: &Observation<'a>) -> Datum<'a> {
    let ours =
        |value: Option<String>| value.map_or(Datum::Nothing, |text| Datum::Ours(text.into()));
    let text = |value: Option<&'a str>| {
        value.map_or(Datum::Nothing, |text| Datum::Peers(text.as_bytes().into()))
    };
    let (local, remote) = (of.downstream_local, of.downstream_remote);
    match name {
        "PROTOCOL" => text(of.protocol),
        "RESPONSE_CODE" => code(of),
        "RESPONSE_CODE_DETAILS" => text(of.code_details),
        "RESPONSE_FLAGS" => Datum::Ours(of.flags.into()),
        "CONNECTION_TERMINATION_DETAILS" => text(of.termination_details),
        "UPSTREAM_TRANSPORT_FAILURE_REASON" => text(of.upstream_failure),
        "BYTES_RECEIVED" => Datum::Number(of.request_bytes),
        "BYTES_SENT" => Datum::Number(of.response_bytes),
        "DURATION" => milliseconds(of.duration),
        "RESPONSE_DURATION" => of.upstream_time.map_or(Datum::Nothing, milliseconds),
        "UPSTREAM_HOST" | "UPSTREAM_REMOTE_ADDRESS" => {
            ours(of.upstream_host.map(|address| address.to_string()))
        }
        "UPSTREAM_CLUSTER" | "UPSTREAM_CLUSTER_RAW" => text(of.upstream_cluster),
        "UPSTREAM_LOCAL_ADDRESS" => ours(of.upstream_local.map(|address| address.to_string())),
        "DOWNSTREAM_LOCAL_ADDRESS" => ours(Some(local.to_string())),
        "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT" => ours(Some(local.ip().to_string())),
        "DOWNSTREAM_LOCAL_PORT" => Datum::Number(local.port().into()),
        "DOWNSTREAM_REMOTE_ADDRESS" | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS" => {
            ours(Some(remote.to_string()))
        }
        "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT"
        | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT" => ours(Some(remote.ip().to_string())),
        "DOWNSTREAM_REMOTE_PORT" => Datum::Number(remote.port().into()),
        "DOWNSTREAM_PEER_URI_SAN" => text(of.peer),
        "REQUESTED_SERVER_NAME" => text(of.server_name),
        "ROUTE_NAME" => text(of.route),
        "GRPC_STATUS" => grpc_status(of).map_or(Datum::Nothing, |name| Datum::Ours(name.into())),
        "GRPC_STATUS_NUMBER" => {
            let status = of.grpc_status.filter(|_| of.is_grpc);
            status.map_or(Datum::Nothing, |status| Datum::Number(status.into()))
        }
        "HOSTNAME" => Datum::Ours(of.hostname.into()),
        "TRACE_ID" => text(of.trace_id),
        _ => Datum::Nothing,
    }
}

/// Returns Envoy's name of the request's gRPC status.
fn grpc_status(of: &Observation<'_>) -> Option<String> {
    const NAMES: [&str; 17] = [
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
    let name = usize::try_from(status).ok().and_then(|at| NAMES.get(at));
    Some(name.map_or_else(|| status.to_string(), |name| (*name).to_owned()))
}

fn time_form(text: &str) -> Result<TimeForm, &'static str> {
    match text {
        "" => Ok(TimeForm::Iso),
        "%s" => Ok(TimeForm::Seconds),
        "%s%3f" => Ok(TimeForm::Milliseconds),
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
            Ok(TimeForm::Date(form.to_owned()))
        }
    }
}

fn time(form: &TimeForm, of: &Observation<'_>) -> String {
    let at = OffsetDateTime::from(of.started);
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
        TimeForm::Iso => date("%Y-%m-%dT%H:%M:%S.%3fZ"),
        TimeForm::Seconds => at.unix_timestamp().to_string(),
        TimeForm::Milliseconds => (at.unix_timestamp_nanos() / 1_000_000).to_string(),
        TimeForm::Date(form) => date(form),
    }
}
