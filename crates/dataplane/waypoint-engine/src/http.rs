//! HTTP inside a tunnel: each request is normalized, authorized, routed, and forwarded.

mod admit;
mod backend;
mod body;
mod connection;
mod exchange;
mod explain;
mod extension;
mod fault;
mod limits;
mod mirror;
mod normalized_target;
mod reply;
mod report;
mod request_headers;
mod response_body;
mod response_headers;
mod routing;
mod send;
mod upgrade;

pub(crate) use admit::{admission::is_check_satisfied, authorizer::authorize_connection};
pub(crate) use backend::{destination::Destination, destination_attachments};
pub(crate) use connection::not_http::{NotHttpReason, refuse_connection};
pub(crate) use explain::explain;
pub(crate) use send::retry_state::DEFAULT_RETRIES;

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use ambit_hbone::PortionedReads;
use http::{
    HeaderValue, StatusCode,
    header::{CONNECTION, CONTENT_LENGTH},
};
use hyper::{Request, body::Incoming, server::conn, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
};

use crate::{
    config::{HeaderLimits, WEBSOCKET},
    fair_share::{FairShare, TaskShare},
    http1_io::{Http1Io, TrailersBody},
    http2::{frames::PREFACE, joined_data::JoinedDataReads},
    message::{TaskExecutor, Version},
    session::Session,
};
use body::interim::InterimForwarder;
use connection::{
    charged_body, failure,
    half_close::HalfCloseIo,
    header_block::HeaderBlockIo,
    header_timeout::{GuardedBody, HeaderTimeoutIo, RequestProgress},
    linger::LingeringCloseIo,
    overload,
};

/// Idle timeout of a client's HTTP connection in a tunnel.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Time for which idle HTTP/1.1 connections stay open during shutdown. If they closed at once, a request that a client
/// has just sent could be lost; closing a connection after a response has no such race.
const DRAIN_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of header fields above the limit that the HTTP/1 parser accepts, so that the waypoint can respond with 431
/// and the reason.
const EXTRA_HEADERS: usize = 100;
/// Bytes of a header section above the limit that the HTTP/1 parser accepts, so that the waypoint can respond with 431
/// and the reason.
const EXTRA_HEADER_BYTES: usize = 16 << 10;
/// Maximum number of concurrent requests on one HTTP/2 connection. hyper may decode this many header sections before
/// they are charged to a memory budget: 100 of 64 kB, which occupy up to 256 kB each, are 25 MB.
const MAX_STREAMS: u32 = 100;
/// Maximum number of reset streams that HTTP/2 remembers.
const MAX_RESET_STREAMS: usize = 50;
/// Maximum bytes of one response that HTTP/2 buffers while its client does not read.
const MAX_SEND_BUFFER_BYTES: usize = 16 << 10;
/// Divisor for the receive window of an HTTP/2 connection. The window is the caller's free connection budget divided by
/// this number, at least [`MIN_WINDOW_BYTES`] and at most [`MAX_WINDOW_BYTES`].
const WINDOW_DIVISOR: usize = 384;
const MIN_WINDOW_BYTES: usize = 64 << 10;
const MAX_WINDOW_BYTES: usize = 4 << 20;
/// Receive window of one HTTP/2 stream, so that a few unread uploads cannot use up the connection's window.
const MAX_STREAM_WINDOW_BYTES: usize = 64 << 10;

