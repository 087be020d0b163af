//! A stream of which the bytes that are read are counted.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// See the module.
#[derive(Debug)]
pub(crate) struct Metered<IO, F> {
    io: IO,
    count: F,
}

impl<IO, F: Fn(u64)> Metered<IO, F> {
    pub(crate) fn new(io: IO, count: F) -> Self {
        Self { io, count }
    }
}

impl<IO: AsyncRead + Unpin, F: Fn(u64) + Unpin> AsyncRead for Metered<IO, F> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        let read = buf.filled().len().saturating_sub(before);
        (this.count)(u64::try_from(read).unwrap_or(u64::MAX));
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin, F: Unpin> AsyncWrite for Metered<IO, F> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
