//! From the tunnel to the application's socket.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use h2::RecvStream;
use tokio::io::AsyncWrite;

use super::{Ended, Meter, RelayError, is_gone, is_quiet};

/// Frames that one write takes.
const GATHER: usize = 4;

/// Copies from a stream to a socket, several frames a write.
#[derive(Debug, Default)]
pub(super) struct Download {
    /// Received but not written yet, oldest first.
    frames: [Bytes; GATHER],
    count: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// No more frames will come.
    Ending,
}

impl Download {
    pub(super) fn poll<W: AsyncWrite + Unpin, M: Meter>(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut W,
        recv: &mut RecvStream,
        meter: &M,
    ) -> Poll<Result<Ended, RelayError>> {
        loop {
            let waiting = self.gather(cx, recv)?;
            if self.count > 0 {
                match ready!(self.poll_write(cx, app)) {
                    Ok(n) => {
                        meter.app_received(n as u64);
                        // Fails only for more than was received.
                        let _credited = recv.flow_control().release_capacity(n);
                    }
                    Err(error) if is_gone(&error) => return Poll::Ready(Ok(Ended::Gone)),
                    Err(error) => return Poll::Ready(Err(RelayError::Send(error))),
                }
                continue;
            }
            if self.state == State::Ending {
                return Poll::Ready(match ready!(Pin::new(&mut *app).poll_shutdown(cx)) {
                    Ok(()) => Ok(Ended::Clean),
                    Err(_gone) => Ok(Ended::Gone),
                });
            }
            if waiting {
                return Poll::Pending;
            }
        }
    }

    /// Takes the frames that are there. True when the next one has to be waited for.
    fn gather(&mut self, cx: &mut Context<'_>, recv: &mut RecvStream) -> Result<bool, RelayError> {
        while self.state == State::Open {
            let Some(slot) = self.frames.get_mut(self.count) else {
                return Ok(false);
            };
            match recv.poll_data(cx) {
                Poll::Pending => return Ok(true),
                Poll::Ready(Some(Ok(frame))) => {
                    if !frame.is_empty() {
                        *slot = frame;
                        self.count += 1;
                    }
                }
                Poll::Ready(Some(Err(error))) if is_quiet(&error) => self.state = State::Ending,
                Poll::Ready(Some(Err(error))) => return Err(RelayError::Tunnel(error)),
                Poll::Ready(None) => self.state = State::Ending,
            }
        }
        Ok(false)
    }

    fn poll_write<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut W,
    ) -> Poll<io::Result<usize>> {
        let n = if self.count == 1 {
            let only = self.frames.first().map(Bytes::as_ref).unwrap_or_default();
            ready!(Pin::new(app).poll_write(cx, only))?
        } else {
            let mut slices = [IoSlice::new(&[]); GATHER];
            for (slice, frame) in slices.iter_mut().zip(self.frames.iter().take(self.count)) {
                *slice = IoSlice::new(frame);
            }
            let slices = slices.get(..self.count).unwrap_or_default();
            ready!(Pin::new(app).poll_write_vectored(cx, slices))?
        };
        if n == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(n);
        Poll::Ready(Ok(n))
    }

    /// Forgets the first `n` bytes.
    fn advance(&mut self, mut n: usize) {
        let mut done = 0;
        for frame in self.frames.iter_mut().take(self.count) {
            let part = n.min(frame.len());
            frame.advance(part);
            n -= part;
            if !frame.is_empty() {
                break;
            }
            *frame = Bytes::new();
            done += 1;
        }
        self.frames.rotate_left(done);
        self.count -= done;
    }
}
