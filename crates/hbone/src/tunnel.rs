//! One tunnel: an HTTP/2 stream that carries a connection's bytes.

use bytes::Bytes;
use h2::{RecvStream, SendStream};

use crate::client::Lease;

/// An established tunnel. Dropping it before both directions have ended resets the stream.
#[derive(Debug)]
pub struct Tunnel {
    pub(crate) send: SendStream<Bytes>,
    pub(crate) recv: RecvStream,
    /// The place on a pooled connection; none at the server's side.
    _lease: Option<Lease>,
}

impl Tunnel {
    pub(crate) fn new(send: SendStream<Bytes>, recv: RecvStream, lease: Option<Lease>) -> Self {
        Self {
            send,
            recv,
            _lease: lease,
        }
    }

    /// Resets the stream, telling the peer that the connection behind it broke.
    pub fn reset(&mut self) {
        self.send.send_reset(h2::Reason::CONNECT_ERROR);
    }
}
