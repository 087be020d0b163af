//! Chunks of data in HTTP/2's send queue, which count themselves so that a caller can wait until all are sent.
//!
//! A reset drops the unsent data of its stream. Before a stream is reset because the connection behind it broke, the
//! earlier bytes must therefore have been sent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;

/// Counter of one stream's data frames in HTTP/2's send queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnsentFrames(Arc<UnsentCounter>);

#[derive(Debug, Default)]
struct UnsentCounter {
    unsent_chunks: AtomicUsize,
    flush_waker: AtomicWaker,
}

impl UnsentFrames {
    /// Completes once all queued data of the stream has been sent.
    pub(crate) fn poll_all_sent(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.flush_waker.register(cx.waker());
        if self.0.unsent_chunks.load(Ordering::Acquire) == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Chunk of data in HTTP/2's send queue, which is dropped once it is sent or the stream is reset.
#[derive(Debug)]
pub(crate) struct SendChunk {
    bytes: Bytes,
    unsent: UnsentFrames,
}

impl SendChunk {
    pub(crate) fn new(bytes: Bytes, unsent: &UnsentFrames) -> Self {
        unsent.0.unsent_chunks.fetch_add(1, Ordering::Relaxed);
        Self {
            bytes,
            unsent: unsent.clone(),
        }
    }
}

impl Drop for SendChunk {
    fn drop(&mut self) {
        if self.unsent.0.unsent_chunks.fetch_sub(1, Ordering::Release) == 1 {
            self.unsent.0.flush_waker.wake();
        }
    }
}

impl Buf for SendChunk {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, n: usize) {
        self.bytes.advance(n);
    }

    fn copy_to_bytes(&mut self, n: usize) -> Bytes {
        self.bytes.copy_to_bytes(n)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn unsent_is_empty_when_the_last_piece_is_dropped() {
        let unsent = UnsentFrames::default();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(unsent.poll_all_sent(&mut cx).is_ready());
        let first = SendChunk::new(Bytes::from_static(b"one"), &unsent);
        let mut second = SendChunk::new(Bytes::from_static(b"two"), &unsent);
        drop(first);
        second.advance(2);
        assert_eq!(second.chunk(), b"o");
        assert!(unsent.poll_all_sent(&mut cx).is_pending());
        drop(second);
        assert!(unsent.poll_all_sent(&mut cx).is_ready());
    }
}
