//! From the tunnel to the application's socket.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use h2::RecvStream;
use tokio::io::AsyncWrite;

use super::{Ends, Meter, Over, RelayError, frames::Frames};

/// Frames in one write.
const GATHER: usize = 4;

/// Copies from a stream to a socket, several frames a write.
///
/// Everything received is taken out of HTTP/2 at once: many small frames cost much more there than their
/// bytes, and more than HTTP/2 allows a connection. The stream's window limits the amount.
#[derive(Debug, Default)]
pub(super) struct Download {
    /// Received but not written yet.
    frames: Frames,
    last: Last,
}

/// What follows the received frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Last {
    /// Further frames.
    #[default]
    Nothing,
    /// The end of data.
    End,
    /// Nothing: the stream broke.
    Break,
}

impl Download {
    pub(super) fn poll<W: AsyncWrite + Unpin, M: Meter>(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut W,
        recv: &mut RecvStream,
        ends: &mut Ends,
        meter: &M,
    ) -> Poll<Over> {
        self.gather(cx, recv, ends);
        while !self.frames.is_empty() {
            match ready!(self.poll_write(cx, app)) {
                Ok(n) => {
                    meter.app_received(n as u64);
                    // Fails only for more than was received.
                    let _credited = recv.flow_control().release_capacity(n);
                }
                Err(error) => return ends.sink_broke(RelayError::Send(error)),
            }
        }
        match self.last {
            Last::Nothing => Poll::Pending,
            Last::Break => Poll::Ready(Over::SourceBroke),
            Last::End => match ready!(Pin::new(&mut *app).poll_shutdown(cx)) {
                Ok(()) => Poll::Ready(Over::Clean),
                Err(error) => ends.sink_broke(RelayError::Send(error)),
            },
        }
    }

    /// Takes the available frames.
    fn gather(&mut self, cx: &mut Context<'_>, recv: &mut RecvStream, ends: &mut Ends) {
        while self.last == Last::Nothing {
            match recv.poll_data(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(frame))) => self.frames.push(frame),
                Poll::Ready(Some(Err(error))) => {
                    ends.broke(RelayError::Tunnel(error));
                    self.last = Last::Break;
                }
                Poll::Ready(None) => self.last = Last::End,
            }
        }
    }

    fn poll_write<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut W,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); GATHER];
        let n = match self.frames.slices(&mut slices) {
            [only] => ready!(Pin::new(app).poll_write(cx, only))?,
            several => ready!(Pin::new(app).poll_write_vectored(cx, several))?,
        };
        if n == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.frames.advance(n);
        Poll::Ready(Ok(n))
    }
}
