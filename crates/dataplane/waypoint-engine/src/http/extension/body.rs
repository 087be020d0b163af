//! Passes the body of a request or response through one plugin.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use ambit_wasm::{Direction, LocalResponse, StreamDecision, VmError};
use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame};

use super::{
    local_reply::LocalReply,
    stream_context::{FAILED_DETAILS, StreamContext},
};
use crate::{
    extensions::PluginCounters,
    headers::is_allowed_trailer,
    http::admit::authorized_body::allowed_trailers,
    memory::{ChargePurpose, ConnectionMemory, MemoryPermit},
    message::{Body, BodyError},
};

/// Reason why a plugin ends a body early.
#[derive(Debug, thiserror::Error)]
enum FilterError {
    #[error("a plugin answers in place of the application")]
    LocalReply,
    #[error("a plugin broke the message off")]
    StreamClosed,
    #[error("a plugin holds back more of a body than it may")]
    TooLarge,
    #[error("no memory budget has room for the part of a body that a plugin holds back")]
    MemoryExhausted,
    #[error(transparent)]
    Failed(#[from] VmError),
}

/// Request or response body that passes through one plugin.
pub(super) struct FilteredBody {
    direction: Direction,
    stream_context: Arc<StreamContext>,
    local_reply: Arc<LocalReply>,
    inner: Body,
    output: VecDeque<Frame<Bytes>>,
    /// Whether the plugin has received trailers, which are forwarded when the plugin continues.
    has_trailers: bool,
    /// Whether the plugin has paused the body.
    is_paused: bool,
    /// Number of bytes that the plugin holds back while the body is paused.
    held_bytes: usize,
    memory: ConnectionMemory,
    permit: Option<MemoryPermit>,
    /// Whether the plugin has received the end of the body.
    has_ended: bool,
    /// Whether the plugin failed open, so that the rest of the body bypasses it.
    is_bypassed: bool,
}

impl FilteredBody {
    pub(super) fn wrap(
        of: Direction,
        memory: &ConnectionMemory,
        running: &Arc<StreamContext>,
        answered: &Arc<LocalReply>,
        inner: Body,
    ) -> Body {
        // Without a body, or a callback for it, the body keeps its framing.
        let wants = running
            .instance
            .run_callback(|vm| Ok(vm.has_body_callback(of)));
        if inner.is_end_stream() || wants == Ok(false) {
            return UnfilteredBody {
                inner,
                _stream_context: running.clone(),
            }
            .boxed_unsync();
        }
        let through = Self {
            direction: of,
            stream_context: running.clone(),
            local_reply: answered.clone(),
            inner,
            output: VecDeque::new(),
            has_trailers: false,
            is_paused: false,
            held_bytes: 0,
            memory: memory.clone(),
            permit: None,
            has_ended: false,
            is_bypassed: false,
        };
        through.boxed_unsync()
    }

    /// Applies the result of a plugin's callback to the body: forwards, holds or ends it.
    fn apply(&mut self, outcome: Result<StreamDecision, VmError>) -> Result<(), FilterError> {
        match outcome {
            Ok(StreamDecision::Continue) => self.resume(),
            Ok(StreamDecision::Paused) => {
                self.is_paused = true;
                Ok(())
            }
            Ok(StreamDecision::LocalResponse(response)) => {
                // A response that has begun cannot be replaced.
                if self.direction == Direction::Request {
                    self.local_reply.set(response);
                }
                Err(FilterError::LocalReply)
            }
            Ok(StreamDecision::Reset) => Err(FilterError::StreamClosed),
            Ok(StreamDecision::BodyTooLarge) => {
                if self.direction == Direction::Request {
                    self.local_reply
                        .set(local_response(413, "request_payload_too_large"));
                }
                Err(FilterError::TooLarge)
            }
            Err(failure) => self.apply_fail_strategy(failure),
        }
    }

    fn resume(&mut self) -> Result<(), FilterError> {
        self.is_paused = false;
        let (of, id) = (self.direction, self.stream_context.id);
        let has_trailers = std::mem::take(&mut self.has_trailers);
        let taken = self.stream_context.instance.run_callback(|vm| {
            let trailers = has_trailers.then(|| vm.take_trailers(of, id));
            Ok((vm.take_body(of, id), trailers))
        });
        let (body, trailers): (Bytes, Option<HeaderMap>) = match taken {
            Ok(taken) => taken,
            Err(failure) => return self.apply_fail_strategy(failure),
        };
        self.held_bytes = 0;
        self.permit = None;
        if !body.is_empty() {
            self.output.push_back(Frame::data(body));
        }
        if let Some(trailers) = trailers {
            self.output
                .push_back(allowed_trailers(trailers, is_allowed_trailer));
        }
        Ok(())
    }

