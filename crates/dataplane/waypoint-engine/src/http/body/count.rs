//! Counters of the bytes and messages of bodies.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::Frame;
use parking_lot::Mutex;

/// Counter of the bytes and gRPC messages of a request or response. Clones share it.
#[derive(Clone, Debug)]
pub(in crate::http) struct BodyCounter(Arc<Mutex<BodyCounts>>);

#[derive(Debug, Default)]
struct BodyCounts {
    bytes: u64,
    /// Counter of gRPC messages; `None` for bodies that are not gRPC.
    messages: Option<GrpcMessageCounter>,
    grpc_status: Option<u32>,
    is_complete: bool,
    is_aborted: bool,
    has_timed_out: bool,
}

/// Counter of gRPC messages, each of which begins with five bytes: a flag and the length.
#[derive(Debug, Default)]
struct GrpcMessageCounter {
    count: u64,
    length_prefix: Vec<u8>,
    /// Bytes of the current message that have not arrived yet.
    remaining_bytes: usize,
}

impl BodyCounter {
    /// Creates a counter with no bytes; gRPC messages are counted if `is_grpc`.
    pub(in crate::http) fn new(is_grpc: bool) -> Self {
        Self(Arc::new(Mutex::new(BodyCounts {
            messages: is_grpc.then(GrpcMessageCounter::default),
            ..BodyCounts::default()
        })))
    }

    /// Returns the number of bytes counted so far.
    pub(in crate::http) fn bytes(&self) -> u64 {
        self.0.lock().bytes
    }

    /// Returns the number of gRPC messages counted so far.
    pub(in crate::http) fn messages(&self) -> u64 {
        self.0.lock().messages.as_ref().map_or(0, |one| one.count)
    }

    /// Returns the `grpc-status` of the response's headers or trailers, if received.
    pub(in crate::http) fn grpc_status(&self) -> Option<u32> {
        self.0.lock().grpc_status
    }

    /// Whether the body has been forwarded to its end.
    pub(in crate::http) fn is_complete(&self) -> bool {
        self.0.lock().is_complete
    }

    /// Whether the sender aborted the body, or violated the protocol.
    pub(in crate::http) fn is_aborted(&self) -> bool {
        self.0.lock().is_aborted
    }

    /// Whether the request's deadline expired before the end of the body.
    pub(in crate::http) fn has_timed_out(&self) -> bool {
        self.0.lock().has_timed_out
    }

    /// Counts bytes that do not pass through a wrapped body, such as those of an upgraded connection.
    pub(in crate::http) fn add_bytes(&self, bytes: usize) {
        self.0.lock().bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
    }

    /// Records `grpc-status` from headers or trailers.
    pub(in crate::http) fn record_grpc_status(&self, headers: &HeaderMap) {
        let status = headers.get("grpc-status");
        let status = status.and_then(|status| status.to_str().ok()?.parse().ok());
        let mut counted = self.0.lock();
        counted.grpc_status = status.or(counted.grpc_status);
    }

    /// Counts the bytes and gRPC messages in a frame of the body.
    pub(in crate::http) fn count_frame(&self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            let mut counted = self.0.lock();
            counted.bytes += u64::try_from(data.len()).unwrap_or(u64::MAX);
            if let Some(messages) = &mut counted.messages {
                messages.count_bytes(data);
            }
        } else if let Some(trailers) = frame.trailers_ref() {
            self.record_grpc_status(trailers);
        }
    }

    /// Marks the body as aborted by its sender.
    pub(in crate::http) fn mark_aborted(&self) {
        self.0.lock().is_aborted = true;
    }

    /// Marks the body as incomplete when its deadline expired.
    pub(in crate::http) fn mark_timed_out(&self) {
        self.0.lock().has_timed_out = true;
    }

    /// Marks the body as forwarded to its end.
    pub(in crate::http) fn mark_complete(&self) {
        self.0.lock().is_complete = true;
    }
}

impl GrpcMessageCounter {
    fn count_bytes(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.remaining_bytes > 0 {
                let skipped = self.remaining_bytes.min(data.len());
                self.remaining_bytes -= skipped;
                data = data.get(skipped..).unwrap_or_default();
                continue;
            }
            let missing = 5 - self.length_prefix.len();
            let taken = data.get(..missing).unwrap_or(data);
            self.length_prefix.extend_from_slice(taken);
            data = data.get(taken.len()..).unwrap_or_default();
            if let [_, a, b, c, d] = *self.length_prefix.as_slice() {
                let length = u32::from_be_bytes([a, b, c, d]);
                self.remaining_bytes = usize::try_from(length).unwrap_or(usize::MAX);
                self.count += 1;
                self.length_prefix.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_for_any_frame_boundaries() {
        let stream = [
            &[0, 0, 0, 0, 2, 1, 1][..],
            &[0, 0, 0, 0, 0],
            &[1, 0, 0, 1, 0],
            &[7; 256],
        ];
        let stream = stream.concat();
        for step in [1, 2, 3, 7, 1000] {
            let mut messages = GrpcMessageCounter::default();
            for piece in stream.chunks(step) {
                messages.count_bytes(piece);
            }
            assert_eq!(messages.count, 3, "in pieces of {step}");
            assert_eq!(messages.remaining_bytes, 0);
        }
    }
}
