//! End of a relayed connection: tracks the end of each direction, and the first error.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use crate::withdrawal;

/// Timeout for delivering the last bytes of a side that broke.
pub(super) const LAST_BYTES_TIMEOUT: Duration = Duration::from_secs(5);

/// Error that ended a relayed connection before both its directions had ended.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The tunnel broke: the peer reset it, or its HBONE connection failed.
    #[error("the tunnel broke")]
    Tunnel(#[source] h2::Error),
    /// Reading from a socket failed.
    #[error("receive")]
    Receive(#[source] io::Error),
    /// Writing to a socket failed.
    #[error("send")]
    Send(#[source] io::Error),
}

impl RelayError {
    /// Returns the low-cardinality reason for metrics.
    pub fn reason(&self) -> ambit_model::FailureReason {
        match self {
            Self::Tunnel(error) if withdrawal::is_trust_withdrawal(error) => {
                ambit_model::FailureReason::CertRevoked
            }
            Self::Tunnel(_) => ambit_model::FailureReason::H2Failure,
            Self::Receive(_) | Self::Send(_) => ambit_model::FailureReason::Connect,
        }
    }
}

/// How one direction of the relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectionEnd {
    /// The source ended its data, and the end was passed on.
    Clean,
    /// The source broke; its earlier data was passed on. The other direction then has no receiver.
    SourceBroke,
    /// The sink broke. Data that it sent before may still be relayed in the other direction.
    SinkBroke,
}

/// End of each direction of a relayed connection, and the first error.
#[derive(Debug, Default)]
pub(super) struct RelayEnds {
    pub(super) upload_ended: bool,
    pub(super) download_ended: bool,
    /// Whether [`Self::poll`] has completed.
    pub(super) is_over: bool,
    /// First error of the relay, which later errors result from.
    pub(super) first_error: Option<Box<RelayError>>,
    pub(super) last_bytes_timer: LastBytesTimer,
}

impl RelayEnds {
    pub(super) fn end_upload(&mut self, over: DirectionEnd) {
        self.upload_ended = true;
        self.download_ended |= over == DirectionEnd::SourceBroke;
    }

    pub(super) fn end_download(&mut self, over: DirectionEnd) {
        self.download_ended = true;
        self.upload_ended |= over == DirectionEnd::SourceBroke;
    }

    /// Records the first error; the connection will be reset.
    pub(super) fn record_error(&mut self, error: RelayError) {
        self.first_error.get_or_insert_with(|| Box::new(error));
    }

    pub(super) fn record_broken_source(&mut self, error: RelayError) -> Poll<DirectionEnd> {
        self.record_error(error);
        Poll::Ready(DirectionEnd::SourceBroke)
    }

    pub(super) fn record_broken_sink(&mut self, error: RelayError) -> Poll<DirectionEnd> {
        self.record_error(error);
        Poll::Ready(DirectionEnd::SinkBroke)
    }

    /// Records the reset of a socket whose received bytes cannot be delivered yet, since the peer does not
    /// read. They are delivered within [`LAST_BYTES_TIMEOUT`] or dropped; the socket itself receives nothing
    /// any more.
    pub(super) fn record_socket_failure(&mut self, error: io::Error) {
        self.record_error(RelayError::Receive(error));
    }

    /// Completes when both directions have ended, or [`LAST_BYTES_TIMEOUT`] has passed since an error.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.is_over = self.upload_ended && self.download_ended
            || self.first_error.is_some() && self.last_bytes_timer.poll(cx).is_ready();
        match self.is_over {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Returns the first error, if there was one.
    pub(super) fn take_result(&mut self) -> Result<(), RelayError> {
        self.first_error.take().map_or(Ok(()), |error| Err(*error))
    }
}

/// Timer of [`LAST_BYTES_TIMEOUT`], which starts when it is first polled.
#[derive(Debug, Default)]
pub(super) struct LastBytesTimer(Option<Pin<Box<Sleep>>>);

impl LastBytesTimer {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self
            .0
            .get_or_insert_with(|| Box::pin(sleep(LAST_BYTES_TIMEOUT)));
        timer.as_mut().poll(cx)
    }
}
