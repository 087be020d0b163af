//! Bytes that a call of the waypoint's own holds, charged to the caller for whose request it is made.

use std::net::IpAddr;

use ambit_model::Identity;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Collected, Full, Limited};
use hyper::body::{Body as _, Frame, Incoming};

use crate::{
    http::{header_cost, window_bytes},
    memory::{ConnectionMemory, Exhausted, Permit, Use},
    message::{Body, Version},
};

/// Bytes of a call besides its headers and bodies: its task, and the buffers of its connection.
const CALL_BYTES: usize = 16 << 10;

/// Caller of the request that a call is made for.
#[derive(Clone, Debug)]
pub(crate) struct OnBehalf {
    pub(crate) identity: Option<Identity>,
    pub(crate) ip: IpAddr,
    pub(crate) memory: ConnectionMemory,
}

/// Bytes of one call, held until it is over.
#[derive(Debug)]
pub(crate) struct CallCharge {
    memory: ConnectionMemory,
    permit: Permit,
}

/// Why a response is not there whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectError {
    #[error("the answer is too large or breaks off")]
    Broken,
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
}

impl CallCharge {
    /// Charges a call before it is made: its request, and what may come back before it is read.
    ///
    /// # Errors
    /// When a budget has no room, which is counted.
    pub(crate) fn new(
        memory: &ConnectionMemory,
        version: Version,
        request: &Request<Body>,
    ) -> Result<Self, Exhausted> {
        let body = request.body().size_hint().exact().unwrap_or_default();
        let body = usize::try_from(body).unwrap_or(usize::MAX / 2);
        let headers = header_cost(request.headers()) + request.uri().path().len();
        let bytes = CALL_BYTES + headers + body + window_bytes(version);
        Ok(Self {
            permit: memory.take(Use::Call, bytes)?,
            memory: memory.clone(),
        })
    }

    /// Reads a response of at most so many bytes, each charged as it comes.
    ///
    /// # Errors
    /// When it is longer, breaks off, or a budget has no room.
    pub(crate) async fn collect(
        &mut self,
        body: Incoming,
        most: usize,
    ) -> Result<Collected<Bytes>, CollectError> {
        let mut body = Limited::new(body, most);
        let (mut data, mut trailers) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| CollectError::Broken)?;
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            self.memory.grow(Use::Call, &mut self.permit, bytes)?;
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
