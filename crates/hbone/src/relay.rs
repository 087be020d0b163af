//! The copy loops: an application's socket and a tunnel, or two sockets.
//!
//! Both directions of a connection live in one task. Each ends by itself: an end of data is passed
//! on as such (END_STREAM, `shutdown`), and the connection is over when both have ended. Bytes are
//! read only when the previous ones have been taken, and receive-window credit goes back to the
//! peer only as the application takes its bytes, so nothing grows with a slow reader.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{Tunnel, scratch};

mod download;
mod upload;

use download::Download;
use upload::Upload;

/// Where the bytes that passed are counted, as they pass.
pub trait Meter {
    /// Read from the application (or the first of two sockets).
    fn app_sent(&self, bytes: u64);
    /// Written to the application (or the first of two sockets).
    fn app_received(&self, bytes: u64);
}

impl Meter for () {
    fn app_sent(&self, _bytes: u64) {}
    fn app_received(&self, _bytes: u64) {}
}

impl<M: Meter + ?Sized> Meter for &M {
    fn app_sent(&self, bytes: u64) {
        (**self).app_sent(bytes);
    }
    fn app_received(&self, bytes: u64) {
        (**self).app_received(bytes);
    }
}

/// Why a connection ended before both its directions had.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The tunnel broke: the peer reset it, or its connection died.
    #[error("the tunnel broke")]
    Tunnel(#[source] h2::Error),
    /// Reading from a socket.
    #[error("receive")]
    Receive(#[source] io::Error),
    /// Writing to a socket.
    #[error("send")]
    Send(#[source] io::Error),
}

impl RelayError {
    /// The low-cardinality cause.
    pub fn reason(&self) -> ambit_model::Reason {
        match self {
            Self::Tunnel(error) if crate::tls::is_revoked(error) => {
                ambit_model::Reason::CertRevoked
            }
            Self::Tunnel(_) => ambit_model::Reason::H2Failure,
            Self::Receive(_) | Self::Send(_) => ambit_model::Reason::Connect,
        }
    }
}

/// How one direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an end of data, passed on.
    Clean,
    /// The other side went away without one; there was nobody to pass it on to.
    Gone,
}

/// Copies between an application's socket and a tunnel until both directions have ended.
///
/// # Errors
/// When the tunnel breaks, or the socket in a way that is not a peer simply going away.
pub async fn relay_tunnel<A, M>(
    app: &mut A,
    tunnel: &mut Tunnel,
    meter: M,
) -> Result<(), RelayError>
where
    A: AsyncRead + AsyncWrite + Unpin,
    M: Meter,
{
    let mut upload = Upload::default();
    let mut download = Download::default();
    let (mut up, mut down) = (None, None);
    poll_fn(|cx| {
        if down.is_none()
            && let Poll::Ready(end) = download.poll(cx, app, &mut tunnel.recv, &meter)
        {
            down = Some(end?);
        }
        if up.is_none()
            && let Poll::Ready(end) = upload.poll(cx, app, &mut tunnel.send, down.is_some(), &meter)
        {
            up = Some(end?);
        }
        if up.is_some() && down.is_some() {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Copies between two sockets until both directions have ended.
///
/// # Errors
/// When a socket fails in a way that is not a peer simply going away.
pub async fn relay_plain<A, B, M>(app: &mut A, peer: &mut B, meter: M) -> Result<(), RelayError>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
    M: Meter,
{
    let mut upload = OneWay::default();
    let mut download = OneWay::default();
    poll_fn(|cx| {
        let up = upload.poll(cx, app, peer, |n| meter.app_sent(n))?;
        let down = download.poll(cx, peer, app, |n| meter.app_received(n))?;
        if up.is_ready() && down.is_ready() {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    })
    .await
}

/// One direction between sockets.
#[derive(Debug, Default)]
struct OneWay {
    /// Read but not taken yet.
    pending: Bytes,
    state: OneWayState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OneWayState {
    #[default]
    Open,
    Ending,
    Done,
}

impl OneWay {
    fn poll<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        count: impl Fn(u64),
    ) -> Poll<Result<(), RelayError>> {
        loop {
            if self.state == OneWayState::Done {
                return Poll::Ready(Ok(()));
            }
            if self.state == OneWayState::Ending {
                // A peer that is gone needs no end of data.
                let _gone = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                self.state = OneWayState::Done;
                continue;
            }
            if !self.pending.is_empty() {
                match ready!(Pin::new(&mut *to).poll_write(cx, &self.pending)) {
                    Ok(0) => return self.failed(io::ErrorKind::WriteZero.into(), RelayError::Send),
                    Ok(n) => drop(self.pending.split_to(n)),
                    Err(error) => return self.failed(error, RelayError::Send),
                }
                continue;
            }
            let mut write_failed = false;
            let passed = scratch::poll_pass(from, cx, |cx, bytes| {
                let result = ready!(Pin::new(&mut *to).poll_write(cx, bytes));
                write_failed = result.is_err();
                Poll::Ready(result)
            });
            match ready!(passed) {
                Ok(None) => self.state = OneWayState::Ending,
                Ok(Some((n, rest))) => {
                    count(n as u64);
                    self.pending = rest;
                }
                Err(error) if write_failed => return self.failed(error, RelayError::Send),
                Err(error) => {
                    if !is_gone(&error) {
                        return Poll::Ready(Err(RelayError::Receive(error)));
                    }
                    self.state = OneWayState::Ending;
                }
            }
        }
    }

    fn failed(
        &mut self,
        error: io::Error,
        side: fn(io::Error) -> RelayError,
    ) -> Poll<Result<(), RelayError>> {
        self.state = OneWayState::Done;
        self.pending = Bytes::new();
        Poll::Ready(if is_gone(&error) {
            Ok(())
        } else {
            Err(side(error))
        })
    }
}

/// Errors that only say that a peer went away, which every TCP peer may do at any time.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotConnected
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
    )
}

/// Stream resets that mean "no more", not "broken" (the contract's reading).
pub(crate) fn is_quiet(error: &h2::Error) -> bool {
    error.is_reset()
        && error.is_remote()
        && matches!(
            error.reason(),
            Some(h2::Reason::NO_ERROR | h2::Reason::CANCEL | h2::Reason::CONNECT_ERROR)
        )
}

#[cfg(test)]
mod tests;
