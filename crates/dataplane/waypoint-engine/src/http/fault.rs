//! Fault injection of a route rule: delays a request before it is sent, or aborts it.

use ambit_l7::route::InjectedFault;
use ambit_model::FaultStatus;
use ambit_telemetry::http::ResponseFlag;
use http::StatusCode;
use tokio::time::Instant;

use super::{
    admit::admission::Admission, reply::Reply, report::record::RequestRecord, send::Failure,
};

/// Body of the response to an aborted request, as in Envoy.
const ABORT_BODY: &str = "fault filter abort";
const ABORT_DETAILS: &str = "fault_filter_abort";

/// Injects a fault: delays the request, aborts it, or both. A policy change that denies the request, or the request
/// timeout, ends the delay early.
///
/// # Errors
/// When the request is aborted, denied or out of time; the error is the reply to the client.
pub(super) async fn inject(
    injected: InjectedFault,
    admission: &Admission,
    deadline: Option<Instant>,
    record: &mut RequestRecord,
) -> Result<(), Reply> {
    if let Some(delay) = injected.delay {
        record.add_flag(ResponseFlag::DelayInjected);
        let until = Instant::now() + delay;
        let is_too_late = deadline.is_some_and(|deadline| deadline < until);
        let until = deadline.filter(|_| is_too_late).unwrap_or(until);
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = admission.wait_until_revoked() => return Err(Reply::denied()),
        }
        if is_too_late {
            let failure = Failure::timed_out("request_timeout");
            record.upstream_failure = Some(failure.details);
            return Err(failure.reply);
        }
    }
    let Some(status) = injected.abort else {
        return Ok(());
    };
    record.set_details(ABORT_DETAILS);
    Err(abort_reply(status))
}

/// Returns the reply to an aborted request.
pub(super) fn abort_reply(status: FaultStatus) -> Reply {
    let flag = ResponseFlag::FaultInjected;
    match status {
        FaultStatus::Http(status) => Reply::new(status_code(status), ABORT_BODY, flag),
        FaultStatus::Grpc(status) => Reply {
            grpc_status: Some(status),
            ..Reply::new(status_code(http_status(status)), ABORT_BODY, flag)
        },
    }
}

fn status_code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Maps a gRPC status code to an HTTP status, as Envoy does.
fn http_status(grpc: u8) -> u16 {
    match grpc {
        0 => 200,
        1 => 499,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        _ => 500,
    }
}
