//! Parsing of `HTTPFault` objects: faults that rules of HTTPRoutes and GRPCRoutes inject, by a filter of the type
//! `ExtensionRef` that names an object of their namespace.

use std::time::Duration;

use ambit_k8s_api::{
    HTTPFault,
    ambit::{FaultAbort, FaultDelay, HttpFaultSpec},
};
use ambit_model::{FaultStatus, HttpFault, RequestFraction};
use serde_json::Value;

use crate::{
    config::MeshConfig,
    objects::{
        durations,
        readable::{FetchExtent, FetchedKind, Parsed, Readable},
        share,
    },
    problem::FieldError,
};

/// Longest delay of a fault: a request that waits holds memory of the waypoint and of its client.
const MAX_DELAY: Duration = Duration::from_secs(300);
/// Names of the gRPC status codes; the index is the code.
const GRPC_CODE_NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

impl FetchedKind for HTTPFault {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

impl Readable for HTTPFault {
    type Input = HttpFault;

    fn read(&self, _: &MeshConfig) -> Result<Parsed<HttpFault>, FieldError> {
        Ok(Parsed::without_notes(parse_fault(&self.spec, "spec")?))
    }
}

/// Parses the faults of an `HTTPFault`; `at` is their path in the object, for errors.
pub(crate) fn parse_fault(from: &HttpFaultSpec, at: &str) -> Result<HttpFault, FieldError> {
    if from.delay.is_none() && from.abort.is_none() {
        return Err(FieldError::new(at, "a delay or an abort is needed"));
    }
    let delay = from.delay.as_ref();
    let delay = delay.map(|one| parse_delay(one, &format!("{at}.delay")));
    let abort = from.abort.as_ref();
    let abort = abort.map(|one| parse_abort(one, &format!("{at}.abort")));
    Ok(HttpFault {
        delay: delay.transpose()?,
        abort: abort.transpose()?,
    })
}

fn parse_delay(from: &FaultDelay, at: &str) -> Result<(Duration, RequestFraction), FieldError> {
    let error = |message: String| FieldError::new(format!("{at}.fixedDelay"), message);
    let text = from.fixed_delay.as_deref();
    let text = text.ok_or_else(|| error("is needed".to_owned()))?;
    let read = durations::read(text).map_err(error)?.unwrap_or_default();
    if read.is_zero() || read > MAX_DELAY {
        let most = MAX_DELAY.as_secs();
        return Err(error(format!("{text:?} is not from 1ms to {most}s")));
    }
    let share = share::read(from.percent, from.fraction.as_ref(), at)?;
    Ok((read, share))
}

fn parse_abort(from: &FaultAbort, at: &str) -> Result<(FaultStatus, RequestFraction), FieldError> {
    let share = share::read(from.percent, from.fraction.as_ref(), at)?;
    let status = match (from.http_status, &from.grpc_status) {
        (Some(status), None) => {
            let known = u16::try_from(status).ok();
            let known = known.filter(|status| (200..=599).contains(status));
            known.map(FaultStatus::Http).ok_or_else(|| {
                let message = format!("{status} is no status that ends a request, 200 to 599");
                FieldError::new(format!("{at}.httpStatus"), message)
            })?
        }
        (None, Some(status)) => {
            parse_grpc_code(status)
                .map(FaultStatus::Grpc)
                .ok_or_else(|| {
                    let message = format!("{status} is no status of gRPC: its name, or 0 to 16");
                    FieldError::new(format!("{at}.grpcStatus"), message)
                })?
        }
        _ => {
            let message = "one of httpStatus and grpcStatus is needed";
            return Err(FieldError::new(at, message));
        }
    };
    Ok((status, share))
}

/// Parses a gRPC status code: a name, a number, or a number as a string.
fn parse_grpc_code(from: &Value) -> Option<u8> {
    let number = match from {
        Value::String(text) => match GRPC_CODE_NAMES.iter().position(|name| name == text) {
            Some(place) => u64::try_from(place).ok(),
            None => text.parse().ok(),
        },
        other => other.as_u64(),
    };
    let number = u8::try_from(number?).ok()?;
    (usize::from(number) < GRPC_CODE_NAMES.len()).then_some(number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: Value) -> Result<HttpFault, String> {
        let value = json!({"metadata": {"name": "f"}, "spec": spec});
        let fault: HTTPFault = serde_json::from_value(value).map_err(|error| error.to_string())?;
        let read = fault.read(&MeshConfig::default());
        let read = read.map_err(|error| format!("{}: {}", error.field, error.message))?;
        Ok(read.input.unwrap())
    }

    #[test]
    fn delays_and_aborts_are_read_with_their_shares() {
        let fault = read(json!({
            "delay": {"fixedDelay": "1s500ms", "percent": 10},
            "abort": {"httpStatus": 503, "fraction": {"numerator": 1, "denominator": 1000}},
        }));
        let share = |numerator, denominator| RequestFraction {
            numerator,
            denominator,
        };
        let expected = HttpFault {
            delay: Some((Duration::from_millis(1500), share(10, 100))),
            abort: Some((FaultStatus::Http(503), share(1, 1000))),
        };
        assert_eq!(fault, Ok(expected));
        for (status, number) in [
            (json!("UNAVAILABLE"), 14),
            (json!(14), 14),
            (json!("14"), 14),
            (json!("OK"), 0),
        ] {
            let fault = read(json!({"abort": {"grpcStatus": status}})).unwrap();
            let (status, all) = fault.abort.unwrap();
            assert_eq!(status, FaultStatus::Grpc(number));
            assert_eq!(all, share(100, 100));
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_field() {
        for (spec, field) in [
            (json!({}), "spec: "),
            (json!({"delay": {}}), "spec.delay.fixedDelay: "),
            (
                json!({"delay": {"fixedDelay": "0s"}}),
                "spec.delay.fixedDelay: ",
            ),
            (
                json!({"delay": {"fixedDelay": "1.5s"}}),
                "spec.delay.fixedDelay: ",
            ),
            (
                json!({"delay": {"fixedDelay": "301s"}}),
                "spec.delay.fixedDelay: ",
            ),
            (
                json!({"delay": {"fixedDelay": "1s", "percent": 101}}),
                "spec.delay.percent: ",
            ),
            (json!({"abort": {}}), "spec.abort: "),
            (
                json!({"abort": {"httpStatus": 503, "grpcStatus": 1}}),
                "spec.abort: ",
            ),
            (
                json!({"abort": {"httpStatus": 100}}),
                "spec.abort.httpStatus: ",
            ),
            (
                json!({"abort": {"httpStatus": 600}}),
                "spec.abort.httpStatus: ",
            ),
            (
                json!({"abort": {"grpcStatus": 17}}),
                "spec.abort.grpcStatus: ",
            ),
            (
                json!({"abort": {"grpcStatus": "unavailable"}}),
                "spec.abort.grpcStatus: ",
            ),
            (
                json!({"abort": {"httpStatus": 503, "percent": -1}}),
                "spec.abort.percent: ",
            ),
        ] {
            let error = read(spec.clone()).unwrap_err();
            assert!(error.starts_with(field), "{spec}: {error}");
        }
        assert!(read(json!({"abort": {"httpStatus": 503, "percentage": 1}})).is_err());
    }
}
