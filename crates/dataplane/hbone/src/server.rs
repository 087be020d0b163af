//! Server side of an HBONE connection: receives CONNECT requests, and accepts them as tunnels.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use ambit_codec::{Authority, ParseAuthorityError};
use h2::{RecvStream, server::SendResponse};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use crate::{
    Permit, Settings, Tunnel,
    gathered_writes::GatheredWrites,
    pinger::{PingTimeout, Pinger},
    portioned_reads::{PortionedReads, hbone_frame_budget},
    send_chunk::SendChunk,
    tunnel::{OpenStream, ServerStreams, StreamSlot},
    window_growth::WindowGrowth,
    windows::FlowControlWindows,
};

/// Error that ended a connection before both peers had closed it.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The peer did not send its preface and settings in time.
    #[error("http2 handshake failed: the peer took longer than {0:?}")]
    HandshakeTimeout(Duration),
    /// The peer's preface was invalid.
    #[error("http2 handshake failed")]
    Handshake(#[source] h2::Error),
    /// The client violated HTTP/2, or disconnected.
    #[error("http2 connection failed")]
    Connection(#[source] h2::Error),
    /// The peer did not acknowledge a PING in time.
    #[error(transparent)]
    PingTimeout(#[from] PingTimeout),
}

/// Request on an HBONE server connection, which the handler accepts as a tunnel or refuses. Dropping it resets the
/// stream.
#[derive(Debug)]
pub struct IncomingRequest {
    request: Request<RecvStream>,
    response_sender: SendResponse<SendChunk>,
    open_stream: OpenStream,
}

/// Reason why a request is no valid CONNECT request for a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IncomingRequestError {
    /// The method is not CONNECT.
    #[error("the method is not CONNECT")]
    MethodNotConnect,
    /// The request is an extended CONNECT, or its target has a path.
    #[error("the request has no plain authority")]
    NoAuthority,
    /// The authority is not `host:port`.
    #[error(transparent)]
    Authority(#[from] ParseAuthorityError),
}

impl IncomingRequest {
    /// Returns the destination that the request names.
    ///
    /// # Errors
    ///
    /// When the request is not a plain CONNECT to an address or name with a port.
    pub fn target(&self) -> Result<Authority, IncomingRequestError> {
        if self.request.method() != Method::CONNECT {
            return Err(IncomingRequestError::MethodNotConnect);
        }
        if self
            .request
            .extensions()
            .get::<h2::ext::Protocol>()
            .is_some()
        {
            return Err(IncomingRequestError::NoAuthority);
        }
        let authority = self
            .request
            .uri()
            .authority()
            .ok_or(IncomingRequestError::NoAuthority)?;
        Ok(Authority::parse(authority.as_str().as_bytes())?)
    }

    /// Returns the request's headers.
    pub fn headers(&self) -> &HeaderMap {
        self.request.headers()
    }

    /// Returns the number of open streams on the connection, including this one.
    pub fn open_streams(&self) -> usize {
        self.open_stream.count()
    }

    /// Refuses the request with `status`. Has no effect if the peer has disconnected.
    pub fn refuse(self, status: StatusCode) {
        self.refuse_with(status, HeaderMap::new());
    }

    /// Refuses the request with `status` and response headers.
    pub fn refuse_with(mut self, status: StatusCode, headers: HeaderMap) {
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        let _gone = self.response_sender.send_response(response, true);
    }

    /// Runs `work` for the request, and drops it when the peer cancels the request or disconnects.
    ///
    /// # Errors
    ///
    /// Returns how the request ended.
    pub async fn run_until_cancelled<T>(
        &mut self,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, h2::Error> {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(gone) = self.response_sender.poll_reset(cx) {
                return Poll::Ready(Err(gone.map_or_else(|error| error, Into::into)));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Responds with 200, which opens the tunnel.
    ///
    /// # Errors
    ///
    /// When the peer has disconnected.
    pub fn accept(mut self, headers: HeaderMap) -> Result<Tunnel, h2::Error> {
        let mut response = Response::new(());
        *response.headers_mut() = headers;
        let send = self.response_sender.send_response(response, false)?;
        Ok(Tunnel::new(
            send,
            self.request.into_body(),
            StreamSlot::Server(self.open_stream),
        ))
    }
}

/// Serves one connection: calls `handler` with every request; it must not block but spawn.
///
/// When `drain` completes, the server sends GOAWAY, so that the peer opens no more tunnels. The connection ends with
/// its last tunnel.
///
/// # Errors
///
/// When the peer violates the protocol or no longer responds.
pub async fn serve<IO, D, H>(
    io: IO,
    settings: &Settings,
    drain: D,
    handler: H,
) -> Result<(), ServeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    D: Future<Output = ()>,
    H: FnMut(IncomingRequest),
{
    serve_with_permit(io, settings, None, drain, handler).await
}

/// Serves one connection as [`serve`] does, and holds its permit meanwhile, by which its receive windows may grow.
///
/// # Errors
///
/// When the peer violates the protocol or no longer responds.
pub async fn serve_with_permit<IO, D, H>(
    io: IO,
    settings: &Settings,
    mut permit: Option<Box<dyn Permit>>,
    drain: D,
    mut handler: H,
) -> Result<(), ServeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    D: Future<Output = ()>,
    H: FnMut(IncomingRequest),
{
    let max_streams = usize::try_from(settings.max_peer_streams).unwrap_or(usize::MAX);
    let mut windows = FlowControlWindows::new(settings, max_streams);
    let frame_budget = hbone_frame_budget(windows.connection_window(0));
    let io = GatheredWrites::new(io);
    let gatherer = io.gatherer();
    let io = PortionedReads::with_budget(io, frame_budget);
    let (portion_end, mut growth) = (io.portion_end(), WindowGrowth::new(io.portion()));
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(windows.initial_stream_window())
        .initial_connection_window_size(windows.connection_window(0))
        .max_frame_size(settings.max_frame_bytes)
        .max_header_list_size(settings.max_request_header_bytes)
        .max_concurrent_streams(settings.max_peer_streams)
        .data_frame_budget(frame_budget)
        .max_pending_accept_reset_streams(settings.max_streams)
        .max_concurrent_reset_streams(settings.max_streams)
        .max_send_buffer_size(settings.max_send_buffer_bytes);
    let limit = settings.handshake_timeout;
    let mut connection = timeout(limit, builder.handshake::<_, SendChunk>(io))
        .await
        .map_err(|_| ServeError::HandshakeTimeout(limit))?
        .map_err(ServeError::Handshake)?;
    let mut pinger = Pinger::new(connection.ping_pong(), settings);
    let mut drain = pin!(drain);
    let mut draining = false;
    let streams = Arc::new(ServerStreams::default());
    std::future::poll_fn(move |cx| {
        if !draining && drain.as_mut().poll(cx).is_ready() {
            draining = true;
            connection.graceful_shutdown();
        }
        if let Poll::Ready(silent) = Pin::new(&mut pinger).get_mut().poll(cx, || {}) {
            return Poll::Ready(Err(silent.into()));
        }
        loop {
            // The peer must acknowledge one change before the next: the following iteration
            // compares again.
            if let Some(window) = windows.next_stream_window(streams.count())
                && connection.set_initial_window_size(window).is_ok()
            {
                windows.set_announced_stream_window(window);
            }
            match gatherer.poll(|| connection.poll_accept(cx)) {
                Poll::Pending => {
                    if portion_end.take() {
                        streams.byte_receivers.take_received();
                        if let Some(window) = growth.count_portion(&mut windows, &mut permit) {
                            connection.set_target_window_size(window);
                        }
                    }
                    return Poll::Pending;
                }
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(Ok((request, respond)))) => {
                    handler(IncomingRequest {
                        request,
                        response_sender: respond,
                        open_stream: OpenStream::new(&streams),
                    });
                    // Counts only streams that the handler has not refused.
                    if let Some(window) = windows.grown_connection_window(streams.count()) {
                        connection.set_target_window_size(window);
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    // A peer that closes the transport without GOAWAY has merely disconnected.
                    let gone = error
                        .get_io()
                        .is_some_and(crate::relay::is_disconnect_error);
                    return Poll::Ready(if gone {
                        Ok(())
                    } else {
                        Err(ServeError::Connection(error))
                    });
                }
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests;
