//! Byte stream of a connection to an endpoint.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use ambit_hbone::TunnelIo;
use ambit_tls::ClientStream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::memory::{MemoryAccount, MemoryPermit};

/// Byte stream of a connection to an endpoint.
#[derive(Debug)]
pub(crate) enum Stream {
    /// TCP stream without tunnel or TLS.
    Plain(TcpStream),
    /// HBONE tunnel, with its memory permit.
    Tunnel(Box<TunnelIo>, Option<MemoryPermit>),
    /// TLS stream that the waypoint originates over another stream.
    Tls(Box<ClientStream<Self>>),
}

impl Stream {
    /// Returns the memory account that the connection is charged to, if any.
    pub(crate) fn memory_account(&self) -> Option<&MemoryAccount> {
        match self {
            Self::Plain(_) => None,
            Self::Tunnel(_, permit) => permit.as_ref().map(MemoryPermit::account),
            Self::Tls(stream) => stream.get_ref().0.memory_account(),
        }
    }

    /// Makes the stream reset its connection on drop, instead of closing it gracefully.
    pub(crate) fn reset_on_drop(&mut self) {
        match self {
            Self::Plain(stream) => {
                if let Err(error) = stream.set_zero_linger() {
                    tracing::debug!(%error, "a connection ends in order that should be reset");
                }
            }
            Self::Tunnel(tunnel, _) => tunnel.reset_on_drop(),
            Self::Tls(stream) => stream.get_mut().0.reset_on_drop(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tunnel(tunnel, _) => Pin::new(tunnel).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tunnel(tunnel, _) => Pin::new(tunnel).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tunnel(tunnel, _) => Pin::new(tunnel).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tunnel(tunnel, _) => Pin::new(tunnel).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
