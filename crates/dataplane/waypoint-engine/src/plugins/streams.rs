//! gRPC streams that plugins open to the services that they may call ([`super::calls`]).

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use ambit_model::WaypointExtension;
use ambit_wasm::{Call, GrpcStreamEvent, GrpcStreamMessage};
use bytes::{Buf as _, Bytes, BytesMut};
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::calls::{self, CallFailure, MAX_RESPONSE_BYTES, UNAVAILABLE, grpc_status};
use crate::{
    calls::{CallIdentity, Callee},
    extensions::{CallCause, StreamEventHandler},
    message::{Body, BodyError, Version},
    waypoint::Shard,
};

/// gRPC status UNKNOWN, for a stream that the server ends without a valid status.
const UNKNOWN: u32 = 2;
const RESOURCE_EXHAUSTED: u32 = 8;

/// Opens a plugin's gRPC stream, and relays its messages until either side closes it.
pub(super) async fn run_stream(
    shard: &Shard,
    plugin: &WaypointExtension,
    call: Call,
    cause: CallCause,
    messages: mpsc::UnboundedReceiver<GrpcStreamMessage>,
    on_event: &StreamEventHandler,
) {
    let upstream = call.upstream.clone();
    let sent = OutgoingMessages::new(messages);
    let _cleared = QueueGuard(sent.messages.clone());
    let opened = Box::pin(open_stream(shard, plugin, call, &cause, sent)).await;
    let (status, text) = match opened {
        Ok((head, body, _counted)) => match relay_server_messages(head, body, on_event).await {
            Some(end) => end,
            None => return,
        },
        Err(error) => (UNAVAILABLE, ambit_proxy::report::format_error_chain(&error)),
    };
    if status != 0 {
        tracing::debug!(
            plugin = plugin.key(),
            upstream,
            status,
            text,
            "a plugin's stream failed"
        );
    }
    on_event(GrpcStreamEvent::Closed(status, text));
}

async fn open_stream(
    shard: &Shard,
    plugin: &WaypointExtension,
    call: Call,
    cause: &CallCause,
    messages: OutgoingMessages,
) -> Result<(http::HeaderMap, Incoming, Option<impl Sized + use<>>), CallFailure> {
    let (service, port) = calls::resolve_callee(plugin, &call.upstream)?;
    let (parts, _) = calls::build_request(call, &service, port)?.into_parts();
    let body: Body = messages.boxed_unsync();
    let request = Request::from_parts(parts, body);
    let callee = Callee {
        service: &service,
        port,
        caller: CallIdentity::Namespace(&plugin.namespace),
        hops: cause.hops,
        initiator: cause.initiator.as_deref(),
    };
    let counted = calls::acquire_permits(shard, plugin, cause, Version::Http2, &request)?;
    let response = crate::calls::request(shard, callee, Version::Http2, request).await?;
    let (parts, body) = response.into_parts();
    Ok((parts.headers, body, counted))
}

/// Passes the server's messages to the plugin until the stream ends, and returns its gRPC status; `None` if the plugin
/// has closed the stream.
async fn relay_server_messages(
    head: http::HeaderMap,
    mut body: Incoming,
    on_event: &StreamEventHandler,
) -> Option<(u32, String)> {
    let mut end = grpc_status(&head);
    if !on_event(GrpcStreamEvent::Headers(head)) {
        return None;
    }
    let mut waiting = BytesMut::new();
    // Callbacks take at most a tenth of the worker's time, regardless of the number of messages.
    let tell = async |event| {
        let began = Instant::now();
        let goes_on = on_event(event);
        tokio::time::sleep(began.elapsed() * 10).await;
        goes_on
    };
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Some((UNAVAILABLE, "the stream ended early".to_owned()));
        };
        match frame.into_data() {
            Ok(data) => {
                waiting.extend_from_slice(&data);
                loop {
                    let bytes = match take_message(&mut waiting) {
                        Ok(Some(bytes)) => bytes,
                        Ok(None) => break,
                        Err(wrong) => return Some(wrong),
                    };
                    if !tell(GrpcStreamEvent::Message(bytes)).await {
                        return None;
                    }
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    end = grpc_status(&trailers).or(end);
                    if !tell(GrpcStreamEvent::Trailers(trailers)).await {
                        return None;
                    }
                }
            }
        }
    }
    let unknown = || (UNKNOWN, "the peer gives no status of gRPC".to_owned());
    Some(end.unwrap_or_else(unknown))
}

