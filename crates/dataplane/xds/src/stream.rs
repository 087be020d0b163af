//! Delta xDS stream: opens it on a channel, sends requests and receives responses.

use ambit_wire::{
    decode::{DELTA_PATH, DeltaCodec, LazyDeltaResponse},
    discovery::DeltaDiscoveryRequest,
};
use http_body_util::BodyExt;
use prost::Message;
use tokio_stream::{Stream, StreamExt};
use tonic::{
    Code, Status,
    body::Body,
    client::GrpcService,
    codec::{Codec, EncodeBody},
    codegen::http::{self, HeaderMap, header},
    metadata::MetadataMap,
    transport::Channel,
};

use crate::framing::{FrameReader, FramingError};

/// Maximum size of a response, in bytes.
const MAX_MESSAGE_BYTES: usize = 200 << 20;

/// Receiving side of an open delta xDS stream.
#[derive(Debug)]
pub(crate) struct ResponseStream {
    body: Body,
    http_status: http::StatusCode,
    frames: FrameReader,
}

/// Opens a delta xDS stream. Sends `requests` even before the server's response headers arrive, since a server may send
/// these only with its first response.
pub(crate) async fn open(
    mut channel: Channel,
    metadata: MetadataMap,
    requests: impl Stream<Item = DeltaDiscoveryRequest> + Send + 'static,
) -> Result<ResponseStream, Status> {
    std::future::poll_fn(|context| GrpcService::<Body>::poll_ready(&mut channel, context))
        .await
        .map_err(|error| Status::from_error(error.into()))?;
    let encoder = DeltaCodec::default().encoder();
    let body = EncodeBody::new_client(encoder, requests.map(Ok), None, None);
    let mut request = http::Request::new(Body::new(body));
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = http::Uri::from_static(DELTA_PATH);
    *request.headers_mut() = metadata.into_headers();
    for (name, value) in [
        (header::TE, "trailers"),
        (header::CONTENT_TYPE, "application/grpc"),
    ] {
        request
            .headers_mut()
            .insert(name, http::HeaderValue::from_static(value));
    }
    let response = GrpcService::<Body>::call(&mut channel, request)
        .await
        .map_err(|error| Status::from_error(error.into()))?;
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(ResponseStream {
            http_status: response.status(),
            body: response.into_body(),
            frames: FrameReader::new(MAX_MESSAGE_BYTES),
        }),
    }
}

impl ResponseStream {
    /// Returns the next response; `None` if the server ended the stream without an error. Cancellation-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<LazyDeltaResponse>, Status> {
        loop {
            if let Some(message) = self.frames.next().map_err(framing_status)? {
                return LazyDeltaResponse::decode(message)
                    .map(Some)
                    .map_err(|error| {
                        Status::internal(format!("a response is malformed: {error}"))
                    });
            }
            let Some(frame) = self.body.frame().await else {
                return self.stream_result(None);
            };
            match frame?.into_data() {
                Ok(data) => self.frames.push(data),
                Err(frame) => return self.stream_result(frame.trailers_ref()),
            }
        }
    }

    /// Converts the end of the stream to a result: the gRPC status in the trailers or, without one, a status derived
    /// from the HTTP status (gRPC's "HTTP to gRPC Status Code Mapping").
    fn stream_result(
        &self,
        trailers: Option<&HeaderMap>,
    ) -> Result<Option<LazyDeltaResponse>, Status> {
        match trailers.and_then(Status::from_header_map) {
            Some(status) if status.code() != Code::Ok => return Err(status),
            Some(_) if self.frames.is_between_messages() => return Ok(None),
            Some(_) => return Err(Status::internal("the stream ended inside a message")),
            None => {}
        }
        let code = match self.http_status.as_u16() {
            // The server, or a load balancer in front of it, closed the connection.
            200 => Code::Unknown,
            400 => Code::Internal,
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            404 => Code::Unimplemented,
            429 | 502..=504 => Code::Unavailable,
            _ => Code::Unknown,
        };
        Err(Status::new(
            code,
            format!(
                "the stream ended without a status (HTTP {})",
                self.http_status
            ),
        ))
    }
}

fn framing_status(error: FramingError) -> Status {
    let code = match error {
        FramingError::Compressed => Code::Unimplemented,
        FramingError::TooLong(..) => Code::OutOfRange,
    };
    Status::new(code, error.to_string())
}
