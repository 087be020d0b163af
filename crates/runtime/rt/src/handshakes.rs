//! Accepts connections of unauthenticated clients and performs their handshake, within limits. A handshake costs a
//! server more than the client, so that handshakes are limited for each address, in time, and in total.

use std::{
    fmt, io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{Mutex, mpsc},
    time::timeout,
};

use crate::{DrainWatcher, RateLimits, Slot, SlotLimits, Slots, http::Listen, spawn};

/// Pause after a failed accept, for instance for lack of descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Limits of the connections that are accepted and authenticated.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// Maximum connections in their handshake, including authenticated ones that still hold their slot.
    pub slots: SlotLimits,
    /// Maximum new connections of one address per second.
    pub per_second: u32,
    /// Maximum new connections of one address at once after an idle period.
    pub burst: u32,
    /// Timeout of a handshake.
    pub timeout: Duration,
    /// Maximum authenticated connections that wait for the server.
    pub queue: usize,
}

/// Reason why a connection was closed before its handshake completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeCloseReason {
    /// The source address exceeds its rate of new connections.
    RateLimited,
    /// A later connection took over the connection's slot, see [`SlotLimits`].
    Displaced,
    /// The handshake failed or timed out.
    HandshakeFailed,
}

impl HandshakeCloseReason {
    /// Returns the reason's label value in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::RateLimited => "rate",
            Self::Displaced => "displaced",
            Self::HandshakeFailed => "handshake",
        }
    }
}

/// Connection whose handshake has completed.
#[derive(Debug)]
pub struct AdmittedConnection<T> {
    /// Result of the handshake, such as a TLS connection.
    pub connection: T,
    /// Address of the client.
    pub peer: SocketAddr,
    /// Slot of the connection, released on drop.
    pub slot: Slot,
}

/// Accepts connections until the drain starts or the receiver is dropped. `admission` performs a connection's
/// handshake; `closed` is called for each connection without a completed handshake. `name` appears in logs.
pub fn accept_with_handshake<T, E, F>(
    name: &'static str,
    listener: TcpListener,
    limits: HandshakeLimits,
    mut drain: DrainWatcher,
    admission: impl Fn(TcpStream) -> F + Send + 'static,
    closed: impl Fn(HandshakeCloseReason) + Clone + Send + 'static,
) -> mpsc::Receiver<AdmittedConnection<T>>
where
    T: Send + 'static,
    E: fmt::Display + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(limits.queue);
    spawn(name, async move {
        let slots = Slots::new(limits.slots);
        let rates = RateLimits::new(limits.per_second, limits.burst);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = drain.wait_until_started() => return,
                () = sender.closed() => return,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(server = name, %error, "accept failed");
                    tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                    continue;
                }
            };
            if !rates.try_acquire(peer.ip().to_canonical(), Instant::now()) {
                tracing::debug!(server = name, %peer, "connection closed: its address opens too many");
                closed(HandshakeCloseReason::RateLimited);
                continue;
            }
            let slot = tokio::select! {
                slot = slots.acquire(peer.ip()) => slot,
                _ = drain.wait_until_started() => return,
            };
            let handshake = Handshake {
                server: name,
                peer,
                slot,
                timeout: limits.timeout,
            };
            let admitted = handshake.run(admission(stream));
            let (sender, closed) = (sender.clone(), closed.clone());
            spawn(name, async move {
                match admitted.await {
                    // Fails only when the server has stopped.
                    Ok(admitted) => drop(sender.send(admitted).await),
                    Err(why) => closed(why),
                }
            });
        }
    });
    receiver
}

/// Handshake that is in progress, with its slot.
struct Handshake {
    server: &'static str,
    peer: SocketAddr,
    slot: Slot,
    timeout: Duration,
}

impl Handshake {
    async fn run<T, E: fmt::Display>(
        mut self,
        admission: impl Future<Output = Result<T, E>>,
    ) -> Result<AdmittedConnection<T>, HandshakeCloseReason> {
        let Self { server, peer, .. } = self;
        tokio::select! {
            done = timeout(self.timeout, admission) => match done {
                Ok(Ok(connection)) => Ok(AdmittedConnection { connection, peer, slot: self.slot }),
                Ok(Err(error)) => {
                    tracing::debug!(server, %peer, %error, "handshake failed");
                    Err(HandshakeCloseReason::HandshakeFailed)
                }
                Err(_elapsed) => {
                    tracing::debug!(server, %peer, "handshake took too long");
                    Err(HandshakeCloseReason::HandshakeFailed)
                }
            },
            () = self.slot.wait_until_evicted() => {
                tracing::debug!(server, %peer, "connection closed: its address has opened too many");
                Err(HandshakeCloseReason::Displaced)
            }
        }
    }
}

/// Listener for an HTTP server, which returns connections whose handshake has completed; the server applies its own
/// limits to them.
#[derive(Debug)]
pub struct AdmittedListener<T>(Mutex<mpsc::Receiver<AdmittedConnection<T>>>);

impl<T> From<mpsc::Receiver<AdmittedConnection<T>>> for AdmittedListener<T> {
    fn from(admitted: mpsc::Receiver<AdmittedConnection<T>>) -> Self {
        Self(Mutex::new(admitted))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Listen for AdmittedListener<T> {
    type Stream = T;

    async fn next(&self) -> io::Result<(T, Option<SocketAddr>)> {
        match self.0.lock().await.recv().await {
            Some(admitted) => Ok((admitted.connection, Some(admitted.peer))),
            // The drain has started, which ends the server as well.
            None => std::future::pending().await,
        }
    }
}
