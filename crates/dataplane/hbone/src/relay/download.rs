//! Relay direction from the tunnel to the application's socket.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use h2::RecvStream;
use tokio::io::AsyncWrite;

use super::{
    ends::{DirectionEnd, RelayEnds, RelayError},
    meter::Meter,
    received::{ReceivedFrames, StreamEnd},
};

/// Maximum frames in one vectored write.
const MAX_FRAMES_PER_WRITE: usize = 4;

/// Copies from a tunnel's stream to a socket, several frames a write.
#[derive(Debug, Default)]
pub(super) struct Download {
    received: ReceivedFrames,
}

impl Download {
    pub(super) fn poll<W: AsyncWrite + Unpin, M: Meter>(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut W,
        recv: &mut RecvStream,
        ends: &mut RelayEnds,
        meter: &M,
    ) -> Poll<DirectionEnd> {
        self.received.poll_receive(cx, recv, ends);
        while !self.received.frames.is_empty() {
            match ready!(self.poll_write(cx, app)) {
                Ok(n) => {
                    meter.count_app_received(n as u64);
                    // Fails only for more than was received.
                    let _credited = recv.flow_control().release_capacity(n);
                }
                Err(error) => return ends.record_broken_sink(RelayError::Send(error)),
            }
        }
        match self.received.stream_end {
            StreamEnd::Open => Poll::Pending,
            StreamEnd::Broken => Poll::Ready(DirectionEnd::SourceBroke),
            StreamEnd::EndOfData => match ready!(Pin::new(&mut *app).poll_shutdown(cx)) {
                Ok(()) => Poll::Ready(DirectionEnd::Clean),
                Err(error) => ends.record_broken_sink(RelayError::Send(error)),
            },
        }
    }

    fn poll_write<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        app: &mut W,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); MAX_FRAMES_PER_WRITE];
        let n = match self.received.frames.slices(&mut slices) {
            [only] => ready!(Pin::new(app).poll_write(cx, only))?,
            several => ready!(Pin::new(app).poll_write_vectored(cx, several))?,
        };
        if n == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.received.frames.advance(n);
        Poll::Ready(Ok(n))
    }
}