/// Serves HTTP requests in a tunnel until the client closes it or the process shuts down.
#[expect(
    clippy::too_many_lines,
    reason = "both versions share what is prepared for each request"
)]
pub(crate) async fn serve<IO>(session: Session, io: IO, version: Version)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let session = Arc::new(session);
    let mut drain = session.shard.waypoint.lifecycle.drain_watcher();
    let requests = session.clone();
    let ending = drain.clone();
    let pacing = RequestProgress::default();
    let begins = pacing.clone();
    let cancels = session.shard.waypoint.config.streams.cancel_on_half_close;
    let ahead = cancels.then(|| pacing.clone());
    // Notified when the client does not read a response of HTTP/1, which blocks the whole connection.
    let unread = Arc::new(Notify::new());
    let stalled = unread.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (session, ending) = (requests.clone(), ending.clone());
        let serving = begins.begin_request();
        let (pacing, stalled) = (begins.clone(), stalled.clone());
        // HTTP/1.0 clients know neither chunks nor interim responses.
        let is_http11 = request.version() == http::Version::HTTP_11;
        let interim = is_http11.then(|| pacing.additions().clone());
        if let Some(interim) = &interim {
            interim.begin_interim();
            request
                .extensions_mut()
                .insert(InterimForwarder(interim.clone()));
        }
        // Charged at once, since requests occupy memory before their handling begins.
        let limits = session.shard.waypoint.config.headers;
        let admitted = overload::charge_request(&session.memory, limits, &mut request, version);
        async move {
            let (permit, refused) =
                admitted.map_or_else(|reply| (None, Some(reply)), |permit| (Some(permit), None));
            let responding =
                exchange::respond(session.clone(), request, refused, &pacing, &stalled);
            let mut response = responding.await;
            response = response.map(|body| charged_body::charge_body(body, &session.memory));
            let may_close = response.status() != StatusCode::SWITCHING_PROTOCOLS;
            if version == Version::Http1 && may_close && ending.mode().is_some() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            let serving = match response.status() {
                StatusCode::SWITCHING_PROTOCOLS => {
                    serving.disable_header_timeout();
                    None
                }
                _ => Some(serving),
            };
            pacing.additions().end_interim();
            let has_length = !is_http11 || response.headers().contains_key(CONTENT_LENGTH);
            Ok::<_, Infallible>(response.map(|body| GuardedBody {
                body: TrailersBody::new(body, pacing.additions(), has_length),
                _serving: serving,
                _permit: permit,
            }))
        }
    });
    let ended = match version {
        Version::Http1 => {
            let limit = session.shard.waypoint.config.headers_timeout;
            let memory = session.memory.clone();
            let io = HalfCloseIo::new(LingeringCloseIo::new(io, pacing.clone()), ahead);
            let additions = pacing.additions().clone();
            let io = HeaderTimeoutIo::new(io, pacing, limit, memory);
            let io = TokioIo::new(Http1Io::new(io, additions));
            let connection = http1_builder(session.shard.waypoint.config.headers)
                .serve_connection(io, service)
                .with_upgrades();
            let mut connection = pin!(connection);
            tokio::select! {
                ended = &mut connection => ended,
                () = unread.notified() => Ok(()),
                _mode = drain.wait_until_started() => {
                    tokio::select! {
                        ended = &mut connection => ended,
                        () = unread.notified() => Ok(()),
                        () = tokio::time::sleep(DRAIN_IDLE_TIMEOUT) => {
                            connection.as_mut().graceful_shutdown();
                            tokio::select! {
                                ended = &mut connection => ended,
                                () = drain.wait_until_deadline() => Ok(()),
                            }
                        }
                        () = drain.wait_until_deadline() => Ok(()),
                    }
                }
            }
        }
        Version::Http2 => {
            let window =
                session
                    .memory
                    .charge_window(WINDOW_DIVISOR, MIN_WINDOW_BYTES, MAX_WINDOW_BYTES);
            let Ok(window) = window else {
                return failure::report_overloaded(&session, version, "memory_budget_connection");
            };
            let limit = session.shard.waypoint.config.headers_timeout;
            let max_header_bytes = session.shard.waypoint.config.headers.bytes;
            let io = HeaderBlockIo::new(io, limit, max_header_bytes, session.memory.clone());
            let io = JoinedDataReads::new(io, PREFACE.len());
            let io = PortionedReads::new(io, u32::try_from(window.bytes()).unwrap_or(u32::MAX));
            let mut builder = http2_builder(window.bytes(), max_header_bytes, &session.share);
            let upgrades = &session.shard.waypoint.config.upgrades;
            if upgrades.iter().any(|one| one == WEBSOCKET) {
                builder.enable_connect_protocol();
            }
            let connection = builder.serve_connection(TokioIo::new(io), service);
            let mut connection = pin!(connection);
            tokio::select! {
                ended = &mut connection => ended,
                _mode = drain.wait_until_started() => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = &mut connection => ended,
                        () = drain.wait_until_deadline() => Ok(()),
                    }
                }
            }
        }
    };
    if let Err(error) = ended {
        failure::report(&session, version, &error);
    }
}

/// Builds hyper's HTTP/1 server with timeouts and with limits of header sections.
fn http1_builder(limits: HeaderLimits) -> conn::http1::Builder {
    let mut builder = conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(limits.bytes + EXTRA_HEADER_BYTES)
        .max_headers(limits.fields + EXTRA_HEADERS)
        .half_close(true);
    builder
}

/// Builds hyper's HTTP/2 server with a connection receive window and a limit of header sections, both in bytes.
fn http2_builder(
    window: usize,
    headers: usize,
    share: &FairShare,
) -> conn::http2::Builder<TaskExecutor> {
    let bytes = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let mut builder = conn::http2::Builder::new(TaskExecutor(TaskShare::Fixed(share.clone())));
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(bytes(headers))
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(MAX_RESET_STREAMS)
        .max_send_buf_size(MAX_SEND_BUFFER_BYTES)
        .initial_stream_window_size(bytes(window.min(MAX_STREAM_WINDOW_BYTES)))
        .initial_connection_window_size(bytes(window));
    builder
}