    fn apply_fail_strategy(&mut self, failure: VmError) -> Result<(), FilterError> {
        let plugin = &self.stream_context.plugin;
        // The bytes that the plugin held are lost.
        if plugin.config.fail_open && self.held_bytes == 0 {
            PluginCounters::increment(&plugin.counts.bypassed_requests);
            self.is_bypassed = true;
            self.is_paused = false;
            return Ok(());
        }
        PluginCounters::increment(&plugin.counts.rejected_requests);
        if self.direction == Direction::Request {
            self.local_reply.set(local_response(503, FAILED_DETAILS));
        }
        Err(failure.into())
    }

    fn filter_frame(&mut self, frame: Frame<Bytes>) -> Result<(), FilterError> {
        let (of, id) = (self.direction, self.stream_context.id);
        match frame.into_data() {
            Ok(data) => {
                if !self.charge(data.len()) {
                    if self.direction == Direction::Request {
                        self.local_reply.set(local_response(503, "overload"));
                    }
                    return Err(FilterError::MemoryExhausted);
                }
                let is_end = self.inner.is_end_stream();
                self.has_ended |= is_end;
                let pass_through = self
                    .stream_context
                    .instance
                    .run_callback(|vm| vm.on_body(of, id, &data, is_end));
                let is_lost = pass_through.is_err();
                if !is_lost {
                    self.held_bytes += data.len();
                }
                self.apply(pass_through)?;
                if is_lost && self.is_bypassed {
                    self.output.push_back(Frame::data(data));
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    self.has_ended = true;
                    self.has_trailers = true;
                    let kept = trailers.clone();
                    let pass_through = self
                        .stream_context
                        .instance
                        .run_callback(|vm| vm.on_trailers(of, id, trailers));
                    let is_lost = pass_through.is_err();
                    self.apply(pass_through)?;
                    if is_lost && self.is_bypassed {
                        self.has_trailers = false;
                        self.output.push_back(Frame::trailers(kept));
                    }
                }
            }
        }
        Ok(())
    }

    /// Charges the memory budget for more held bytes. Returns false if the budget has no room.
    fn charge(&mut self, bytes: usize) -> bool {
        match &mut self.permit {
            Some(permit) => self
                .memory
                .grow(ChargePurpose::PluginBody, permit, bytes)
                .is_ok(),
            none => {
                *none = self
                    .memory
                    .charge_request(ChargePurpose::PluginBody, bytes)
                    .ok();
                none.is_some()
            }
        }
    }

    fn end_body(&mut self) -> Result<(), FilterError> {
        self.has_ended = true;
        let (of, id) = (self.direction, self.stream_context.id);
        let pass_through = self
            .stream_context
            .instance
            .run_callback(|vm| vm.on_body(of, id, &[], true));
        self.apply(pass_through)
    }
}

/// Builds the waypoint's own response to a request whose body ends early in a plugin.
fn local_response(status: u16, details: &str) -> LocalResponse {
    LocalResponse {
        status,
        response_code_details: details.to_owned(),
        headers: HeaderMap::new(),
        body: Bytes::new(),
        grpc_status: None,
    }
}

impl HttpBody for FilteredBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        loop {
            if let Some(frame) = this.output.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if this.is_bypassed && !this.has_ended {
                return Pin::new(&mut this.inner).poll_frame(cx);
            }
            if this.has_ended && !this.is_paused {
                return Poll::Ready(None);
            }
            if this.is_paused
                && let Poll::Ready(outcome) = this.stream_context.poll_resumed(this.direction, cx)
            {
                if let Err(broken) = this.apply(outcome) {
                    return Poll::Ready(Some(Err(broken.into())));
                }
                continue;
            }
            if this.has_ended {
                return Poll::Pending;
            }
            let pass_through = match Pin::new(&mut this.inner).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(Some(Ok(frame))) => this.filter_frame(frame),
                Poll::Ready(None) => this.end_body(),
            };
            if let Err(broken) = pass_through {
                return Poll::Ready(Some(Err(broken.into())));
            }
        }
    }
}

/// Body that the plugin does not filter. The plugin's context is closed at the end of the body.
struct UnfilteredBody {
    inner: Body,
    _stream_context: Arc<StreamContext>,
}

impl HttpBody for UnfilteredBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.inner.size_hint()
    }
}
