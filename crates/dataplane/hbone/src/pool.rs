//! Pool of one pod's outbound HBONE connections on one worker thread.
//!
//! Tunnels share a connection if they have the same source identity, expected server identities, destination address
//! and source address. While a connection is being opened, all tunnels that need it wait for the result, failure
//! included; a limit that forbids one tunnel to open a connection fails no other. There are several connections for a key
//! when one cannot carry all tunnels, or the peer's flow control blocks all tunnels of one.

use std::{
    any::Any,
    collections::HashMap,
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Weak},
};

use ambit_model::{ArcStr, Identity};
use http::{HeaderMap, Uri, response};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
};

use crate::{
    ClientConnection, DialError, Liveness, Settings, Tunnel, TunnelError,
    client::{self, Driver, Http2Error},
    lease::{Permit, StreamLease},
    send_chunk::SendChunk,
};

/// Maximum connections of one pool key that are opened to avoid stalled ones; beyond it, stalled connections get new
/// tunnels.
const MAX_STALLED_CONNECTIONS: usize = 8;

type LeasedStream = (h2::client::SendRequest<SendChunk>, StreamLease);
type DialOutcome = Result<(), Arc<DialError>>;

/// Key of a pooled connection: tunnels with equal keys share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// Identity of the client certificate.
    pub source: Identity,
    /// SPIFFE identities that the server's certificate may have.
    pub expected_identities: Vec<Identity>,
    /// Uid of the workload at the other end, so that an address that is reassigned to another workload gets a new
    /// connection.
    pub workload: ArcStr,
    /// Address of the peer.
    pub destination: SocketAddr,
    /// Local source address of the connection: the client pod's own address.
    pub source_ip: IpAddr,
}

#[derive(Debug, Default)]
struct PoolEntry {
    connections: Vec<ClientConnection>,
    dials_in_progress: usize,
    waiters: Vec<oneshot::Sender<DialOutcome>>,
}

impl PoolEntry {
    fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.dials_in_progress == 0 && self.waiters.is_empty()
    }
}

#[derive(Debug, Default)]
struct PoolState {
    entries: HashMap<Arc<PoolKey>, PoolEntry>,
    draining: bool,
}

/// Pool of outbound HBONE connections. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pool {
    state: Arc<Mutex<PoolState>>,
    settings: Arc<Settings>,
}

/// Weak reference to a [`Pool`].
#[derive(Clone, Debug)]
pub struct WeakPool {
    state: Weak<Mutex<PoolState>>,
    settings: Arc<Settings>,
}

impl WeakPool {
    /// Returns the pool, unless it was dropped.
    pub fn upgrade(&self) -> Option<Pool> {
        Some(Pool {
            state: self.state.upgrade()?,
            settings: self.settings.clone(),
        })
    }
}

/// HTTP/2 limits of a new connection in place of the pool's, and a permit that is held until the connection closes.
#[derive(Debug)]
pub struct ConnectionReservation {
    /// HTTP/2 limits of the connection.
    pub settings: Arc<Settings>,
    /// Permit that is released when the connection closes.
    pub permit: Box<dyn Permit>,
}

/// Callback that reserves a new connection under a connection limit before the pool opens it. `None` opens it with the
/// pool's settings and without a permit; an error fails only the tunnel that would have opened it.
type ReserveConnection<'a> =
    &'a (dyn Fn() -> Result<Option<ConnectionReservation>, DialError> + Sync);

/// Result of looking up a pooled connection for a new tunnel.
enum PoolLookup {
    Leased(LeasedStream),
    Wait(oneshot::Receiver<DialOutcome>),
    Dial,
    Draining,
}

impl Pool {
    /// Creates an empty pool.
    pub fn new(settings: Arc<Settings>) -> Self {
        Self {
            state: Arc::default(),
            settings,
        }
    }

    /// Returns the HTTP/2 limits of the pool's connections.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the number of connections, for tests and dumps.
    pub fn connection_count(&self) -> usize {
        self.state
            .lock()
            .entries
            .values()
            .map(|entry| entry.connections.len())
            .sum()
    }

    /// Opens a tunnel to `authority` on a pooled connection, or on a new one that `dial` opens up to and including TLS.
    /// A tunnel that fails on a closing, closed or full pooled connection is retried once on another; so is one whose
    /// new connection the peer closes at once, for instance because its proxy terminates. No application data has been
    /// sent by then.
    ///
    /// # Errors
    ///
    /// When no connection can be opened, or the peer refuses the tunnel.
    pub async fn open_tunnel<IO, F>(
        &self,
        key: &Arc<PoolKey>,
        authority: Uri,
        headers: HeaderMap,
        dial: impl Fn() -> F,
    ) -> Result<(Tunnel, response::Parts), TunnelError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Result<IO, DialError>>,
    {
        self.open_tunnel_with_reservation(key, authority, headers, dial, &|| Ok(None))
            .await
    }

