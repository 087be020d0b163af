//! Tunnel: an HTTP/2 stream that carries a connection's bytes.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    lease::StreamLease,
    send_chunk::{SendChunk, UnsentFrames},
};

/// Established tunnel. Dropping it before both directions have ended resets the stream with CANCEL, which some peers
/// take for an end of data: see [`Self::reset`].
#[derive(Debug)]
pub struct Tunnel {
    pub(crate) send: SendStream<SendChunk>,
    pub(crate) recv: RecvStream,
    pub(crate) unsent: UnsentFrames,
    slot: StreamSlot,
}

/// Stream slot of a tunnel on its connection, released on drop.
#[derive(Debug)]
pub(crate) enum StreamSlot {
    Client(StreamLease),
    Server(#[expect(dead_code, reason = "counts while it is held")] OpenStream),
}

/// Guard that counts one open stream of a server connection until dropped.
#[derive(Debug)]
pub(crate) struct OpenStream(Arc<AtomicUsize>);

impl OpenStream {
    pub(crate) fn new(streams: &Arc<AtomicUsize>) -> Self {
        streams.fetch_add(1, Ordering::Relaxed);
        Self(streams.clone())
    }

    /// Returns the number of open streams on the connection.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tunnel {
    pub(crate) fn new(send: SendStream<SendChunk>, recv: RecvStream, slot: StreamSlot) -> Self {
        Self {
            send,
            recv,
            unsent: UnsentFrames::default(),
            slot,
        }
    }

    /// Completes when the flow-control windows permit to send some of `len` bytes, and returns their number; `None`
    /// when the stream is closed for sending.
    pub(crate) fn poll_capacity(
        &mut self,
        cx: &mut Context<'_>,
        len: usize,
    ) -> Poll<Option<Result<usize, h2::Error>>> {
        self.send.reserve_capacity(len);
        let capacity = loop {
            match self.send.capacity() {
                0 => match self.send.poll_capacity(cx) {
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(end) => break Poll::Ready(end),
                    Poll::Pending => break Poll::Pending,
                },
                capacity => break Poll::Ready(Some(Ok(capacity))),
            }
        };
        if let StreamSlot::Client(lease) = &mut self.slot {
            lease.set_blocked(capacity.is_pending());
        }
        capacity
    }

    /// Resets the stream with CONNECT_ERROR, since the connection behind the tunnel broke (RFC 9113, section 8.5).
    /// Unsent data is dropped.
    pub fn reset(&mut self) {
        self.send.send_reset(h2::Reason::CONNECT_ERROR);
    }

    /// Converts the tunnel to a byte stream (`AsyncRead` and `AsyncWrite`), which can carry another protocol such as
    /// TLS.
    pub fn into_io(self) -> TunnelIo {
        TunnelIo {
            tunnel: self,
            read_buffer: Bytes::new(),
            resets_on_drop: false,
        }
    }
}

/// Tunnel as a byte stream (`AsyncRead` and `AsyncWrite`), from [`Tunnel::into_io`].
#[derive(Debug)]
pub struct TunnelIo {
    tunnel: Tunnel,
    read_buffer: Bytes,
    resets_on_drop: bool,
}

impl TunnelIo {
    /// Makes dropping the value reset the stream, unless both directions have ended; data that the peer's windows do
    /// not allow is discarded. Otherwise the stream and its upstream stay open until the peer has read everything.
    pub fn reset_on_drop(&mut self) {
        self.resets_on_drop = true;
    }
}

impl Drop for TunnelIo {
    fn drop(&mut self) {
        if self.resets_on_drop {
            self.tunnel.reset();
        }
    }
}

impl AsyncRead for TunnelIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            tunnel,
            read_buffer: received,
            ..
        } = self.get_mut();
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
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let tunnel = &mut self.get_mut().tunnel;
        let capacity = match ready!(tunnel.poll_capacity(cx, buf.len())) {
            Some(capacity) => capacity.map_err(io::Error::other)?,
            None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        };
        let Tunnel { send, unsent, .. } = tunnel;
        let n = capacity.min(buf.len());
        let piece = Bytes::copy_from_slice(buf.get(..n).unwrap_or_default());
        send.send_data(SendChunk::new(piece, unsent), false)
            .map_err(io::Error::other)?;
        Poll::Ready(Ok(n))
    }

    /// Flushes nothing, since the connection's driver sends by itself. Returns an error if the peer has disconnected,
    /// so that a writer that no longer reads notices.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut().tunnel.send.poll_reset(cx) {
            Poll::Pending => Poll::Ready(Ok(())),
            Poll::Ready(Ok(_reason)) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(io::Error::other(error))),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Tunnel { send, unsent, .. } = &mut self.get_mut().tunnel;
        let ended = send.send_data(SendChunk::new(Bytes::new(), unsent), true);
        Poll::Ready(ended.map_err(io::Error::other))
    }
}
