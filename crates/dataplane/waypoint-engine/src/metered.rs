//! Stream that counts the bytes that are read, and detects a reset of its peer even while it is neither read nor
//! written.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Timeout for delivering bytes that a client sent before it reset its connection.
const RESET_GRACE: Duration = Duration::from_secs(5);

/// One end of a relayed connection, which [`reset_by_client`] watches.
#[derive(Debug)]
pub(crate) struct Metered<'a, IO, F> {
    io: &'a Mutex<IO>,
    count: F,
}

impl<'a, IO, F: Fn(u64)> Metered<'a, IO, F> {
    pub(crate) fn new(io: &'a Mutex<IO>, count: F) -> Self {
        Self { io, count }
    }
}

/// Waits until the client's side has failed, and returns the error a while later; also while its bytes wait for the
/// other side of the connection, so that it is not read.
pub(crate) async fn reset_by_client<IO: AsyncWrite + Unpin>(io: &Mutex<IO>) -> io::Error {
    let error = poll_fn(|cx| match Pin::new(&mut *io.lock()).poll_flush(cx) {
        Poll::Ready(Err(error)) => Poll::Ready(error),
        Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
    })
    .await;
    tokio::time::sleep(RESET_GRACE).await;
    error
}

impl<IO: AsyncRead + Unpin, F: Fn(u64) + Unpin> AsyncRead for Metered<'_, IO, F> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut *this.io.lock()).poll_read(cx, buf))?;
        let read = buf.filled().len().saturating_sub(before);
        (this.count)(u64::try_from(read).unwrap_or(u64::MAX));
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin, F: Unpin> AsyncWrite for Metered<'_, IO, F> {
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
