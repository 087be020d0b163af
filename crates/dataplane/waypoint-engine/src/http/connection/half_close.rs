//! Cancels the request of an HTTP/1 client that closes its sending side while it waits for the response: nearly all
//! clients that do so no longer read the response.
//!
//! hyper does not read while a response is pending, and would notice the half-close only later. So this wrapper reads a
//! few bytes ahead, which hyper receives next. After a request that has been read completely, further bytes are
//! discarded, so that they do not hide the half-close; the connection is closed after the retained bytes.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::header_timeout::RequestProgress;

/// Maximum bytes that are read ahead while a response is pending.
const MAX_READ_AHEAD_BYTES: usize = 64 << 10;
/// Buffer size for reading ahead, in bytes.
const READ_BUFFER_BYTES: usize = 4 << 10;

/// Error of a client that closed its sending side while it waited for the response.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the client closed its side of the connection before it had the response (AMBIT_CANCEL_ON_HALF_CLOSE)"
)]
pub(in crate::http) struct ClientHalfClosed;

/// Client's connection that reads ahead while a response is pending, and fails hyper's writes once the client has
/// closed its sending side.
#[derive(Debug)]
pub(in crate::http) struct HalfCloseIo<IO> {
    io: IO,
    /// Progress of the requests on the connection; `None` if requests of half-closed clients are served to their end.
    progress: Option<RequestProgress>,
    ahead_bytes: BytesMut,
    /// Whether the client has closed its sending side, or reading has failed.
    is_half_closed: bool,
    /// Whether input was discarded after the bytes read ahead, so that the connection must be closed after these.
    is_truncated: bool,
}

impl<IO> HalfCloseIo<IO> {
    /// Wraps a client's connection. If the progress of its requests is tracked, a half-close cancels the pending
    /// request.
    pub(in crate::http) fn new(io: IO, progress: Option<RequestProgress>) -> Self {
        Self {
            io,
            progress,
            ahead_bytes: BytesMut::new(),
            is_half_closed: false,
            is_truncated: false,
        }
    }
}

impl<IO: AsyncRead + Unpin> HalfCloseIo<IO> {
    /// Reads ahead while a response is pending, to detect a half-close.
    fn read_ahead(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(pacing) = &self.progress else {
            return Ok(());
        };
        while pacing.is_serving() {
            if self.is_half_closed {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    ClientHalfClosed,
                ));
            }
            let is_full = self.ahead_bytes.len() >= MAX_READ_AHEAD_BYTES;
            // Further body bytes are read on demand.
            if is_full && !pacing.has_read_request() {
                return Ok(());
            }
            let mut space = [0; READ_BUFFER_BYTES];
            let mut buf = ReadBuf::new(&mut space);
            match Pin::new(&mut self.io).poll_read(cx, &mut buf) {
                Poll::Pending => return Ok(()),
                Poll::Ready(read) => read?,
            }
            match buf.filled() {
                [] => self.is_half_closed = true,
                _ if is_full => self.is_truncated = true,
                bytes => self.ahead_bytes.extend_from_slice(bytes),
            }
        }
        Ok(())
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for HalfCloseIo<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.ahead_bytes.is_empty() {
            let n = this.ahead_bytes.len().min(buf.remaining());
            buf.put_slice(this.ahead_bytes.get(..n).unwrap_or_default());
            this.ahead_bytes.advance(n);
            return Poll::Ready(Ok(()));
        }
        if this.is_half_closed || this.is_truncated {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.io).poll_read(cx, buf)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for HalfCloseIo<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.read_ahead(cx)?;
        Pin::new(&mut this.io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.read_ahead(cx)?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.read_ahead(cx)?;
        Pin::new(&mut this.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::http::body::count::BodyCounter;

    /// Creates a connection with a pending response, and with a request body that has been read completely or not.
    fn with_pending_response(
        is_whole: bool,
    ) -> (
        tokio::io::DuplexStream,
        HalfCloseIo<tokio::io::DuplexStream>,
        impl Sized,
    ) {
        let (client, server) = tokio::io::duplex(1 << 20);
        let pacing = RequestProgress::default();
        let serving = pacing.begin_request();
        let count = BodyCounter::new(false);
        if is_whole {
            count.mark_complete();
        }
        pacing.set_body_counter(count);
        (client, HalfCloseIo::new(server, Some(pacing)), serving)
    }

    #[tokio::test]
    async fn half_close_is_detected_after_pipelined_bytes() {
        for bytes in [0, 1, MAX_READ_AHEAD_BYTES, MAX_READ_AHEAD_BYTES * 3] {
            let (mut client, mut server, _serving) = with_pending_response(true);
            client.write_all(&vec![b'a'; bytes]).await.unwrap();
            server.flush().await.unwrap();
            drop(client);
            let error = server.flush().await.unwrap_err();
            assert!(
                error
                    .get_ref()
                    .is_some_and(|inner| inner.is::<ClientHalfClosed>())
            );
        }
    }

    #[tokio::test]
    async fn bytes_read_ahead_are_served_next() {
        let (mut client, mut server, serving) = with_pending_response(true);
        client.write_all(b"GET / HTTP/1.1").await.unwrap();
        server.flush().await.unwrap();
        drop(serving);
        client.write_all(b"\r\n").await.unwrap();
        drop(client);
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"GET / HTTP/1.1\r\n");
    }

    #[tokio::test]
    async fn read_ahead_of_a_body_is_bounded() {
        let (mut client, mut server, _serving) = with_pending_response(false);
        client.write_all(&vec![b'a'; 1 << 19]).await.unwrap();
        drop(client);
        server.flush().await.unwrap();
        assert!(server.ahead_bytes.len() <= MAX_READ_AHEAD_BYTES + READ_BUFFER_BYTES);
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), 1 << 19);
    }
}
