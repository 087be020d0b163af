//! Receiving side of a tunnel that is read as a byte stream.
//!
//! HTTP/2 counts small DATA frames that nobody has taken against a limit for the whole connection, and ends the
//! connection beyond it. A reader that holds back, such as an HTTP server whose upstream is slow, would leave its frames
//! there. The connection's driver therefore takes them into the receiver's own queue, which merges small ones; the
//! stream's receive window bounds their bytes, which the peer gets back only when the reader has read them.

use std::{
    io, mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker, ready},
};

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
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
    arrival: Arc<Arrival>,
    /// Waker of `arrival`, which HTTP/2 receives.
    arrival_waker: Waker,
}

/// Wakes the reader when HTTP/2 receives data of a stream, and queues the stream for the connection's driver, which
/// thereby looks at no stream without data: a connection may have thousands. A receiver is queued, or else HTTP/2 has no
/// data for it and will wake this.
#[derive(Debug)]
struct Arrival {
    /// Task that reads the stream.
    reader: AtomicWaker,
    /// Whether the receiver is in `queue`.
    is_queued: AtomicBool,
    receiver: Weak<Mutex<ByteReceiver>>,
    queue: Arc<ArrivalQueue>,
}

/// Receivers whose streams may have data that was not taken. HTTP/2 wakes with its lock held, so nothing is locked and
/// nobody is called while this lock is held.
type ArrivalQueue = Mutex<Vec<Weak<Mutex<ByteReceiver>>>>;

impl Arrival {
    fn enqueue(&self) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.queue.lock().push(self.receiver.clone());
        }
    }
}

impl Wake for Arrival {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.enqueue();
        self.reader.wake();
    }
}

impl ByteReceiver {
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
        self.arrival.reader.register(cx.waker());
        self.poll_http2()
    }

    fn poll_http2(&mut self) -> Poll<Option<Result<Bytes, h2::Error>>> {
        let mut cx = Context::from_waker(&self.arrival_waker);
        self.recv.poll_data(&mut cx)
    }

    /// Takes all frames that HTTP/2 has received. Their arrival has already woken a reader that waits.
    fn take_received(&mut self) {
        self.arrival.is_queued.store(false, Ordering::Release);
        while self.end.is_none() {
            match self.poll_http2() {
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
pub(crate) struct ByteReceivers(Arc<ArrivalQueue>);

impl ByteReceivers {
    /// Makes the receiving side of a tunnel a byte receiver, which exists as long as the returned value.
    pub(crate) fn register(&self, recv: RecvStream) -> Arc<Mutex<ByteReceiver>> {
        let receiver = Arc::new_cyclic(|receiver| {
            let arrival = Arc::new(Arrival {
                reader: AtomicWaker::new(),
                is_queued: AtomicBool::new(true),
                receiver: receiver.clone(),
                queue: self.0.clone(),
            });
            Mutex::new(ByteReceiver {
                recv,
                current: Bytes::new(),
                frames: Frames::default(),
                end: None,
                arrival_waker: arrival.clone().into(),
                arrival,
            })
        });
        let mut queue = self.0.lock();
        if queue.len() == queue.capacity() {
            queue.retain(|receiver| receiver.strong_count() > 0);
        }
        queue.push(Arc::downgrade(&receiver));
        drop(queue);
        receiver
    }

    /// Takes all frames that HTTP/2 has received for these tunnels.
    pub(crate) fn take_received(&self) {
        let queued = mem::take(&mut *self.0.lock());
        for receiver in queued.iter().filter_map(Weak::upgrade) {
            receiver.lock().take_received();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use h2::{SendStream, client, server};
    use http::{Request, Response};

    use super::*;

    /// Opens this number of tunnels over one connection, and returns the senders of one end and the receivers of the
    /// other.
    async fn tunnels(
        count: usize,
        receivers: &ByteReceivers,
    ) -> (Vec<SendStream<Bytes>>, Vec<Arc<Mutex<ByteReceiver>>>) {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (client, server) = tokio::join!(client::handshake(near), server::handshake(far));
        let ((client, driver), mut server) = (client.unwrap(), server.unwrap());
        tokio::spawn(driver);
        let mut client = client.ready().await.unwrap();
        let (mut senders, mut all) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (response, _body) = client.send_request(Request::new(()), false).unwrap();
            let (_request, mut respond) = server.accept().await.unwrap().unwrap();
            senders.push(respond.send_response(Response::new(()), false).unwrap());
            let (response, _) = tokio::join!(response, poll_once(&mut server));
            all.push(receivers.register(response.unwrap().into_body()));
        }
        tokio::spawn(async move { while server.accept().await.is_some() {} });
        (senders, all)
    }

    /// Lets the connection send what it has.
    async fn poll_once<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
        server: &mut server::Connection<T, Bytes>,
    ) {
        poll_fn(|cx| {
            let _no_request = server.poll_accept(cx);
            Poll::Ready(())
        })
        .await;
    }

    async fn wait_until(condition: impl Fn() -> bool) {
        let wait = async {
            while !condition() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait)
            .await
            .unwrap();
    }

    async fn read(receiver: &Mutex<ByteReceiver>) -> Vec<u8> {
        let mut bytes = [0; 64];
        let mut buf = ReadBuf::new(&mut bytes);
        poll_fn(|cx| receiver.lock().poll_read(cx, &mut buf))
            .await
            .unwrap();
        buf.filled().to_vec()
    }

    #[tokio::test]
    async fn driver_visits_only_streams_with_data() {
        let receivers = ByteReceivers::default();
        let (mut senders, all) = tunnels(20, &receivers).await;
        receivers.take_received();
        assert!(receivers.0.lock().is_empty(), "no stream has data");
        senders[7].send_data("one".into(), false).unwrap();
        wait_until(|| receivers.0.lock().len() == 1).await;
        receivers.take_received();
        assert!(!all[7].lock().frames.is_empty());
        assert!(receivers.0.lock().is_empty());
        assert_eq!(read(&all[7]).await, b"one");
    }

    #[tokio::test]
    async fn frames_of_a_reader_that_stays_away_are_taken() {
        let receivers = ByteReceivers::default();
        let (mut senders, all) = tunnels(2, &receivers).await;
        receivers.take_received();
        let first = tokio::spawn({
            let receiver = all[0].clone();
            async move { read(&receiver).await }
        });
        senders[0].send_data("one".into(), false).unwrap();
        assert_eq!(first.await.unwrap(), b"one");
        // The reader has its bytes and does not wait for more.
        receivers.take_received();
        senders[0].send_data("two".into(), false).unwrap();
        wait_until(|| !receivers.0.lock().is_empty()).await;
        receivers.take_received();
        assert!(!all[0].lock().frames.is_empty());
        assert_eq!(read(&all[0]).await, b"two");
    }

    #[tokio::test]
    async fn receivers_that_have_gone_are_forgotten() {
        let receivers = ByteReceivers::default();
        let (_senders, mut all) = tunnels(100, &receivers).await;
        all.clear();
        let (_senders, _all) = tunnels(100, &receivers).await;
        assert!(receivers.0.lock().len() < 150);
    }
}
