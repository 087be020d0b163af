//! Buffered reads of TLS bytes: reads large chunks from the socket beneath the TLS layer.
//!
//! The TLS library requests 4 KiB at a time. [`BufferedReads`] reads everything that the socket has, up to
//! [`SCRATCH_BYTES`], and returns it piece by piece. A connection holds a buffer only while it has unread bytes; an
//! empty buffer returns to its worker thread, so that idle connections use no memory for it.

use std::{
    cell::RefCell,
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ambit_tls::TrustWithdrawalReason;
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::poll_read_buf;

use crate::{scratch::SCRATCH_BYTES, withdrawal};

/// Maximum free buffers that a thread keeps for later reads.
const MAX_FREE_BUFFERS: usize = 2;

thread_local! {
    static FREE_BUFFERS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// Wrapper of a socket that reads large chunks, for TLS on top of it.
pub struct BufferedReads<IO> {
    io: IO,
    /// Bytes that were read from the socket but not yet returned to the TLS layer.
    buffered: BytesMut,
    /// Future that completes when the peer's certificate or trust domain is no longer accepted; reads then fail.
    trust_withdrawn: Option<Pin<Box<dyn Future<Output = TrustWithdrawalReason> + Send>>>,
}

impl<IO: fmt::Debug> fmt::Debug for BufferedReads<IO> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferedReads")
            .field("io", &self.io)
            .finish_non_exhaustive()
    }
}

impl<IO> BufferedReads<IO> {
    /// Wraps the socket `io` in a read buffer.
    pub fn new(io: IO) -> Self {
        Self {
            io,
            buffered: BytesMut::new(),
            trust_withdrawn: None,
        }
    }

    /// Makes reads fail once `withdrawn` completes, because the peer is no longer accepted.
    pub(crate) fn fail_reads_on_withdrawal(
        &mut self,
        withdrawn: impl Future<Output = TrustWithdrawalReason> + Send + 'static,
    ) {
        self.trust_withdrawn = Some(Box::pin(withdrawn));
    }
}

fn take_free_buffer() -> BytesMut {
    FREE_BUFFERS
        .with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| BytesMut::with_capacity(SCRATCH_BYTES))
}

fn return_free_buffer(mut buffer: BytesMut) {
    buffer.clear();
    FREE_BUFFERS.with_borrow_mut(|free| {
        // Returning pieces moves the start; a buffer that lost much of its capacity is not kept.
        if free.len() < MAX_FREE_BUFFERS && buffer.try_reclaim(SCRATCH_BYTES) {
            free.push(buffer);
        }
    });
}

impl<IO: AsyncRead + Unpin> AsyncRead for BufferedReads<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            io,
            buffered,
            trust_withdrawn: withdrawn,
        } = self.get_mut();
        if let Some(waiting) = withdrawn
            && let Poll::Ready(why) = waiting.as_mut().poll(cx)
        {
            *withdrawn = None;
            return Poll::Ready(Err(withdrawal::withdrawal_error(why)));
        }
        if buffered.is_empty() {
            if out.remaining() >= SCRATCH_BYTES {
                return Pin::new(io).poll_read(cx, out);
            }
            let mut buffer = take_free_buffer();
            match poll_read_buf(Pin::new(io), cx, &mut buffer) {
                Poll::Ready(Ok(n)) if n > 0 => *buffered = buffer,
                other => {
                    return_free_buffer(buffer);
                    ready!(other)?;
                    return Poll::Ready(Ok(()));
                }
            }
        }
        let n = buffered.len().min(out.remaining());
        out.put_slice(buffered.get(..n).unwrap_or_default());
        buffered.advance(n);
        if buffered.is_empty() {
            return_free_buffer(std::mem::take(buffered));
        }
        Poll::Ready(Ok(()))
    }
}

crate::pass_writes!(BufferedReads);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn reads_return_all_bytes_in_order_and_the_end() {
        let (mut near, far) = tokio::io::duplex(200_000);
        let sent: Vec<u8> = (0..150_000)
            .map(|i| b'a' + u8::try_from(i % 23).unwrap())
            .collect();
        near.write_all(&sent).await.unwrap();
        drop(near);
        let mut coarse = BufferedReads::new(far);
        let mut got = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let n = coarse.read(&mut piece).await.unwrap();
            if n == 0 {
                break;
            }
            got.extend_from_slice(&piece[..n]);
            assert!(coarse.buffered.is_empty() || coarse.buffered.capacity() <= SCRATCH_BYTES);
        }
        assert!(got == sent);
        assert_eq!(
            coarse.buffered.capacity(),
            0,
            "an idle connection holds no buffer"
        );
        FREE_BUFFERS
            .with_borrow(|free| assert!(free.len() <= MAX_FREE_BUFFERS && !free.is_empty()));
    }
}
