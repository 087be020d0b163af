//! Request body whose beginning was buffered. Readers receive the buffered prefix, and then the rest.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

use super::idle::{IdleError, IdleTimeout};
use crate::memory::{BudgetExhausted, ChargePurpose, ConnectionMemory, MemoryPermit};

/// Bytes charged for a buffered frame in addition to its data.
const FRAME_OVERHEAD_BYTES: usize = 64;

/// Buffered beginning of a request body.
#[derive(Debug, Default)]
pub(in crate::http) struct BufferedPrefix {
    frames: VecDeque<Frame<Bytes>>,
    bytes: usize,
    permit: Option<MemoryPermit>,
}

/// Reason why the beginning of a body could not be buffered.
#[derive(Debug, thiserror::Error)]
pub(in crate::http) enum PrefixError {
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    #[error(transparent)]
    BudgetExhausted(#[from] BudgetExhausted),
    #[error(transparent)]
    Idle(#[from] IdleError),
}

/// Body that replays a buffered prefix, and then streams the rest.
#[derive(Debug)]
pub(in crate::http) struct PrefixedBody {
    prefix: BufferedPrefix,
    rest: Incoming,
}

impl BufferedPrefix {
    /// Buffers a body up to its end or a maximum number of bytes.
    ///
    /// # Errors
    /// When the body fails or stalls, or the budget has no room.
    pub(in crate::http) async fn read(
        body: &mut Incoming,
        most: usize,
        memory: &ConnectionMemory,
        idle: &IdleTimeout,
    ) -> Result<Self, PrefixError> {
        let mut permit = memory.charge_request(ChargePurpose::AuthorizationBody, 0)?;
        let mut prefix = Self::default();
        while prefix.bytes <= most && !body.is_end_stream() {
            let Some(frame) = idle.apply(body.frame()).await? else {
                break;
            };
            let frame = frame?;
            let bytes = FRAME_OVERHEAD_BYTES + frame.data_ref().map_or(0, Bytes::len);
            memory.grow(ChargePurpose::AuthorizationBody, &mut permit, bytes)?;
            prefix.bytes += frame.data_ref().map_or(0, Bytes::len);
            prefix.frames.push_back(frame);
        }
        prefix.permit = Some(permit);
        Ok(prefix)
    }

    /// Whether any frame of the body has been buffered.
    pub(in crate::http) fn has_frames(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Returns the number of buffered bytes.
    pub(in crate::http) fn len(&self) -> usize {
        self.bytes
    }

    /// Returns the first buffered bytes, at most `most`.
    pub(in crate::http) fn first_bytes(&self, most: usize) -> Vec<u8> {
        let data = self.frames.iter().filter_map(Frame::data_ref).flatten();
        data.take(most).copied().collect()
    }

    /// Returns the whole body: the buffered prefix, and then the rest of the stream.
    pub(in crate::http) fn chain(self, rest: Incoming) -> PrefixedBody {
        PrefixedBody { prefix: self, rest }
    }
}

impl HttpBody for PrefixedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        if let Some(frame) = this.prefix.frames.pop_front() {
            this.prefix.bytes -= frame.data_ref().map_or(0, Bytes::len);
            return Poll::Ready(Some(Ok(frame)));
        }
        this.prefix.permit = None;
        Pin::new(&mut this.rest).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.prefix.frames.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.size_hint();
        let prefix = u64::try_from(self.prefix.bytes).unwrap_or(u64::MAX);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(prefix));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(prefix)) {
            hint.set_upper(upper);
        }
        hint
    }
}
