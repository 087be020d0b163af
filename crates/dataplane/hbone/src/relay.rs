//! The copy loops: an application's socket and a tunnel, two sockets, or two tunnels.
//!
//! Both directions of a connection are in one task. Each ends by itself: an end of data is passed on as
//! such (END_STREAM, `shutdown`), and the connection is over when both have ended. Bytes are read only
//! when the previous ones have been written, and receive-window credit is returned to the peer only as
//! the application reads its bytes, so a slow reader needs no more memory than that window.
//!
//! A side that breaks (a reset, a dead connection) is never passed on as an end of data. What it had sent
//! before is delivered as TCP would, within [`LAST_BYTES`]; then the tunnel is reset, and the caller
//! resets its sockets, as it does for every relay that does not end with `Ok`.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use crate::Tunnel;

mod download;
mod forward;
mod frames;
mod one_way;
mod received;
mod socket;
mod upload;

use download::Download;
use forward::Forward;
use one_way::OneWay;
pub use socket::Socket;
use socket::Watch;
use upload::Upload;

/// Timeout for delivering data of a side that broke.
const LAST_BYTES: Duration = Duration::from_secs(5);

/// Counts the bytes as they pass.
pub trait Meter {
    /// Read from the application (or the first of two sockets or tunnels).
    fn app_sent(&self, bytes: u64);
    /// Written to the application (or the first of two sockets or tunnels).
    fn app_received(&self, bytes: u64);
}

impl Meter for () {
    fn app_sent(&self, _bytes: u64) {}
    fn app_received(&self, _bytes: u64) {}
}

/// Meter for the opposite side: bytes read from the first end are what the application receives.
#[derive(Clone, Copy, Debug)]
pub struct Reversed<M>(pub M);

impl<M: Meter> Meter for Reversed<M> {
    fn app_sent(&self, bytes: u64) {
        self.0.app_received(bytes);
    }
    fn app_received(&self, bytes: u64) {
        self.0.app_sent(bytes);
    }
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
    /// Reading from a socket failed.
    #[error("receive")]
    Receive(#[source] io::Error),
    /// Writing to a socket failed.
    #[error("send")]
    Send(#[source] io::Error),
}

impl RelayError {
    /// Returns the low-cardinality reason for metrics.
    pub fn reason(&self) -> ambit_model::Reason {
        match self {
            Self::Tunnel(error) if crate::tls::is_withdrawn(error) => {
                ambit_model::Reason::CertRevoked
            }
            Self::Tunnel(_) => ambit_model::Reason::H2Failure,
            Self::Receive(_) | Self::Send(_) => ambit_model::Reason::Connect,
        }
    }
}

/// How one direction of the relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// Clean end of data, which was passed on.
    Clean,
    /// The source broke after all of its data was passed on. The other direction then has no receiver.
    SourceBroke,
    /// The sink broke. Data that it sent before may still be relayed in the other direction.
    SinkBroke,
}

/// Shutdown progress of a relayed connection.
#[derive(Debug, Default)]
struct Ends {
    up: bool,
    down: bool,
    /// First error: the cause of later failures.
    broken: Option<Box<RelayError>>,
    last_bytes_timer: LastBytesTimer,
}

impl Ends {
    fn up(&mut self, over: Over) {
        self.up = true;
        self.down |= over == Over::SourceBroke;
    }

    fn down(&mut self, over: Over) {
        self.down = true;
        self.up |= over == Over::SourceBroke;
    }

    /// Something broke; the connection will be reset.
    fn broke(&mut self, error: RelayError) {
        self.broken.get_or_insert_with(|| Box::new(error));
    }

    fn source_broke(&mut self, error: RelayError) -> Poll<Over> {
        self.broke(error);
        Poll::Ready(Over::SourceBroke)
    }

    fn sink_broke(&mut self, error: RelayError) -> Poll<Over> {
        self.broke(error);
        Poll::Ready(Over::SinkBroke)
    }

    /// A socket was reset whose bytes wait for a peer that does not read: no peer receives the bytes of the other
    /// direction, and what waits is delivered within [`LAST_BYTES`] or not at all.
    fn socket_failed(&mut self, error: io::Error) {
        self.broke(RelayError::Receive(error));
    }

    /// Ready when both directions are over, or the rest of a broken connection takes too long.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RelayError>> {
        let over = self.up && self.down;
        if over || self.broken.is_some() && self.last_bytes_timer.poll(cx).is_ready() {
            return Poll::Ready(self.broken.take().map_or(Ok(()), |error| Err(*error)));
        }
        Poll::Pending
    }
}

