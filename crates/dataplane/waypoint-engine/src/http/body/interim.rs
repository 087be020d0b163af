//! Forwards interim responses of applications (102, 103) to clients of HTTP/1.1, and holds request bodies until the
//! application sends `100 Continue` (`Expect: 100-continue`, RFC 9110, section 10.1.1).
//!
//! The client's expectation is forwarded to the application. Until it responds with 100, nothing of the body is read
//! from the client, so that the client does not receive 100 either; a final response such as 413 or 417 is forwarded
//! without the body having been sent. An application that ignores the expectation receives the body after
//! [`CONTINUE_TIMEOUT`].

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, StatusCode,
    header::{CONTENT_LENGTH, EXPECT},
};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};

use crate::{
    headers,
    http1_io::Http1Additions,
    message::{Body, BodyError},
};

/// Timeout for an application to send `100 Continue`, after which the body is sent anyway.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);
const CONTINUE: HeaderValue = HeaderValue::from_static("100-continue");

/// Handle that sends interim responses to one request on the client's connection.
#[derive(Clone, Debug)]
pub(in crate::http) struct InterimForwarder(pub(in crate::http) Http1Additions);

impl InterimForwarder {
    fn forward(&self, status: StatusCode, headers: &HeaderMap) {
        let mut headers = headers.clone();
        if headers::remove_hop_by_hop(&mut headers).is_err() {
            return;
        }
        headers::remove_mesh_only_response_headers(&mut headers);
        headers.remove(CONTENT_LENGTH);
        self.0.add_interim(status, &headers);
    }
}

/// Whether a request expects `100 Continue` before its client sends the body.
pub(in crate::http) fn expects_continue<B: HttpBody>(request: &Request<B>) -> bool {
    let mut lines = request.headers().get_all(EXPECT).iter();
    let is_continue = lines
        .next()
        .is_some_and(|line| line.as_bytes().eq_ignore_ascii_case(CONTINUE.as_bytes()));
    is_continue && lines.next().is_none() && !request.body().is_end_stream()
}

/// Holds the body of a request until the application sends 100, if the client expects that.
pub(in crate::http) fn hold_until_continue(
    body: Body,
    expectation: Option<&ContinueExpectation>,
) -> Body {
    match expectation {
        Some(expectation) => expectation.hold_until_continue(body),
        None => body,
    }
}

/// Forwards the interim responses to an HTTP/1.1 request to its client, and releases the body when one of them is 100.
pub(in crate::http) fn forward_interim_responses(
    request: &mut Request<Body>,
    expectation: Option<&ContinueExpectation>,
    forwards_interim: bool,
) {
    let interim = request.extensions_mut().remove::<InterimForwarder>();
    let interim = interim.filter(|_| forwards_interim);
    if expectation.is_some() {
        request.headers_mut().insert(EXPECT, CONTINUE);
    }
    if interim.is_none() && expectation.is_none() {
        return;
    }
    let expectation = expectation.cloned();
    hyper::ext::on_informational(request, move |response| {
        match (response.status(), &expectation, &interim) {
            (StatusCode::CONTINUE, Some(expectation), _) => expectation.release_body(),
            (StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS, ..) => {}
            (status, _, Some(interim)) => interim.forward(status, response.headers()),
            _ => {}
        }
    });
}

/// State of a request with `Expect: 100-continue`. Clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct ContinueExpectation(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    phase: ExpectationPhase,
    /// Waker of the task that waits to send the body.
    body_waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ExpectationPhase {
    /// No response of the application yet: the body is held back.
    #[default]
    Waiting,
    /// Response 100 of the application: the body is sent.
    Continue,
    /// Final response before any response 100: the body is not sent.
    FinalResponse,
    /// Final response that has ended: the body is dropped.
    ResponseEnded,
}

/// Error of a held body whose request ended before the application sent 100.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the application answered the request without its body")]
struct BodyNotRequested;

/// Guard of a final response to a request whose body was not sent. It drops the body when the response ends.
#[derive(Debug)]
pub(in crate::http) struct EarlyResponseGuard {
    #[expect(dead_code, reason = "dropping it ends the request")]
    response_end: Option<ResponseEndGuard>,
}

#[derive(Debug)]
struct ResponseEndGuard(ContinueExpectation);

impl Drop for ResponseEndGuard {
    fn drop(&mut self) {
        self.0.advance(
            ExpectationPhase::FinalResponse,
            ExpectationPhase::ResponseEnded,
        );
    }
}

impl ContinueExpectation {
    fn release_body(&self) {
        self.advance(ExpectationPhase::Waiting, ExpectationPhase::Continue);
    }

    fn advance(&self, from: ExpectationPhase, to: ExpectationPhase) {
        let mut state = self.0.lock();
        if state.phase != from {
            return;
        }
        state.phase = to;
        let task = state.body_waker.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Records the application's final response. A body that has not been released until then is not sent.
    pub(in crate::http) fn record_final_response(expectation: Option<&Self>) -> EarlyResponseGuard {
        let ending = expectation.map(|one| {
            one.advance(ExpectationPhase::Waiting, ExpectationPhase::FinalResponse);
            ResponseEndGuard(one.clone())
        });
        EarlyResponseGuard {
            response_end: ending,
        }
    }

    /// Holds the request body until the application sends 100 or [`CONTINUE_TIMEOUT`] expires.
    fn hold_until_continue(&self, body: Body) -> Body {
        let held = HeldBody {
            body,
            expectation: self.clone(),
            continue_timer: None,
        };
        held.boxed_unsync()
    }
}

struct HeldBody {
    body: Body,
    expectation: ContinueExpectation,
    /// Timer that started when the request headers were sent to the application.
    continue_timer: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let continue_timer = this
            .continue_timer
            .get_or_insert_with(|| Box::pin(sleep(CONTINUE_TIMEOUT)));
        let phase = {
            let mut state = this.expectation.0.lock();
            if state.phase == ExpectationPhase::Waiting
                && continue_timer.as_mut().poll(cx).is_ready()
            {
                state.phase = ExpectationPhase::Continue;
            }
            state.body_waker = Some(cx.waker().clone());
            state.phase
        };
        match phase {
            ExpectationPhase::Continue => Pin::new(&mut this.body).poll_frame(cx),
            ExpectationPhase::Waiting | ExpectationPhase::FinalResponse => Poll::Pending,
            ExpectationPhase::ResponseEnded => Poll::Ready(Some(Err(BodyNotRequested.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
