//! Stream that counts the bytes read from it, and detects that its peer has reset the connection even while nothing is
//! read or written.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Time for which the bytes that a client sent before it reset its connection may still be delivered to the endpoint.
const RESET_GRACE: Duration = Duration::from_secs(5);

/// Downstream or upstream side of a relayed connection, which counts the bytes read and which [`wait_for_client_reset`]
/// watches.
#[derive(Debug)]
pub(crate) struct CountingIo<'a, IO, F> {
    io: &'a Mutex<IO>,
    on_read: F,
}

impl<'a, IO, F: Fn(u64)> CountingIo<'a, IO, F> {
    pub(crate) fn new(io: &'a Mutex<IO>, count: F) -> Self {
        Self { io, on_read: count }
    }
}

/// Completes with the error [`RESET_GRACE`] after the client has reset its connection. It detects the reset even while
/// the relay does not read from the client because the endpoint accepts no bytes.
pub(crate) async fn wait_for_client_reset<IO: AsyncWrite + Unpin>(io: &Mutex<IO>) -> io::Error {
    let error = poll_fn(|cx| match Pin::new(&mut *io.lock()).poll_flush(cx) {
        Poll::Ready(Err(error)) => Poll::Ready(error),
        Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
    })
    .await;
    tokio::time::sleep(RESET_GRACE).await;
    error
}

impl<IO: AsyncRead + Unpin, F: Fn(u64) + Unpin> AsyncRead for CountingIo<'_, IO, F> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut *this.io.lock()).poll_read(cx, buf))?;
        let read = buf.filled().len().saturating_sub(before);
        (this.on_read)(u64::try_from(read).unwrap_or(u64::MAX));
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin, F: Unpin> AsyncWrite for CountingIo<'_, IO, F> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.io.lock()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io.lock()).poll_shutdown(cx)
    }
}
