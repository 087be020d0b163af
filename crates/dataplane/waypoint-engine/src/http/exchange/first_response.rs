//! Waits for the first response to a request: that of the endpoint, or that of a plugin which responds while the
//! request is being sent.

use std::pin::Pin;

use http::Response;
use tokio::{sync::Notify, time::Instant};

use crate::http::{
    extension::RequestPlugins,
    response_body::ResponseBody,
    send::{Failure, UpstreamResponse},
};

/// First response to a request that is being sent.
pub(super) enum FirstResponse {
    /// Response of the endpoint, or failure to send the request.
    Upstream(Result<UpstreamResponse, Failure>),
    /// Response of a plugin in place of the application's.
    Plugin(Response<ResponseBody>),
}

/// Drives the sending of a request until an endpoint or a plugin responds. The deadline, or an endpoint that does not
/// read the request body, ends it with a failure.
pub(super) async fn first_response(
    mut sending: Pin<&mut impl Future<Output = Result<UpstreamResponse, Failure>>>,
    deadline: Option<Instant>,
    request_stalled: &Notify,
    plugins: Option<&RequestPlugins>,
) -> FirstResponse {
    let sending = async {
        let late = async {
            match deadline {
                None => std::future::pending().await,
                Some(at) => tokio::time::sleep_until(at).await,
            }
        };
        tokio::select! {
            biased;
            sent = sending.as_mut() => sent,
            () = late => Err(Failure::timed_out("request_timeout")),
            () = request_stalled.notified() => Err(Failure::timed_out("request_body_stalled")),
        }
    };
    let Some(plugins) = plugins else {
        return FirstResponse::Upstream(sending.await);
    };
    let sent = tokio::select! {
        biased;
        response = plugins.wait_for_response() => return FirstResponse::Plugin(response),
        sent = sending => sent,
    };
    if sent.is_err()
        && let Some(response) = plugins.take_response()
    {
        return FirstResponse::Plugin(response);
    }
    FirstResponse::Upstream(sent)
}
