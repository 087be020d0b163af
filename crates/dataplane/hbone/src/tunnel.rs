//! One tunnel: an HTTP/2 stream that carries a connection's bytes.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    client::Lease,
    piece::{Piece, Unsent},
};

/// An established tunnel. Dropping it before both directions have ended resets the stream too, but as
/// cancelled, which some peers take for an end of data: see [`Self::reset`].
#[derive(Debug)]
pub struct Tunnel {
    pub(crate) send: SendStream<Piece>,
    pub(crate) recv: RecvStream,
    pub(crate) unsent: Unsent,
    /// The lease of a pooled connection; none on the server side.
    _lease: Option<Lease>,
}

impl Tunnel {
    pub(crate) fn new(send: SendStream<Piece>, recv: RecvStream, lease: Option<Lease>) -> Self {
        Self {
            send,
            recv,
            unsent: Unsent::default(),
            _lease: lease,
        }
    }

    /// Resets the stream: the connection behind the tunnel broke (RFC 9113, section 8.5). Unsent data is
    /// dropped.
    pub fn reset(&mut self) {
        self.send.send_reset(h2::Reason::CONNECT_ERROR);
    }

    /// The tunnel as a byte stream, for another protocol inside it.
    pub fn into_io(self) -> TunnelIo {
        TunnelIo {
            tunnel: self,
            received: Bytes::new(),
        }
    }
}

/// See [`Tunnel::into_io`].
#[derive(Debug)]
pub struct TunnelIo {
    tunnel: Tunnel,
    received: Bytes,
}

impl AsyncRead for TunnelIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { tunnel, received } = self.get_mut();
        while received.is_empty() {
            match ready!(tunnel.recv.poll_data(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(Ok(bytes)) => *received = bytes,
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
            }
        }
        let n = received.len().min(buf.remaining());
        buf.put_slice(received.get(..n).unwrap_or_default());
        received.advance(n);
        // Fails only for more than was received.
        let _credited = tunnel.recv.flow_control().release_capacity(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TunnelIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Tunnel { send, unsent, .. } = &mut self.get_mut().tunnel;
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        send.reserve_capacity(buf.len());
        let capacity = loop {
            match send.capacity() {
                0 => match ready!(send.poll_capacity(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                    None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                },
                capacity => break capacity,
            }
        };
        let n = capacity.min(buf.len());
        let piece = Bytes::copy_from_slice(buf.get(..n).unwrap_or_default());
        send.send_data(Piece::new(piece, unsent), false)
            .map_err(io::Error::other)?;
        Poll::Ready(Ok(n))
    }

    /// The connection sends by itself. Whoever has read to the end and waits before it writes more learns here that
    /// the peer has gone, as nothing else would tell.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut().tunnel.send.poll_reset(cx) {
            Poll::Pending => Poll::Ready(Ok(())),
            Poll::Ready(Ok(_reason)) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(io::Error::other(error))),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Tunnel { send, unsent, .. } = &mut self.get_mut().tunnel;
        let ended = send.send_data(Piece::new(Bytes::new(), unsent), true);
        Poll::Ready(ended.map_err(io::Error::other))
    }
}