    /// Opens a tunnel like [`Self::open_tunnel`]. A new connection is opened under the limit and with the settings that
    /// `reserve` returns.
    ///
    /// # Errors
    ///
    /// When no connection can be opened, or the peer refuses the tunnel.
    pub async fn open_tunnel_with_reservation<IO, F>(
        &self,
        key: &Arc<PoolKey>,
        authority: Uri,
        headers: HeaderMap,
        dial: impl Fn() -> F,
        reserve: ReserveConnection<'_>,
    ) -> Result<(Tunnel, response::Parts), TunnelError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Result<IO, DialError>>,
    {
        let dial = (&dial, reserve);
        match self.try_open_tunnel(key, &authority, &headers, dial).await {
            Err((error, fresh)) if error.is_retryable(fresh) => {
                tracing::debug!(%error, destination = %key.destination, "opening the tunnel again");
                self.try_open_tunnel(key, &authority, &headers, dial).await
            }
            result => result,
        }
        .map_err(|(error, _fresh)| error)
    }

    /// Makes one attempt to open a tunnel. The flag of an error is true if the attempt used a new connection of its
    /// own.
    async fn try_open_tunnel<IO, F>(
        &self,
        key: &Arc<PoolKey>,
        authority: &Uri,
        headers: &HeaderMap,
        dial: (&impl Fn() -> F, ReserveConnection<'_>),
    ) -> Result<(Tunnel, response::Parts), (TunnelError, bool)>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Result<IO, DialError>>,
    {
        let leased = self.lease_stream(key, dial).await;
        let (leased, fresh) = leased.map_err(|error| (error, true))?;
        client::open_tunnel(leased, authority.clone(), headers.clone())
            .await
            .map_err(|error| (error, fresh))
    }

    /// Drains the pool: existing connections end with their last tunnel, and no connection is opened any more.
    pub fn drain(&self) {
        let mut state = self.state.lock();
        state.draining = true;
        state.entries.clear();
    }

    /// Closes at most `count` connections without tunnels, those first on which none was opened for the longest time, and
    /// releases their permits at once: without tunnels a peer may send nothing that needs memory. Only connections with a
    /// permit for which `predicate` is true count. Returns the number of connections that are closed.
    pub fn close_unused(&self, count: usize, predicate: impl Fn(&dyn Any) -> bool) -> usize {
        let mut state = self.state.lock();
        let is_unused = |connection: &ClientConnection| {
            connection.stream_count() == 0
                && connection.state().read_permit(&predicate) == Some(true)
        };
        let all = state.entries.values().flat_map(|entry| &entry.connections);
        let unused = all.filter(|connection| is_unused(connection));
        let mut idle_times: Vec<_> = unused.map(|one| one.state().idle_time()).collect();
        idle_times.sort_unstable_by(|a, b| b.cmp(a));
        let Some(&shortest) = idle_times.get(..count).unwrap_or(&idle_times).last() else {
            return 0;
        };
        let mut closed = 0;
        state.entries.retain(|_, entry| {
            entry.connections.retain(|connection| {
                let is_closed = closed < count
                    && is_unused(connection)
                    && connection.state().idle_time() >= shortest;
                if is_closed {
                    closed += 1;
                    connection.state().release_permit();
                }
                !is_closed
            });
            !entry.is_empty()
        });
        closed
    }

    /// Returns a weak reference to the pool.
    pub fn downgrade(&self) -> WeakPool {
        WeakPool {
            state: Arc::downgrade(&self.state),
            settings: self.settings.clone(),
        }
    }

    /// Updates the liveness of each connection's peer for which `liveness` returns a value. Connections to removed
    /// peers get no more tunnels, and are closed as soon as the peer does not respond.
    pub fn update_liveness(&self, liveness: impl Fn(&PoolKey) -> Option<Liveness>) {
        let mut state = self.state.lock();
        state.entries.retain(|key, entry| {
            let Some(liveness) = liveness(key) else {
                return true;
            };
            for connection in &entry.connections {
                connection.set_liveness(liveness);
            }
            if liveness == Liveness::Removed {
                entry.connections.clear();
            }
            !entry.is_empty()
        });
    }

    /// Reserves a stream slot on a connection of the key. The returned flag is true if the connection was opened for
    /// this call.
    async fn lease_stream<IO, F>(
        &self,
        key: &Arc<PoolKey>,
        dial: (&impl Fn() -> F, ReserveConnection<'_>),
    ) -> Result<(LeasedStream, bool), TunnelError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Result<IO, DialError>>,
    {
        loop {
            match self.find_connection(key) {
                PoolLookup::Leased(leased) => return Ok((leased, false)),
                PoolLookup::Draining => return Err(TunnelError::Draining),
                // Otherwise a new connection is available, or the task that was dialing was
                // dropped.
                PoolLookup::Wait(outcome) => {
                    if let Ok(Err(error)) = outcome.await {
                        return Err(TunnelError::Dial(error));
                    }
                }
                PoolLookup::Dial => {
                    let guard = DialGuard {
                        pool: self,
                        key,
                        done: false,
                    };
                    let (dial, reserve) = dial;
                    // Its failure concerns this tunnel alone: those that wait have limits of their own, and one of them
                    // opens the connection when the guard is dropped.
                    let reserved = reserve().map_err(|error| TunnelError::Dial(error.into()))?;
                    // Most tunnels use an open connection, and need no memory for this.
                    let outcome = Box::pin(self.dial(key, dial, reserved)).await;
                    return guard.finish(outcome).map(|leased| (leased, true));
                }
            }
        }
    }

    fn find_connection(&self, key: &Arc<PoolKey>) -> PoolLookup {
        let mut state = self.state.lock();
        if state.draining {
            return PoolLookup::Draining;
        }
        if !state.entries.contains_key(key) {
            state.entries.insert(key.clone(), PoolEntry::default());
        }
        let Some(entry) = state.entries.get_mut(key) else {
            return PoolLookup::Draining;
        };
        entry.connections.retain_mut(ClientConnection::is_open);
        let may_avoid = entry.connections.len() < MAX_STALLED_CONNECTIONS;
        let best = entry
            .connections
            .iter()
            .filter(|connection| connection.has_room())
            .filter(|connection| !(may_avoid && connection.is_stalled()))
            .min_by_key(|connection| (connection.is_stalled(), connection.stream_count()));
        if let Some(connection) = best {
            return PoolLookup::Leased(connection.lease_stream());
        }
        // Only as many callers wait as the connections being dialed can carry.
        if entry.waiters.len() + entry.dials_in_progress
            < entry.dials_in_progress * self.settings.max_streams
        {
            let (wake, outcome) = oneshot::channel();
            entry.waiters.push(wake);
            return PoolLookup::Wait(outcome);
        }
        entry.dials_in_progress += 1;
        PoolLookup::Dial
    }

    async fn dial<IO, F>(
        &self,
        key: &Arc<PoolKey>,
        dial: &impl Fn() -> F,
        reserved: Option<ConnectionReservation>,
    ) -> Result<(ClientConnection, Driver<IO>), DialError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Result<IO, DialError>>,
    {
        let settings = reserved.as_ref().map(|reserved| reserved.settings.clone());
        let settings = settings.unwrap_or_else(|| self.settings.clone());
        let io = dial().await?;
        let set_up = client::handshake(io, &settings).await;
        let (connection, driver) = set_up.map_err(|source: Http2Error| DialError::Http2 {
            addr: key.destination,
            source,
        })?;
        let permit = reserved.map(|reserved| reserved.permit);
        Ok((connection, driver.with_permit(permit)))
    }
}

/// Removes the connections of a key that take no new tunnels, and the pool entry of the key once it is empty.
fn remove_closed_connections(state: &Mutex<PoolState>, key: &PoolKey) {
    let mut state = state.lock();
    if let Some(entry) = state.entries.get_mut(key) {
        entry.connections.retain_mut(ClientConnection::is_open);
        if entry.is_empty() {
            state.entries.remove(key);
        }
    }
}

/// Guard of a connection that is being opened. If it is dropped without a result (the caller was cancelled), it wakes
/// the waiting tunnels, one of which opens the connection instead.
struct DialGuard<'a> {
    pool: &'a Pool,
    key: &'a Arc<PoolKey>,
    done: bool,
}

impl DialGuard<'_> {
    fn finish<IO>(
        mut self,
        outcome: Result<(ClientConnection, Driver<IO>), DialError>,
    ) -> Result<LeasedStream, TunnelError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.done = true;
        match outcome {
            Err(error) => {
                let error = Arc::new(error);
                self.complete_dial(None, &Err(error.clone()));
                remove_closed_connections(&self.pool.state, self.key);
                Err(TunnelError::Dial(error))
            }
            Ok((connection, driver)) => {
                let leased = connection.lease_stream();
                // The connection outlives a pool that is dropped, but does not keep it.
                let (pool, key) = (Arc::downgrade(&self.pool.state), self.key.clone());
                drop(ambit_rt::spawn("hbone connection", async move {
                    let sweep = || {
                        if let Some(state) = pool.upgrade() {
                            remove_closed_connections(&state, &key);
                        }
                    };
                    driver.run(sweep).await;
                    sweep();
                }));
                self.complete_dial(Some(connection), &Ok(()));
                Ok(leased)
            }
        }
    }

    fn complete_dial(&self, connection: Option<ClientConnection>, outcome: &DialOutcome) {
        let mut state = self.pool.state.lock();
        if state.draining {
            // The connection serves its first tunnel and ends.
            return;
        }
        let entry = state.entries.entry(self.key.clone()).or_default();
        entry.dials_in_progress = entry.dials_in_progress.saturating_sub(1);
        entry.connections.extend(connection);
        for waiter in entry.waiters.drain(..) {
            // A waiter that went away needs no answer.
            let _gone = waiter.send(outcome.clone());
        }
    }
}

impl Drop for DialGuard<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.complete_dial(None, &Ok(()));
            remove_closed_connections(&self.pool.state, self.key);
        }
    }
}

#[cfg(test)]
mod tests;