/// Waits [`LAST_BYTES`] from its first poll.
#[derive(Debug, Default)]
struct LastBytesTimer(Option<Pin<Box<Sleep>>>);

impl LastBytesTimer {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep(LAST_BYTES)));
        timer.as_mut().poll(cx)
    }
}

/// Copies between an application's socket and a tunnel until both directions have ended. If either
/// breaks, the tunnel is reset; the caller must reset the socket.
///
/// # Errors
/// When the tunnel or the socket breaks.
pub async fn relay_tunnel<A, M>(
    app: &mut A,
    tunnel: &mut Tunnel,
    meter: M,
) -> Result<(), RelayError>
where
    A: Socket,
    M: Meter,
{
    let mut watch = Watch::default();
    let mut upload = Upload::default();
    let mut download = Download::default();
    let mut ends = Ends::default();
    let result = poll_fn(|cx| {
        if !ends.down
            && let Poll::Ready(over) = download.poll(cx, app, &mut tunnel.recv, &mut ends, &meter)
        {
            ends.down(over);
        }
        if !ends.up
            && let Poll::Ready(over) = upload.poll(cx, app, tunnel, &mut ends, &meter)
        {
            ends.up(over);
        }
        let bytes_wait = !ends.up && upload.bytes_wait();
        if let Poll::Ready(error) = watch.poll(cx, app, bytes_wait) {
            ends.socket_failed(error);
        }
        ends.poll(cx)
    })
    .await;
    if result.is_err() {
        reset_when_sent(tunnel, &mut ends.last_bytes_timer).await;
    }
    result
}

/// Resets a tunnel after its pending data was sent, or after a timeout.
async fn reset_when_sent(tunnel: &mut Tunnel, last_bytes_timer: &mut LastBytesTimer) {
    poll_fn(|cx| match tunnel.unsent.poll_none(cx) {
        Poll::Pending => last_bytes_timer.poll(cx),
        sent => sent,
    })
    .await;
    tunnel.reset();
}

/// Copies between two tunnels until both directions have ended. If either breaks, both are reset.
///
/// # Errors
/// When a tunnel breaks.
pub async fn relay_tunnels<M: Meter>(
    app: &mut Tunnel,
    peer: &mut Tunnel,
    meter: M,
) -> Result<(), RelayError> {
    let (mut upload, mut download) = (Forward::default(), Forward::default());
    let mut ends = Ends::default();
    let result = poll_fn(|cx| {
        loop {
            let before = (ends.up, ends.down);
            if !ends.up {
                let count = |n| meter.app_sent(n);
                let over = upload.poll(cx, &mut app.recv, peer, &mut ends, before.1, count);
                if let Poll::Ready(over) = over {
                    ends.up(over);
                }
            }
            if !ends.down {
                let count = |n| meter.app_received(n);
                let over = download.poll(cx, &mut peer.recv, app, &mut ends, before.0, count);
                if let Poll::Ready(over) = over {
                    ends.down(over);
                }
            }
            // Each direction waits for other things once the other is over.
            if before == (ends.up, ends.down) {
                return ends.poll(cx);
            }
        }
    })
    .await;
    if result.is_err() {
        reset_when_sent(app, &mut ends.last_bytes_timer).await;
        reset_when_sent(peer, &mut ends.last_bytes_timer).await;
    }
    result
}

/// Copies between two sockets until both directions have ended.
///
/// # Errors
/// When a socket breaks.
pub async fn relay_plain<A, B, M>(app: &mut A, peer: &mut B, meter: M) -> Result<(), RelayError>
where
    A: Socket,
    B: Socket,
    M: Meter,
{
    let (mut watch_app, mut watch_peer) = (Watch::default(), Watch::default());
    let mut upload = OneWay::default();
    let mut download = OneWay::default();
    let mut ends = Ends::default();
    poll_fn(|cx| {
        if !ends.up
            && let Poll::Ready(over) = upload.poll(cx, app, peer, &mut ends, |n| meter.app_sent(n))
        {
            ends.up(over);
        }
        if !ends.down
            && let Poll::Ready(over) =
                download.poll(cx, peer, app, &mut ends, |n| meter.app_received(n))
        {
            ends.down(over);
        }
        if let Poll::Ready(error) = watch_app.poll(cx, app, !ends.up && upload.bytes_wait()) {
            ends.socket_failed(error);
        }
        if let Poll::Ready(error) = watch_peer.poll(cx, peer, !ends.down && download.bytes_wait()) {
            ends.socket_failed(error);
        }
        ends.poll(cx)
    })
    .await
}

/// Errors that only report that a peer went away, which every TCP peer may do at any time.
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

#[cfg(test)]
mod tests;
