//! Callbacks for a module's calls and streams. They run in the plugin's root context, as in Envoy, whichever context
//! made the call. A module that acts on a request then selects its context.

use super::{Failure, Vm};
use crate::{
    effect::{CallKind, CallResponse, StreamEvent, Token},
    host::Received,
    stream::ROOT,
};

/// Converts a size to the module's 32-bit representation.
fn size(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

impl Vm {
    /// Passes the response of a call to the module, unless the module has cancelled the call.
    ///
    /// # Errors
    ///
    /// When a callback of the module fails.
    pub fn call_ended(
        &mut self,
        token: Token,
        kind: CallKind,
        response: CallResponse,
    ) -> Result<(), Failure> {
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
            size(head.pseudo.len() + head.headers.len()),
            size(body.len()),
            size(trailers.len()),
        );
        let ended = match kind {
            CallKind::Http => {
                self.store.data_mut().received = Received {
                    headers: head,
                    body,
                    trailers,
                    ..Received::default()
                };
                let callback = self.callbacks.http_call_response.clone();
                let arguments = (ROOT.0, token.0, counts.0, counts.1, counts.2);
                self.callback(
                    "proxy_on_http_call_response",
                    ROOT,
                    callback.as_ref(),
                    arguments,
                )
            }
            CallKind::Grpc => {
                self.store.data_mut().received = Received {
                    grpc_initial: head.headers,
                    grpc_message: body,
                    grpc_trailing: trailers,
                    grpc_status: status,
                    grpc_text: text,
                    ..Received::default()
                };
                if status == 0 {
                    let callback = self.callbacks.grpc_receive.clone();
                    let arguments = (ROOT.0, token.0, counts.1);
                    self.callback("proxy_on_grpc_receive", ROOT, callback.as_ref(), arguments)
                } else {
                    let callback = self.callbacks.grpc_close.clone();
                    let arguments = (ROOT.0, token.0, status);
                    self.callback("proxy_on_grpc_close", ROOT, callback.as_ref(), arguments)
                }
            }
        };
        self.store.data_mut().received = Received::default();
        ended.map(drop)
    }

    /// Passes an event of a gRPC stream to the module; returns false if the module has closed the stream.
    ///
    /// # Errors
    ///
    /// When a callback of the module fails.
    pub fn stream_event(&mut self, token: Token, event: StreamEvent) -> Result<bool, Failure> {
        let calls = &mut self.store.data_mut().calls;
        if !calls.contains_key(&token.0) {
            return Ok(false);
        }
        if matches!(event, StreamEvent::Closed(..)) {
            calls.remove(&token.0);
        }
        let callbacks = self.callbacks.clone();
        let mut received = Received::default();
        let (name, callback, argument) = match event {
            StreamEvent::Began(head) => {
                let count = size(head.len());
                received.grpc_initial = head;
                (
                    "proxy_on_grpc_receive_initial_metadata",
                    callbacks.grpc_initial,
                    count,
                )
            }
            StreamEvent::Message(bytes) => {
                let length = size(bytes.len());
                received.grpc_message = bytes;
                ("proxy_on_grpc_receive", callbacks.grpc_receive, length)
            }
            StreamEvent::Trailers(trailers) => {
                let count = size(trailers.len());
                received.grpc_trailing = trailers;
                (
                    "proxy_on_grpc_receive_trailing_metadata",
                    callbacks.grpc_trailing,
                    count,
                )
            }
            StreamEvent::Closed(status, text) => {
                received.grpc_status = status;
                received.grpc_text = text;
                ("proxy_on_grpc_close", callbacks.grpc_close, status)
            }
        };
        self.store.data_mut().received = received;
        let arguments = (ROOT.0, token.0, argument);
        let result = self.callback(name, ROOT, callback.as_ref(), arguments);
        self.store.data_mut().received = Received::default();
        result?;
        Ok(self.store.data().calls.contains_key(&token.0))
    }
}