/// Takes the next complete message from the received bytes. The error is the gRPC status with which the stream must
/// end.
fn take_message(received: &mut BytesMut) -> Result<Option<Bytes>, (u32, String)> {
    let Some([packed, a, b, c, d]) = received.first_chunk::<5>().copied() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if packed != 0 {
        let text = "a message is compressed without negotiation";
        return Err((UNKNOWN, text.to_owned()));
    }
    if length > MAX_RESPONSE_BYTES {
        let text = format!("a message of {length} bytes; at most {MAX_RESPONSE_BYTES}");
        return Err((RESOURCE_EXHAUSTED, text));
    }
    if received.len() < 5 + length {
        return Ok(None);
    }
    received.advance(5);
    Ok(Some(received.split_to(length).freeze()))
}

/// Request body of a gRPC stream, with the messages that the plugin sends.
struct OutgoingMessages {
    messages: SharedMessageQueue,
    has_ended: bool,
}

/// Queue of messages that the plugin sends; `None` once the stream has ended.
type SharedMessageQueue = Arc<Mutex<Option<mpsc::UnboundedReceiver<GrpcStreamMessage>>>>;

/// Guard that clears the queue of outgoing messages when the stream ends. Otherwise the connection might keep them in
/// the request body until the server reads it.
struct QueueGuard(SharedMessageQueue);

impl Drop for QueueGuard {
    fn drop(&mut self) {
        drop(self.0.lock().take());
    }
}

/// gRPC message with its length prefix. It counts as unsent until the connection has sent it.
struct FramedMessage {
    bytes: Bytes,
    _message: GrpcStreamMessage,
}

impl AsRef<[u8]> for FramedMessage {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl OutgoingMessages {
    fn new(messages: mpsc::UnboundedReceiver<GrpcStreamMessage>) -> Self {
        Self {
            messages: Arc::new(Mutex::new(Some(messages))),
            has_ended: false,
        }
    }
}

impl HttpBody for OutgoingMessages {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        while !self.has_ended {
            let next = match &mut *self.messages.lock() {
                Some(messages) => ready!(messages.poll_recv(cx)),
                None => None,
            };
            let Some(mut message) = next else {
                // The sender is gone: the stream is aborted rather than ended.
                return Poll::Ready(Some(Err("the plugin has gone".into())));
            };
            self.has_ended = message.end_of_stream;
            if let Some(bytes) = message.bytes.take() {
                let bytes = calls::add_grpc_prefix(&bytes).ok_or("a message that is too long")?;
                let framed = FramedMessage {
                    bytes,
                    _message: message,
                };
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(framed)))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_complete_and_bounded() {
        let mut waiting = BytesMut::from(&[0, 0, 0, 0, 2, 7, 8, 0, 0, 0, 0, 0, 0, 0][..]);
        assert_eq!(take_message(&mut waiting).unwrap().unwrap(), [7, 8][..]);
        assert_eq!(take_message(&mut waiting).unwrap().unwrap(), [][..]);
        assert_eq!(take_message(&mut waiting), Ok(None));
        let mut large = BytesMut::from(&[0, 255, 0, 0, 0][..]);
        assert_eq!(take_message(&mut large).unwrap_err().0, RESOURCE_EXHAUSTED);
        let mut packed = BytesMut::from(&[1, 0, 0, 0, 0][..]);
        assert_eq!(take_message(&mut packed).unwrap_err().0, UNKNOWN);
    }
}
