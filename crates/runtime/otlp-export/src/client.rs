//! Connection to an OpenTelemetry collector, over HTTP/1.1 or gRPC (HTTP/2 with prior knowledge), with TLS if the
//! endpoint is `https`.
//!
//! The collector's address is the operator's own setting, not one that an object of the cluster names, so it is not
//! subject to `ambit-egress`. Responses are bounded in time and size, and only one number is read from them.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use ambit_codec::grpc_frame;
use ambit_rt::logging::unrecorded;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{CONTENT_TYPE, HOST, RETRY_AFTER, TE, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{
    message::rejected,
    retry::{Attempt, is_retryable_grpc, is_retryable_http},
    settings::{Collector, Protocol},
    tls::{self, TlsError},
};

/// Maximum length of a response body, in bytes.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// Maximum length of a response's status line and headers, in bytes.
const MAX_HEAD_BYTES: u16 = 16 * 1024;
/// Maximum addresses of a collector that are tried for one connection.
const MAX_ADDRESSES: usize = 4;

/// Error of exporting a message to a collector.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    #[error("cannot resolve {0}")]
    Resolve(String, #[source] io::Error),
    #[error("cannot connect to {0}")]
    Connect(String, #[source] io::Error),
    #[error("cannot begin TLS with {0}")]
    Tls(String, #[source] io::Error),
    #[error("the connection failed")]
    Connection(#[from] hyper::Error),
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error("the response is truncated or longer than {MAX_RESPONSE_BYTES} bytes")]
    Response(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("status {status}")]
    Http {
        status: u16,
        after: Option<Duration>,
    },
    #[error("gRPC status {0}")]
    Grpc(u16),
}

impl ExportError {
    /// Classifies the error for the decision about a retry.
    pub(crate) fn to_attempt(&self) -> Attempt {
        match self {
            Self::Http { status, after } if is_retryable_http(*status) => {
                Attempt::Retryable { after: *after }
            }
            Self::Grpc(status) if is_retryable_grpc(*status) => Attempt::Retryable { after: None },
            Self::Http { .. } | Self::Grpc(_) => Attempt::Rejected,
            // The collector may or may not have the message, so a retry may duplicate it.
            _ => Attempt::Retryable { after: None },
        }
    }
}

/// Sending side of a connection to a collector.
#[derive(Debug)]
enum Sender {
    Http(http1::SendRequest<Full<Bytes>>),
    Grpc(http2::SendRequest<Full<Bytes>>),
}

/// Client of the collector of one signal (metrics or logs).
#[derive(Debug)]
pub(crate) struct Client {
    collector: Collector,
    tls: Option<Arc<ClientConfig>>,
    idle_connection: Option<Sender>,
}

impl Client {
    pub(crate) fn new(collector: Collector) -> Result<Self, TlsError> {
        let alpn: &[u8] = match collector.protocol {
            Protocol::Http => b"http/1.1",
            Protocol::Grpc => b"h2",
        };
        let roots = collector.tls.as_ref();
        let tls = roots.map(|roots| tls::client_config(roots, alpn));
        Ok(Self {
            tls: tls.transpose()?,
            collector,
            idle_connection: None,
        })
    }

    /// Returns host and port of the collector.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.collector.host, self.collector.port)
    }

    /// Sends a message within the collector's timeout; returns the number of data points or records that the
    /// collector rejected.
    pub(crate) async fn export(&mut self, message: &Bytes) -> Result<u64, ExportError> {
        let timeout = self.collector.timeout;
        match tokio::time::timeout(timeout, self.send_message(message)).await {
            Ok(result) => result,
            Err(_) => Err(ExportError::Timeout(timeout)),
        }
    }

    async fn send_message(&mut self, message: &Bytes) -> Result<u64, ExportError> {
        let mut request = self.request(message);
        // A connection with an invalid response is not reused.
        if let Some(mut sender) = self.idle_connection.take() {
            match sender.send(request).await {
                Ok(response) => return self.read_response(sender, response).await,
                Err(mut error) => match error.take_message() {
                    // The collector closed the idle connection before the request was sent.
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send(request).await;
        let response = response.map_err(TrySendError::into_error)?;
        self.read_response(sender, response).await
    }

    fn request(&self, message: &Bytes) -> Request<Full<Bytes>> {
        let Collector {
            protocol,
            uri,
            headers,
            ..
        } = &self.collector;
        let body = match protocol {
            Protocol::Http => message.clone(),
            // A message has about a megabyte.
            Protocol::Grpc => grpc_frame::encode_grpc_frame(message)
                .unwrap_or_default()
                .into(),
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.headers_mut() = headers.clone();
        let own = request.headers_mut();
        own.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("ambit/", env!("CARGO_PKG_VERSION"))),
        );
        match protocol {
            Protocol::Grpc => {
                own.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
                own.insert(TE, HeaderValue::from_static("trailers"));
                *request.version_mut() = Version::HTTP_2;
                *request.uri_mut() = uri.clone();
            }
            Protocol::Http => {
                own.insert(
                    CONTENT_TYPE,
                    HeaderValue::from_static("application/x-protobuf"),
                );
                let authority = uri.authority().map(|authority| authority.as_str());
                if let Some(host) = authority.and_then(|host| HeaderValue::from_str(host).ok()) {
                    own.insert(HOST, host);
                }
                *request.uri_mut() = uri
                    .path_and_query()
                    .map(|path| path.clone().into())
                    .unwrap_or_default();
            }
        }
        request
    }

    async fn connect(&self) -> Result<Sender, ExportError> {
        let Collector { host, port, .. } = &self.collector;
        let addresses = ambit_rt::lookup_host(host).await;
        let addresses = addresses.map_err(|error| ExportError::Resolve(host.clone(), error))?;
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            match TcpStream::connect(SocketAddr::from((address, *port))).await {
                Ok(stream) => return self.connect_tls(stream).await,
                Err(error) => failed = error,
            }
        }
        Err(ExportError::Connect(self.address(), failed))
    }

    async fn connect_tls(&self, stream: TcpStream) -> Result<Sender, ExportError> {
        let Some(config) = &self.tls else {
            return self.handshake(stream).await;
        };
        let failed = |error| ExportError::Tls(self.address(), error);
        let name = ServerName::try_from(self.collector.host.clone());
        let name = name.map_err(|error| failed(io::Error::other(error)))?;
        let connecting = TlsConnector::from(config.clone()).connect(name, stream);
        self.handshake(connecting.await.map_err(failed)?).await
    }

    async fn handshake<S>(&self, stream: S) -> Result<Sender, ExportError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let stream = TokioIo::new(stream);
        // The connection ends with its sender.
        match self.collector.protocol {
            Protocol::Http => {
                let mut builder = http1::Builder::new();
                builder.max_buf_size(MAX_HEAD_BYTES.into());
                let (sender, connection) = builder.handshake(stream).await?;
                ambit_rt::spawn("otlp connection", unrecorded(connection));
                Ok(Sender::Http(sender))
            }
            Protocol::Grpc => {
                let mut builder = http2::Builder::new(Executor);
                builder.max_header_list_size(MAX_HEAD_BYTES.into());
                let (sender, connection) = builder.handshake(stream).await?;
                ambit_rt::spawn("otlp connection", unrecorded(connection));
                Ok(Sender::Grpc(sender))
            }
        }
    }

    /// Reads a response, and keeps its connection for the next export if the response is valid.
    async fn read_response(
        &mut self,
        sender: Sender,
        response: Response<Incoming>,
    ) -> Result<u64, ExportError> {
        let (head, body) = response.into_parts();
        let is_taken = match self.collector.protocol {
            Protocol::Http => head.status.is_success(),
            Protocol::Grpc => head.status == StatusCode::OK,
        };
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        if !is_taken {
            if body.is_ok() {
                self.idle_connection = Some(sender);
            }
            return Err(ExportError::Http {
                status: head.status.as_u16(),
                after: retry_after(&head.headers),
            });
        }
        let body = body.map_err(ExportError::Response)?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        let body = body.to_bytes();
        self.idle_connection = Some(sender);
        match self.collector.protocol {
            Protocol::Http => Ok(rejected(&body)),
            Protocol::Grpc => {
                // In a response without a body, the status is among the headers.
                match grpc_status(&trailers).or_else(|| grpc_status(&head.headers)) {
                    Some(0) => Ok(rejected(
                        grpc_frame::decode_grpc_frame(&body).unwrap_or_default(),
                    )),
                    // Without a status it is UNKNOWN.
                    status => Err(ExportError::Grpc(status.unwrap_or(2))),
                }
            }
        }
    }
}

impl Sender {
    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        match self {
            Self::Http(sender) => {
                // Sending reports the error, and returns the request.
                sender.ready().await.ok();
                sender.try_send_request(request).await
            }
            Self::Grpc(sender) => {
                sender.ready().await.ok();
                sender.try_send_request(request).await
            }
        }
    }
}

/// Spawns the tasks of an HTTP/2 connection, whose own log records are not exported.
#[derive(Clone, Copy, Debug)]
struct Executor;

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        ambit_rt::spawn("otlp connection", unrecorded(task));
    }
}

/// Parses `Retry-After` in seconds. Dates are not supported: the exporter's own backoff applies then.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

fn grpc_status(headers: &HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}
