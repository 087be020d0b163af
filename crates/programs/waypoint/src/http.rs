//! HTTP inside a tunnel: each request is brought into form, judged, routed, and sent on.

mod admission;
mod affinity;
mod answer;
mod authentication;
mod authorizer;
mod body;
mod broken;
mod endpoint;
mod exchange;
mod extension;
mod failure;
mod fault;
mod form;
mod front;
mod given;
mod kept;
mod leave;
mod limits;
mod mirror;
mod outgoing;
mod pace;
mod record;
mod replay;
mod reply;
mod retrying;
mod routed;
mod send;
mod tee;
mod upgrade;

pub(crate) use admission::is_still_admitted;
pub(crate) use authorizer::authorize_connection;
pub(crate) use send::Destination;

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use http::{HeaderValue, StatusCode, header::CONNECTION};
use hyper::{Request, body::Incoming, server::conn, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    message::{Tasks, Version},
    session::Session,
};
use pace::{Answered, Pace, Paced};

/// How long a connection may be without a request.
const IDLE: Duration = Duration::from_secs(3600);
/// How long a connection of HTTP/1 that carries no request is left open when the process ends: a client that has
/// just sent one cannot tell that nobody reads it, and an answer can tell it that the connection ends.
const IDLE_AT_THE_END: Duration = Duration::from_secs(10);
/// Longest header section of a request.
const MAX_HEADERS: usize = 64 << 10;
/// Most header lines of a request.
const MAX_HEADER_LINES: usize = 100;
/// Most requests at once on one connection of HTTP/2.
const MAX_STREAMS: u32 = 200;
/// Most streams that a client has reset and that are not yet forgotten.
const MAX_RESETS: usize = 50;

/// Serves the requests of a tunnel until the client or the process ends it.
pub(crate) async fn serve<IO>(session: Session, io: IO, version: Version)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let session = Arc::new(session);
    let mut drain = session.shard.waypoint.lifecycle.drain_watcher();
    let requests = session.clone();
    let ending = drain.clone();
    let pace = Pace::default();
    let begins = pace.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (session, ending) = (requests.clone(), ending.clone());
        let serving = begins.begin();
        async move {
            let mut response = exchange::respond(session, request).await;
            let may_close = response.status() != StatusCode::SWITCHING_PROTOCOLS;
            if version == Version::Http1 && may_close && ending.mode().is_some() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            let serving = match response.status() {
                StatusCode::SWITCHING_PROTOCOLS => {
                    serving.for_good();
                    None
                }
                _ => Some(serving),
            };
            Ok::<_, Infallible>(response.map(|body| Answered {
                body,
                _serving: serving,
            }))
        }
    });
    let ended = match version {
        Version::Http1 => {
            let mut builder = conn::http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE)
                .max_buf_size(MAX_HEADERS)
                .max_headers(MAX_HEADER_LINES)
                .half_close(true);
            let limit = session.shard.waypoint.config.headers_timeout;
            let io = TokioIo::new(Paced::new(io, pace, limit));
            let connection = builder.serve_connection(io, service).with_upgrades();
            let mut connection = pin!(connection);
            tokio::select! {
                ended = &mut connection => ended,
                _mode = drain.started() => {
                    tokio::select! {
                        ended = &mut connection => ended,
                        () = tokio::time::sleep(IDLE_AT_THE_END) => {
                            connection.as_mut().graceful_shutdown();
                            tokio::select! {
                                ended = &mut connection => ended,
                                () = drain.cut() => Ok(()),
                            }
                        }
                        () = drain.cut() => Ok(()),
                    }
                }
            }
        }
        Version::Http2 => {
            let mut builder = conn::http2::Builder::new(Tasks);
            builder
                .timer(TokioTimer::new())
                .enable_connect_protocol()
                .max_header_list_size(u32::try_from(MAX_HEADERS).unwrap_or(u32::MAX))
                .max_concurrent_streams(MAX_STREAMS)
                .max_pending_accept_reset_streams(MAX_RESETS)
                .max_local_error_reset_streams(MAX_RESETS)
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(4 << 20);
            let connection = builder.serve_connection(TokioIo::new(io), service);
            let mut connection = pin!(connection);
            tokio::select! {
                ended = &mut connection => ended,
                _mode = drain.started() => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = &mut connection => ended,
                        () = drain.cut() => Ok(()),
                    }
                }
            }
        }
    };
    if let Err(error) = ended {
        failure::report(&session, version, &error);
    }
}
