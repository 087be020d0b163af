//! Pooled HTTP/2 connections with their active requests, limited in concurrent requests and idle time.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hyper::client::conn::http2::SendRequest;
use parking_lot::Mutex;

use super::{
    idle_connections::last_of_oldest,
    key::HttpKey,
    reuse::{ConnectionUse, ReuseLimits},
};
use crate::{memory::MemoryAccount, message::Body, upstream::ChargedAccounts};

/// Number of active requests on one HTTP/2 connection.
#[derive(Debug)]
pub(super) struct ActiveStreams {
    active: AtomicU32,
    /// Time at which the latest request on the connection ended.
    idle_since: Mutex<Instant>,
}

/// Slot of an active request on an HTTP/2 connection, released when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct StreamSlot {
    #[expect(dead_code, reason = "what it does is to be held")]
    count_guard: Arc<StreamCountGuard>,
}

#[derive(Debug)]
struct StreamCountGuard(Arc<ActiveStreams>);

impl Drop for StreamCountGuard {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Instant::now();
        self.0.active.fetch_sub(1, Relaxed);
    }
}

impl ActiveStreams {
    /// Creates the counter of a new connection, together with the slot of its first request.
    pub(super) fn with_first_stream() -> (Arc<Self>, StreamSlot) {
        let streams = Arc::new(Self {
            active: AtomicU32::new(0),
            idle_since: Mutex::new(Instant::now()),
        });
        let slot = streams.take_slot();
        (streams, slot)
    }

    fn take_slot(self: &Arc<Self>) -> StreamSlot {
        self.active.fetch_add(1, Relaxed);
        StreamSlot {
            count_guard: Arc::new(StreamCountGuard(self.clone())),
        }
    }
}

#[derive(Debug)]
struct Http2Connection {
    sender: SendRequest<Body>,
    usage: ConnectionUse,
    streams: Arc<ActiveStreams>,
    /// Memory accounts that the connection is charged to.
    memory: ChargedAccounts,
}

impl Http2Connection {
    /// Returns the time at which the latest request ended; `None` while there are active ones.
    fn idle_since(&self) -> Option<Instant> {
        let is_idle = self.streams.active.load(Relaxed) == 0;
        is_idle.then(|| *self.streams.idle_since.lock())
    }
}

/// Pooled HTTP/2 connections by pool key.
#[derive(Debug, Default)]
pub(super) struct Http2Connections(HashMap<HttpKey, Vec<Http2Connection>>);

impl Http2Connections {
    pub(super) fn insert(
        &mut self,
        key: HttpKey,
        sender: SendRequest<Body>,
        life: ConnectionUse,
        streams: Arc<ActiveStreams>,
        memory: ChargedAccounts,
    ) {
        self.0.entry(key).or_default().push(Http2Connection {
            sender,
            usage: life,
            streams,
            memory,
        });
    }

    /// Closes `count` connections without requests, or all if there are fewer, those first that have been idle for the
    /// longest time, with others that became idle at the same time. Only connections count that are charged to an account
    /// for which `predicate` is true. Returns their number.
    pub(super) fn close_idle(
        &mut self,
        count: usize,
        predicate: impl Fn(&MemoryAccount) -> bool,
    ) -> usize {
        let idle_since =
            |one: &Http2Connection| one.idle_since().filter(|_| one.memory.any(&predicate));
        let all = self.0.values().flatten();
        let Some(last) = last_of_oldest(all.filter_map(idle_since), count) else {
            return 0;
        };
        let before: usize = self.0.values().map(Vec::len).sum();
        self.0.retain(|_, all| {
            all.retain(|one| idle_since(one).is_none_or(|since| since > last));
            !all.is_empty()
        });
        before - self.0.values().map(Vec::len).sum::<usize>()
    }

    /// Takes a slot on a pooled connection that has room for one more request.
    pub(super) fn take(
        &mut self,
        key: &HttpKey,
        limits: ReuseLimits,
    ) -> Option<(SendRequest<Body>, ConnectionUse, StreamSlot)> {
        let all = self.0.get_mut(key)?;
        for one in &mut *all {
            one.usage = one.usage.with_limits(limits);
        }
        all.retain(|one| !one.sender.is_closed() && !one.usage.is_expired());
        let has_room =
            |one: &&mut Http2Connection| one.streams.active.load(Relaxed) < limits.max_streams;
        let taken = all.iter_mut().find(has_room).map(|one| {
            let taken = (one.sender.clone(), one.usage, one.streams.take_slot());
            one.usage = one.usage.next_request();
            taken
        });
        all.retain(|one| !one.usage.is_expired());
        if all.is_empty() {
            self.0.remove(key);
        }
        taken
    }

    /// Removes a connection from the pool if it is closed or has been idle for too long. Otherwise returns the time
    /// until the next check; `None` if it is no longer pooled.
    pub(super) fn retire(
        &mut self,
        key: &HttpKey,
        streams: &Arc<ActiveStreams>,
    ) -> Option<Duration> {
        let all = self.0.get_mut(key)?;
        let at = all
            .iter()
            .position(|one| Arc::ptr_eq(&one.streams, streams))?;
        let is_busy = streams.active.load(Relaxed) > 0;
        let quiet = streams.idle_since.lock().elapsed();
        let one = all.get(at)?;
        let (is_closed, idle) = (one.sender.is_closed(), one.usage.limits.http2_idle_timeout);
        if !is_closed && (is_busy || quiet < idle) {
            return Some(if is_busy { idle } else { idle - quiet });
        }
        // Without senders the connection closes when its last request ends.
        all.remove(at);
        if all.is_empty() {
            self.0.remove(key);
        }
        None
    }
}
