//! Memory charge of calls that the waypoint itself makes, to the caller for whose request a call is made.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Collected, Full, Limited};
use hyper::body::{Body as _, Frame, Incoming};

use crate::{
    headers,
    memory::{BudgetExhausted, ChargePurpose, ConnectionMemory, MemoryPermit},
    message::{Body, Version},
    upstream::STREAM_WINDOW_BYTES,
};

/// Bytes charged for a call besides its headers and bodies: its task, and the buffers of its connection.
const CALL_OVERHEAD_BYTES: usize = 16 << 10;

/// Memory permits of one call, held until it ends.
#[derive(Debug)]
pub(crate) struct CallCharge {
    memory: ConnectionMemory,
    permit: MemoryPermit,
}

/// Reason why the response to a call is incomplete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallResponseError {
    #[error("the response is too large or truncated")]
    TooLargeOrTruncated,
    #[error(transparent)]
    BudgetExhausted(#[from] BudgetExhausted),
}

impl CallCharge {
    /// Charges the caller for a call before it is sent: for its request, and the receive window of its response.
    ///
    /// # Errors
    /// When a memory budget has no room; metrics count the failure.
    pub(crate) fn new(
        memory: &ConnectionMemory,
        version: Version,
        request: &Request<Body>,
    ) -> Result<Self, BudgetExhausted> {
        let body = request.body().size_hint().exact().unwrap_or_default();
        let body = usize::try_from(body).unwrap_or(usize::MAX / 2);
        let headers = headers::header_memory_bytes(request.headers()) + request.uri().path().len();
        // HTTP/1 reads a response only as it is collected.
        let window = match version {
            Version::Http1 => 0,
            Version::Http2 => usize::try_from(STREAM_WINDOW_BYTES).unwrap_or(usize::MAX / 2),
        };
        let bytes = CALL_OVERHEAD_BYTES + headers + body + window;
        Ok(Self {
            permit: memory.charge_request(ChargePurpose::Call, bytes)?,
            memory: memory.clone(),
        })
    }

    /// Reads the response to a call up to a maximum size, and charges bytes as they arrive.
    ///
    /// # Errors
    /// When the response is too long or breaks off, or when a memory budget has no room.
    pub(crate) async fn read_response(
        &mut self,
        body: Incoming,
        most: usize,
    ) -> Result<Collected<Bytes>, CallResponseError> {
        let mut body = Limited::new(body, most);
        let (mut data, mut trailers) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| CallResponseError::TooLargeOrTruncated)?;
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            self.memory
                .grow(ChargePurpose::Call, &mut self.permit, bytes)?;
            match frame.into_data() {
                Ok(piece) => data.extend_from_slice(&piece),
                Err(frame) => trailers = Frame::into_trailers(frame).ok(),
            }
        }
        let whole = Full::new(Bytes::from(data));
        let whole = whole.with_trailers(std::future::ready(trailers.map(Ok)));
        whole.collect().await.map_err(|never| match never {})
    }
}
