//! Charges the frames of response bodies to the client's memory budget while the connection buffers them. A client that
//! does not read can therefore not make the waypoint buffer without limit.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::{
    memory::{ChargePurpose, ConnectionMemory, MemoryPermit},
    message::{Body, BodyError},
};

/// Response body whose frames are charged while the connection buffers them.
struct MemoryChargedBody {
    inner: Body,
    memory: ConnectionMemory,
}

/// Data of a frame with its memory permit, released when the connection has sent the data.
struct ChargedBytes {
    bytes: Bytes,
    _permit: MemoryPermit,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Wraps a response body whose frames are charged until the connection has sent them.
pub(in crate::http) fn charge_body(inner: Body, memory: &ConnectionMemory) -> Body {
    if inner.is_end_stream() {
        return inner;
    }
    let memory = memory.clone();
    MemoryChargedBody { inner, memory }.boxed_unsync()
}

impl HttpBody for MemoryChargedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        let charge = |bytes: Bytes| -> Result<Frame<Bytes>, BodyError> {
            let permit = this
                .memory
                .charge_request(ChargePurpose::ResponseBody, bytes.len())?;
            let held = ChargedBytes {
                bytes,
                _permit: permit,
            };
            Ok(Frame::data(Bytes::from_owner(held)))
        };
        Poll::Ready(frame.map(|frame| match frame?.into_data() {
            Ok(data) => charge(data),
            Err(other) => Ok(other),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{memory::Memory, message};

    #[tokio::test]
    async fn frame_is_charged_until_it_is_dropped() {
        let memory = Memory::new(2 << 20, Arc::default());
        let connection = memory.connection(None, [10, 0, 0, 1].into());
        let body = || message::text_body(vec![b'd'; 600 << 10]);
        let mut first = charge_body(body(), &connection);
        let frame = first.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(
            (memory.charged_bytes(), frame.len()),
            (600 << 10, 600 << 10)
        );
        let part = frame.slice(1..2);
        drop((frame, first));
        assert_eq!(memory.charged_bytes(), 600 << 10);
        // The connection's budget is one megabyte.
        let mut second = charge_body(body(), &connection);
        assert!(second.frame().await.unwrap().is_err());
        drop(part);
        assert_eq!(memory.charged_bytes(), 0);
        assert!(
            charge_body(body(), &connection)
                .frame()
                .await
                .unwrap()
                .is_ok()
        );
    }
}
