//! Receiving side of a tunnel that is read as a byte stream.
//!
//! HTTP/2 counts small DATA frames that nobody has taken against a limit for the whole connection, and ends the
//! connection beyond it. A reader that holds back, such as an HTTP server whose upstream is slow, would leave its frames
//! there. The connection's driver therefore takes them into the receiver's own queue, which merges small ones; the
//! stream's receive window bounds their bytes, which the peer gets back only when the reader has read them.

use std::{
    io,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf, Bytes};
use h2::RecvStream;
use parking_lot::Mutex;
use tokio::io::ReadBuf;

use crate::frames::Frames;

/// Receiving side of one tunnel, with the data that was taken from HTTP/2 but not yet read.
#[derive(Debug)]
pub(crate) struct ByteReceiver {
    recv: RecvStream,
    /// Rest of the frame that is being read.
    current: Bytes,
    /// Frames that follow `current`.
    frames: Frames,
    /// End of the data after `frames`, or the error that broke the stream.
    end: Option<Result<(), h2::Error>>,
    /// Waker of the task that last waited for data.
    reader: Option<Waker>,
}

impl ByteReceiver {
    fn new(recv: RecvStream) -> Self {
        Self {
            recv,
            current: Bytes::new(),
            frames: Frames::default(),
            end: None,
            reader: None,
        }
    }

    /// Reads the next bytes into `buf`, and none at the end of the data.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.current.is_empty() {
            match ready!(self.poll_frame(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(Ok(frame)) => self.current = frame,
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
            }
        }
        let n = self.current.len().min(buf.remaining());
        buf.put_slice(self.current.get(..n).unwrap_or_default());
        self.current.advance(n);
        // Fails only for more than was received.
        let _credited = self.recv.flow_control().release_capacity(n);
        Poll::Ready(Ok(()))
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        if let Some(frame) = self.frames.pop() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if let Some(end) = self.end.take() {
            return Poll::Ready(end.err().map(Err));
        }
        let frame = self.recv.poll_data(cx);
        if frame.is_pending() {
            match &mut self.reader {
                Some(reader) => reader.clone_from(cx.waker()),
                None => self.reader = Some(cx.waker().clone()),
            }
        }
        frame
    }

    /// Takes all frames that HTTP/2 has received. Their arrival has already woken a reader that waits.
    fn take_received(&mut self) {
        let waker = self.reader.as_ref().unwrap_or(Waker::noop());
        // Waits on behalf of the reader, whose waker HTTP/2 would forget otherwise.
        let mut cx = Context::from_waker(waker);
        while self.end.is_none() {
            match self.recv.poll_data(&mut cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(frame))) => self.frames.push(frame),
                Poll::Ready(Some(Err(error))) => self.end = Some(Err(error)),
                Poll::Ready(None) => self.end = Some(Ok(())),
            }
        }
    }
}

/// All byte receivers of one connection's tunnels.
#[derive(Debug, Default)]
pub(crate) struct ByteReceivers(Mutex<Vec<Weak<Mutex<ByteReceiver>>>>);

impl ByteReceivers {
    /// Makes the receiving side of a tunnel a byte receiver, which exists as long as the returned value.
    pub(crate) fn register(&self, recv: RecvStream) -> Arc<Mutex<ByteReceiver>> {
        let receiver = Arc::new(Mutex::new(ByteReceiver::new(recv)));
        let mut all = self.0.lock();
        if all.len() == all.capacity() {
            all.retain(|receiver| receiver.strong_count() > 0);
        }
        all.push(Arc::downgrade(&receiver));
        receiver
    }

    /// Takes all frames that HTTP/2 has received for these tunnels.
    pub(crate) fn take_received(&self) {
        self.0.lock().retain(|receiver| {
            let receiver = receiver.upgrade();
            receiver.is_some_and(|receiver| {
                receiver.lock().take_received();
                true
            })
        });
    }
}
