//! Lingering close of an HTTP/1 connection whose last request has not been read completely: the remaining input is read
//! and discarded for a while (RFC 9112, section 9.6). An immediate close would reset the connection, and a client that
//! is still sending might lose the response.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::header_timeout::RequestProgress;

/// Maximum time for which a closing connection reads a client that keeps sending.
const MAX_LINGER: Duration = Duration::from_secs(30);
/// Maximum time for which a closing connection waits for a silent client.
const MAX_SILENCE: Duration = Duration::from_secs(5);
/// Buffer size for reading discarded input, in bytes.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// Client's connection that is closed with lingering if the last request was not read completely.
#[derive(Debug)]
pub(in crate::http) struct LingeringCloseIo<IO> {
    io: IO,
    progress: RequestProgress,
    closing: Option<LingeringClose>,
}

/// State of a lingering close: the waypoint has closed its sending side, and discards input.
#[derive(Debug)]
struct LingeringClose {
    deadline: Instant,
    silence_timer: Pin<Box<Sleep>>,
}

impl LingeringClose {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            deadline: now + MAX_LINGER,
            silence_timer: Box::pin(sleep_until(now + MAX_SILENCE)),
        }
    }

    fn poll_discard_input<IO: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut IO,
    ) -> Poll<()> {
        let mut space = [0; READ_BUFFER_BYTES];
        loop {
            let mut buf = ReadBuf::new(&mut space);
            match Pin::new(&mut *io).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    let now = Instant::now();
                    if now >= self.deadline {
                        return Poll::Ready(());
                    }
                    let until = self.deadline.min(now + MAX_SILENCE);
                    self.silence_timer.as_mut().reset(until);
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.silence_timer.as_mut().poll(cx),
            }
        }
    }
}

impl<IO> LingeringCloseIo<IO> {
    /// Wraps a connection, with the progress of its requests: whether the last one has been read completely.
    pub(in crate::http) fn new(io: IO, progress: RequestProgress) -> Self {
        Self {
            io,
            progress,
            closing: None,
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for LingeringCloseIo<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringCloseIo<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.closing.is_none() {
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
            if !this.progress.has_unread_request_body() {
                return Poll::Ready(Ok(()));
            }
        }
        let closing = this.closing.get_or_insert_with(LingeringClose::new);
        closing.poll_discard_input(cx, &mut this.io).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::http::body::count::BodyCounter;

    fn lingering(
        is_whole: bool,
    ) -> (
        tokio::io::DuplexStream,
        LingeringCloseIo<tokio::io::DuplexStream>,
    ) {
        let (client, server) = duplex(1 << 10);
        let pacing = RequestProgress::default();
        let count = BodyCounter::new(false);
        if is_whole {
            count.mark_complete();
        }
        pacing.set_body_counter(count);
        (client, LingeringCloseIo::new(server, pacing))
    }

    #[tokio::test(start_paused = true)]
    async fn rest_of_an_upload_is_drained() {
        let (mut client, mut server) = lingering(false);
        let closing = tokio::spawn(async move { server.shutdown().await });
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        client.write_all(&vec![b'a'; 1 << 20]).await.unwrap();
        assert!(!closing.is_finished());
        drop(client);
        closing.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_close_is_bounded_in_time() {
        let (_client, mut server) = lingering(false);
        let began = Instant::now();
        server.shutdown().await.unwrap();
        assert_eq!(began.elapsed().as_secs(), MAX_SILENCE.as_secs());
        let (mut client, mut server) = lingering(false);
        let began = Instant::now();
        let endless = tokio::spawn(async move {
            while client.write_all(b"a").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        server.shutdown().await.unwrap();
        drop(server);
        assert!(
            (MAX_LINGER.as_secs()..=MAX_LINGER.as_secs() + 1).contains(&began.elapsed().as_secs())
        );
        endless.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_complete_requests_closes_at_once() {
        let (_client, mut server) = lingering(true);
        let began = Instant::now();
        server.shutdown().await.unwrap();
        assert!(began.elapsed().is_zero());
    }
}
