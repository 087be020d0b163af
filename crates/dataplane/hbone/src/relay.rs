//! Relay: copies between an application's socket and a tunnel, two sockets, or two tunnels.
//!
//! Both directions of a connection are in one task. Each ends by itself: an end of data is passed on as such
//! (END_STREAM, `shutdown`), and the connection is over when both have ended. Bytes are read only when the previous
//! ones have been written, and receive-window credit is returned to the peer only as the application reads its bytes,
//! so a slow reader needs no more memory than that window.
//!
//! A side that breaks (a reset, a dead connection) is never passed on as an end of data. The bytes it sent before are
//! delivered, as in TCP, within [`ends::LAST_BYTES_TIMEOUT`]; then the tunnel is reset, and the caller resets its
//! sockets, as it does for every relay that does not end with `Ok`.

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll, ready},
};

use crate::Tunnel;

mod download;
mod ends;
mod forward;
mod meter;
mod received;
mod socket;
mod socket_copy;
mod upload;

use download::Download;
pub use ends::RelayError;
use ends::{LastBytesTimer, RelayEnds};
use forward::Forward;
pub use meter::{Meter, ReversedMeter};
pub use socket::Socket;
use socket::SocketErrorTimer;
use socket_copy::SocketCopy;
use upload::Upload;

/// Copies between an application's socket and a tunnel until both directions have ended. If either
/// breaks, the tunnel is reset; the caller must reset the socket.
///
/// # Errors
/// When the tunnel or the socket breaks.
pub fn relay_tunnel<A, M>(
    app: &mut A,
    tunnel: &mut Tunnel,
    meter: M,
) -> impl Future<Output = Result<(), RelayError>>
where
    A: Socket,
    M: Meter,
{
    // Each open connection has this future: an async function would hold its arguments twice, and room for each of its
    // steps.
    let mut relay = TunnelRelay::default();
    poll_fn(move |cx| relay.poll(cx, app, tunnel, &meter))
}

/// State of [`relay_tunnel`].
#[derive(Default)]
struct TunnelRelay {
    watch: SocketErrorTimer,
    upload: Upload,
    download: Download,
    ends: RelayEnds,
}

impl TunnelRelay {
    fn poll<A: Socket, M: Meter>(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut A,
        tunnel: &mut Tunnel,
        meter: &M,
    ) -> Poll<Result<(), RelayError>> {
        if !self.ends.is_over {
            ready!(self.poll_directions(cx, app, tunnel, meter));
        }
        if self.ends.first_error.is_some() {
            let timer = &mut self.ends.last_bytes_timer;
            ready!(poll_reset_after_flush(cx, tunnel, timer));
        }
        Poll::Ready(self.ends.take_result())
    }

    fn poll_directions<A: Socket, M: Meter>(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut A,
        tunnel: &mut Tunnel,
        meter: &M,
    ) -> Poll<()> {
        let Self {
            watch,
            upload,
            download,
            ends,
        } = self;
        if !ends.download_ended
            && let Poll::Ready(over) = download.poll(cx, app, &mut tunnel.recv, ends, meter)
        {
            ends.end_download(over);
        }
        if !ends.upload_ended
            && let Poll::Ready(over) = upload.poll(cx, app, &mut tunnel.sender, ends, meter)
        {
            ends.end_upload(over);
        }
        let bytes_wait = !ends.upload_ended && upload.has_pending_bytes();
        if let Poll::Ready(error) = watch.poll(cx, app, bytes_wait) {
            ends.record_socket_failure(error);
        }
        ends.poll(cx)
    }
}

/// Resets a tunnel once its pending data has been sent, or after a timeout.
fn poll_reset_after_flush(
    cx: &mut Context<'_>,
    tunnel: &mut Tunnel,
    last_bytes_timer: &mut LastBytesTimer,
) -> Poll<()> {
    if tunnel.sender.unsent.poll_all_sent(cx).is_pending() {
        ready!(last_bytes_timer.poll(cx));
    }
    tunnel.reset();
    Poll::Ready(())
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
    let mut ends = RelayEnds::default();
    poll_fn(|cx| {
        loop {
            let before = (ends.upload_ended, ends.download_ended);
            if !ends.upload_ended {
                let count = |n| meter.count_app_sent(n);
                let over = upload.poll(
                    cx,
                    &mut app.recv,
                    &mut peer.sender,
                    &mut ends,
                    before.1,
                    count,
                );
                if let Poll::Ready(over) = over {
                    ends.end_upload(over);
                }
            }
            if !ends.download_ended {
                let count = |n| meter.count_app_received(n);
                let over = download.poll(
                    cx,
                    &mut peer.recv,
                    &mut app.sender,
                    &mut ends,
                    before.0,
                    count,
                );
                if let Poll::Ready(over) = over {
                    ends.end_download(over);
                }
            }
            // Each direction waits for other things once the other is over.
            if before == (ends.upload_ended, ends.download_ended) {
                return ends.poll(cx);
            }
        }
    })
    .await;
    if ends.first_error.is_some() {
        for tunnel in [app, peer] {
            poll_fn(|cx| poll_reset_after_flush(cx, tunnel, &mut ends.last_bytes_timer)).await;
        }
    }
    ends.take_result()
}

/// Copies between two sockets until both directions have ended.
///
/// # Errors
/// When a socket breaks.
pub fn relay_plain<A, B, M>(
    app: &mut A,
    peer: &mut B,
    meter: M,
) -> impl Future<Output = Result<(), RelayError>>
where
    A: Socket,
    B: Socket,
    M: Meter,
{
    let (mut watch_app, mut watch_peer) =
        (SocketErrorTimer::default(), SocketErrorTimer::default());
    let mut upload = SocketCopy::default();
    let mut download = SocketCopy::default();
    let mut ends = RelayEnds::default();
    poll_fn(move |cx| {
        if !ends.upload_ended
            && let Poll::Ready(over) =
                upload.poll(cx, app, peer, &mut ends, |n| meter.count_app_sent(n))
        {
            ends.end_upload(over);
        }
        if !ends.download_ended
            && let Poll::Ready(over) =
                download.poll(cx, peer, app, &mut ends, |n| meter.count_app_received(n))
        {
            ends.end_download(over);
        }
        if let Poll::Ready(error) =
            watch_app.poll(cx, app, !ends.upload_ended && upload.has_pending_bytes())
        {
            ends.record_socket_failure(error);
        }
        if let Poll::Ready(error) = watch_peer.poll(
            cx,
            peer,
            !ends.download_ended && download.has_pending_bytes(),
        ) {
            ends.record_socket_failure(error);
        }
        ready!(ends.poll(cx));
        Poll::Ready(ends.take_result())
    })
}

/// Whether the error only reports that the peer disconnected, as it may at any time.
pub(crate) fn is_disconnect_error(error: &io::Error) -> bool {
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
