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

use crate::{
    memory::{MemoryAccount, MemoryPermit},
    tunnel_windows::ConnectionWindows,
};

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

/// Memory accounts that a connection to an endpoint is charged to: that of its tunnel, and that of the HBONE connection
/// below, which another caller may have opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChargedAccounts(pub(crate) [Option<MemoryAccount>; 2]);

impl ChargedAccounts {
    /// Whether `predicate` is true for one of the accounts.
    pub(crate) fn any(&self, predicate: impl Fn(&MemoryAccount) -> bool) -> bool {
        self.0.iter().flatten().any(predicate)
    }
}

impl Stream {
    /// Returns the memory accounts that the connection is charged to.
    pub(crate) fn charged_accounts(&self) -> ChargedAccounts {
        match self {
            Self::Plain(_) => ChargedAccounts::default(),
            Self::Tunnel(tunnel, permit) => {
                let connection = tunnel.read_connection_permit(|permit| {
                    let permit = permit.downcast_ref::<ConnectionWindows>();
                    permit.map(|permit| permit.account().clone())
                });
                let tunnel = permit.as_ref().map(|permit| permit.account().clone());
                ChargedAccounts([tunnel, connection.flatten()])
            }
            Self::Tls(stream) => stream.get_ref().0.charged_accounts(),
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

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tunnel(tunnel, _) => Pin::new(tunnel).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tunnel(tunnel, _) => tunnel.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
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
