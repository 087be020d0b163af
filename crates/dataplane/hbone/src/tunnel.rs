//! Tunnel: an HTTP/2 stream that carries a connection's bytes.

use std::{
    any::Any,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    byte_receiver::{ByteReceiver, ByteReceivers},
    lease::StreamLease,
    send_chunk::{SendChunk, UnsentFrames},
};

/// Established tunnel. Dropping it before both directions have ended resets the stream with CANCEL, which some peers
/// take for an end of data: see [`Self::reset`].
#[derive(Debug)]
pub struct Tunnel {
    pub(crate) sender: TunnelSender,
    pub(crate) recv: RecvStream,
}

/// Sending side of a tunnel, with the tunnel's slot on its connection.
#[derive(Debug)]
pub(crate) struct TunnelSender {
    pub(crate) send: SendStream<SendChunk>,
    pub(crate) unsent: UnsentFrames,
    slot: StreamSlot,
}

/// Stream slot of a tunnel on its connection, released on drop.
#[derive(Debug)]
pub(crate) enum StreamSlot {
    Client(StreamLease),
    Server(OpenStream),
}

impl StreamSlot {
    fn byte_receivers(&self) -> &ByteReceivers {
        match self {
            Self::Client(lease) => lease.byte_receivers(),
            Self::Server(stream) => &stream.0.byte_receivers,
        }
    }
}

/// State of a server connection that its driver and its tunnels share.
#[derive(Debug, Default)]
pub(crate) struct ServerStreams {
    count: AtomicUsize,
    pub(crate) byte_receivers: ByteReceivers,
}

impl ServerStreams {
    /// Returns the number of open streams.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// Guard that counts one open stream of a server connection until dropped.
#[derive(Debug)]
pub(crate) struct OpenStream(Arc<ServerStreams>);

impl OpenStream {
    pub(crate) fn new(streams: &Arc<ServerStreams>) -> Self {
        streams.count.fetch_add(1, Ordering::Relaxed);
        Self(streams.clone())
    }

    /// Returns the number of open streams on the connection.
    pub(crate) fn count(&self) -> usize {
        self.0.count()
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tunnel {
    pub(crate) fn new(send: SendStream<SendChunk>, recv: RecvStream, slot: StreamSlot) -> Self {
        let sender = TunnelSender {
            send,
            unsent: UnsentFrames::default(),
            slot,
        };
        Self { sender, recv }
    }

    /// Resets the stream with CONNECT_ERROR, since the connection behind the tunnel broke (RFC 9113, section 8.5).
    /// Unsent data is dropped.
    pub fn reset(&mut self) {
        self.sender.reset();
    }

    /// Converts the tunnel to a byte stream (`AsyncRead` and `AsyncWrite`), which can carry another protocol such as
    /// TLS.
    pub fn into_io(self) -> TunnelIo {
        let Self { sender, recv } = self;
        TunnelIo {
            receiver: sender.slot.byte_receivers().register(recv),
            sender,
            resets_on_drop: false,
        }
    }
}

impl TunnelSender {
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

    fn reset(&mut self) {
        self.send.send_reset(h2::Reason::CONNECT_ERROR);
    }
}

/// Tunnel as a byte stream (`AsyncRead` and `AsyncWrite`), from [`Tunnel::into_io`].
#[derive(Debug)]
pub struct TunnelIo {
    sender: TunnelSender,
    receiver: Arc<Mutex<ByteReceiver>>,
    resets_on_drop: bool,
}

impl TunnelIo {
    /// Calls `read` with the permit of the connection that carries the tunnel (see
    /// [`ConnectionReservation`](crate::pool::ConnectionReservation)); `None` if it holds none.
    pub fn read_connection_permit<T>(&self, read: impl FnOnce(&dyn Any) -> T) -> Option<T> {
        match &self.sender.slot {
            StreamSlot::Client(lease) => lease.connection().read_permit(read),
            StreamSlot::Server(_) => None,
        }
    }

    /// Makes dropping the value reset the stream, unless both directions have ended; data that the peer's windows do
    /// not allow is discarded. Otherwise the stream and its upstream stay open until the peer has read everything.
    pub fn reset_on_drop(&mut self) {
        self.resets_on_drop = true;
    }
}

impl Drop for TunnelIo {
    fn drop(&mut self) {
        if self.resets_on_drop {
            self.sender.reset();
        }
    }
}

impl AsyncRead for TunnelIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.receiver.lock().poll_read(cx, buf)
    }
}

impl AsyncWrite for TunnelIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        if bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        let sender = &mut self.get_mut().sender;
        let capacity = match ready!(sender.poll_capacity(cx, bytes)) {
            Some(capacity) => capacity.map_err(io::Error::other)?,
            None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        };
        let TunnelSender { send, unsent, .. } = sender;
        let n = capacity.min(bytes);
        let mut piece = Vec::with_capacity(n);
        for slice in slices {
            let room = n - piece.len();
            piece.extend_from_slice(slice.get(..room).unwrap_or(slice));
        }
        send.send_data(SendChunk::new(piece.into(), unsent), false)
            .map_err(io::Error::other)?;
        Poll::Ready(Ok(n))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Flushes nothing, since the connection's driver sends by itself. Returns an error if the peer has disconnected,
    /// so that a writer that no longer reads notices.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut().sender.send.poll_reset(cx) {
            Poll::Pending => Poll::Ready(Ok(())),
            Poll::Ready(Ok(_reason)) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(io::Error::other(error))),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let TunnelSender { send, unsent, .. } = &mut self.get_mut().sender;
        let ended = send.send_data(SendChunk::new(Bytes::new(), unsent), true);
        Poll::Ready(ended.map_err(io::Error::other))
    }
}
