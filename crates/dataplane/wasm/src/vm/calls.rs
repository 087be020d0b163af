//! Callbacks for a module's calls and streams. They run in the plugin's root context, as in Envoy, whichever context
//! made the call. A module that acts on a request then selects its context.

use super::{Vm, VmError};
use crate::{
    effect::{CallId, CallKind, CallResponse, GrpcStreamEvent},
    host::CallbackData,
    stream::ROOT_CONTEXT,
};

/// Converts a size to the module's 32-bit representation.
fn to_u32(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

impl Vm {
    /// Passes the response of a call to the module, unless the module has cancelled the call.
    ///
    /// # Errors
    ///
    /// When a callback of the module fails.
    pub fn on_call_response(
        &mut self,
        token: CallId,
        kind: CallKind,
        response: CallResponse,
    ) -> Result<(), VmError> {
        if self.store.data_mut().calls.remove(&token.0).is_none() {
            return Ok(());
        }
        let CallResponse {
            head,
            body,
            trailers,
            grpc_status: (status, text),
        } = response;
        let counts = (
            to_u32(head.pseudo_headers.len() + head.headers.len()),
            to_u32(body.len()),
            to_u32(trailers.len()),
        );
        let ended = match kind {
            CallKind::Http => {
                self.store.data_mut().callback_data = CallbackData {
                    headers: head,
                    body,
                    trailers,
                    ..CallbackData::default()
                };
                let callback = self.callbacks.http_call_response.clone();
                let arguments = (ROOT_CONTEXT.0, token.0, counts.0, counts.1, counts.2);
                self.call_in_context(
                    "proxy_on_http_call_response",
                    ROOT_CONTEXT,
                    callback.as_ref(),
                    arguments,
                )
            }
            CallKind::Grpc => {
                self.store.data_mut().callback_data = CallbackData {
                    grpc_initial_metadata: head.headers,
                    grpc_message: body,
                    grpc_trailing_metadata: trailers,
                    grpc_status: status,
                    grpc_status_message: text,
                    ..CallbackData::default()
                };
                if status == 0 {
                    let callback = self.callbacks.grpc_receive.clone();
                    let arguments = (ROOT_CONTEXT.0, token.0, counts.1);
                    self.call_in_context(
                        "proxy_on_grpc_receive",
                        ROOT_CONTEXT,
                        callback.as_ref(),
                        arguments,
                    )
                } else {
                    let callback = self.callbacks.grpc_close.clone();
                    let arguments = (ROOT_CONTEXT.0, token.0, status);
                    self.call_in_context(
                        "proxy_on_grpc_close",
                        ROOT_CONTEXT,
                        callback.as_ref(),
                        arguments,
                    )
                }
            }
        };
        self.store.data_mut().callback_data = CallbackData::default();
        ended.map(drop)
    }

    /// Passes an event of a gRPC stream to the module; returns false if the module has closed the stream.
    ///
    /// # Errors
    ///
    /// When a callback of the module fails.
    pub fn on_stream_event(
        &mut self,
        token: CallId,
        event: GrpcStreamEvent,
    ) -> Result<bool, VmError> {
        let calls = &mut self.store.data_mut().calls;
        if !calls.contains_key(&token.0) {
            return Ok(false);
        }
        if matches!(event, GrpcStreamEvent::Closed(..)) {
            calls.remove(&token.0);
        }
        let callbacks = self.callbacks.clone();
        let mut received = CallbackData::default();
        let (name, callback, argument) = match event {
            GrpcStreamEvent::Headers(head) => {
                let count = to_u32(head.len());
                received.grpc_initial_metadata = head;
                (
                    "proxy_on_grpc_receive_initial_metadata",
                    callbacks.grpc_initial,
                    count,
                )
            }
            GrpcStreamEvent::Message(bytes) => {
                let length = to_u32(bytes.len());
                received.grpc_message = bytes;
                ("proxy_on_grpc_receive", callbacks.grpc_receive, length)
            }
            GrpcStreamEvent::Trailers(trailers) => {
                let count = to_u32(trailers.len());
                received.grpc_trailing_metadata = trailers;
                (
                    "proxy_on_grpc_receive_trailing_metadata",
                    callbacks.grpc_trailing,
                    count,
                )
            }
            GrpcStreamEvent::Closed(status, text) => {
                received.grpc_status = status;
                received.grpc_status_message = text;
                ("proxy_on_grpc_close", callbacks.grpc_close, status)
            }
        };
        self.store.data_mut().callback_data = received;
        let arguments = (ROOT_CONTEXT.0, token.0, argument);
        let result = self.call_in_context(name, ROOT_CONTEXT, callback.as_ref(), arguments);
        self.store.data_mut().callback_data = CallbackData::default();
        result?;
        Ok(self.store.data().calls.contains_key(&token.0))
    }
}
