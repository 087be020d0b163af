//! Idle HTTP/1.1 connections of one worker. The connection to an endpoint that was used last is reused first; beyond the
//! maximum number of connections, those are closed that have not been used for the longest time.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use hyper::client::conn::http1;

use super::{
    closing_times::ClosingTimes,
    key::HttpKey,
    reuse::{ConnectionUse, Reuse, ReuseLimits},
};
use crate::{
    memory::MemoryAccount,
    message::Body,
    upstream::{ChargedAccounts, ConnectionActivity},
};

/// Maximum idle connections to one endpoint.
const MAX_CONNECTIONS_PER_ENDPOINT: usize = 128;
/// Part of the maximum number of connections that is closed at once when the maximum is exceeded.
const EVICTION_DIVISOR: usize = 32;

/// HTTP/1.1 connection to an endpoint, which carries one request at a time.
#[derive(Debug)]
pub(super) struct Http1Connection {
    pub(super) sender: http1::SendRequest<Body>,
    pub(super) activity: ConnectionActivity,
    /// Memory accounts that the connection is charged to.
    pub(super) memory: ChargedAccounts,
    /// Time for which the connection was idle before its current request; `None` for its first request.
    pub(super) idle_before: Option<Duration>,
}

#[derive(Debug)]
struct IdleConnection {
    connection: Http1Connection,
    usage: ConnectionUse,
    idle_since: Instant,
}

impl IdleConnection {
    /// Whether the connection is kept for a further request.
    fn is_kept(&self) -> bool {
        let memory = &self.connection.memory;
        let is_memory_scarce = memory.any(MemoryAccount::is_mostly_charged);
        self.idle_since.elapsed() < self.usage.idle_timeout(is_memory_scarce)
            && !self.usage.is_expired()
    }

    /// Returns how long the connection was idle when the endpoint closed it; `None` if it is open.
    fn closing_time(&self) -> Option<Duration> {
        let Http1Connection {
            sender, activity, ..
        } = &self.connection;
        // A connection whose task has been woken, but has not run, is not known to be closed.
        sender.is_closed().then(|| {
            let closed = activity.ended_at().unwrap_or_else(Instant::now);
            closed.saturating_duration_since(self.idle_since)
        })
    }
}

/// Idle HTTP/1.1 connections by pool key.
#[derive(Debug)]
pub(super) struct IdleConnections {
    /// Connections of each key, the one that was used last at the end.
    by_key: HashMap<HttpKey, Vec<IdleConnection>>,
    count: usize,
    max_count: usize,
    closing_times: ClosingTimes,
}

impl IdleConnections {
    /// Creates an empty set that holds at most `max_count` connections.
    pub(super) fn new(max_count: usize) -> Self {
        Self {
            by_key: HashMap::new(),
            count: 0,
            max_count,
            closing_times: ClosingTimes::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Adds a connection whose response has been read.
    pub(super) fn insert(
        &mut self,
        key: HttpKey,
        connection: Http1Connection,
        usage: ConnectionUse,
    ) {
        let added = IdleConnection {
            connection,
            usage,
            idle_since: Instant::now(),
        };
        self.add(key, added);
    }

    fn add(&mut self, key: HttpKey, added: IdleConnection) {
        let idle = self.by_key.entry(key).or_default();
        if idle.len() >= MAX_CONNECTIONS_PER_ENDPOINT {
            idle.remove(0);
            self.count -= 1;
        }
        idle.push(added);
        self.count += 1;
        if self.count > self.max_count {
            self.close_least_recently_used();
        }
    }

    /// Takes the connection with this key that was used last and may carry another request.
    pub(super) fn take(
        &mut self,
        key: &HttpKey,
        limits: ReuseLimits,
        reuse: Reuse,
    ) -> Option<(Http1Connection, ConnectionUse)> {
        let idle = self.by_key.get_mut(key)?;
        while let Some(mut last) = idle.pop() {
            self.count -= 1;
            last.usage = last.usage.with_limits(limits);
            if let Some(after) = last.closing_time() {
                self.closing_times.record(key, after, limits);
                continue;
            }
            let idle_time = last.idle_since.elapsed();
            let max_idle_time = last.usage.max_idle_time(reuse);
            if !last.is_kept() || !last.connection.sender.is_ready() {
                continue;
            }
            let is_usable = match reuse {
                Reuse::Recent => idle_time < self.closing_times.limit(key, max_idle_time),
                Reuse::Any => idle_time < max_idle_time,
            };
            if !is_usable {
                // The others have been idle for longer.
                idle.push(last);
                self.count += 1;
                if matches!(reuse, Reuse::Recent) {
                    // The connection that is opened instead takes its place, so that their number does not grow.
                    self.close_first(key);
                }
                return None;
            }
            let mut connection = last.connection;
            connection.idle_before = Some(idle_time);
            return Some((connection, last.usage));
        }
        self.by_key.remove(key);
        None
    }

    /// Closes the connection with this key that was not used for the longest time.
    fn close_first(&mut self, key: &HttpKey) {
        if let Some(idle) = self.by_key.get_mut(key).filter(|idle| !idle.is_empty()) {
            idle.remove(0);
            self.count -= 1;
            if idle.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    /// Records that the endpoint closed a reused connection as a request was sent, after this idle time.
    pub(super) fn record_closing(&mut self, key: &HttpKey, after: Duration, limits: ReuseLimits) {
        self.closing_times.record(key, after, limits);
    }

    /// Closes connections that have been idle for too long, and removes those that their endpoints have closed.
    pub(super) fn sweep(&mut self) {
        let closing_times = &mut self.closing_times;
        self.by_key.retain(|key, idle| {
            idle.retain(|one| match one.closing_time() {
                Some(after) => {
                    closing_times.record(key, after, one.usage.limits);
                    false
                }
                None => one.is_kept(),
            });
            !idle.is_empty()
        });
        self.count = self.by_key.values().map(Vec::len).sum();
    }

    /// Closes `count` connections that are charged to an account for which `predicate` is true, or all if there are fewer,
    /// those first that were not used for the longest time. Returns their number.
    pub(super) fn close_charged(
        &mut self,
        count: usize,
        predicate: impl Fn(&MemoryAccount) -> bool,
    ) -> usize {
        self.close_oldest(count, |one| one.connection.memory.any(&predicate))
    }

    /// Closes the connections that have not been used for the longest time, so that there are a little fewer than the
    /// maximum.
    fn close_least_recently_used(&mut self) {
        let kept = self.max_count - self.max_count / EVICTION_DIVISOR;
        self.close_oldest(self.count.saturating_sub(kept), |_| true);
    }

    /// Closes `count` of the connections for which `predicate` is true, or all if there are fewer, those first that were
    /// not used for the longest time, with others that were last used at the same time. Returns their number.
    fn close_oldest(&mut self, count: usize, predicate: impl Fn(&IdleConnection) -> bool) -> usize {
        let all = self.by_key.values().flatten();
        let times = all.filter(|one| predicate(one)).map(|one| one.idle_since);
        let Some(last) = last_of_oldest(times, count) else {
            return 0;
        };
        let before = self.count;
        self.by_key.retain(|_, idle| {
            idle.retain(|one| one.idle_since > last || !predicate(one));
            !idle.is_empty()
        });
        self.count = self.by_key.values().map(Vec::len).sum();
        before - self.count
    }
}

/// Returns the last of the `count` earliest times, or of all if there are fewer; `None` if there are none.
pub(super) fn last_of_oldest(
    times: impl Iterator<Item = Instant>,
    count: usize,
) -> Option<Instant> {
    let mut times: Vec<_> = times.collect();
    let last = count.min(times.len()).checked_sub(1)?;
    let (_, &mut last, _) = times.select_nth_unstable(last);
    Some(last)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ambit_model::DestinationLimits;
    use ambit_testkit::wait_until;
    use hyper_util::rt::TokioIo;
    use tokio::io::DuplexStream;

    use super::*;
    use crate::{memory::Memory, message::Version, upstream::Upstream};

    const MAX_COUNT: usize = 64;
    const MIB: usize = 1 << 20;

    fn limits() -> ReuseLimits {
        ReuseLimits::from_destination_limits(&DestinationLimits::default())
    }

    fn key(port: usize) -> HttpKey {
        let port = u16::try_from(port).unwrap();
        let upstream = Upstream::Plain(SocketAddr::from(([10, 0, 0, 1], port)), None);
        HttpKey::new(&upstream, Version::Http1)
    }

    /// Idle connections under test, with the endpoints' ends of all connections.
    struct Scene {
        idle: IdleConnections,
        ends: Vec<DuplexStream>,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                idle: IdleConnections::new(MAX_COUNT),
                ends: Vec::new(),
            }
        }

        /// Adds a connection that has been idle for this time.
        async fn add(&mut self, port: usize, seconds: u64) {
            self.add_charged(port, seconds, None).await;
        }

        async fn add_charged(&mut self, port: usize, seconds: u64, memory: Option<MemoryAccount>) {
            let (near, far) = tokio::io::duplex(64);
            let (mut sender, connection) = http1::handshake(TokioIo::new(near)).await.unwrap();
            let activity = ConnectionActivity::default();
            let ending = activity.clone();
            ambit_rt::spawn("connection", async move {
                drop(connection.await);
                ending.record_end();
            });
            sender.ready().await.unwrap();
            let connection = Http1Connection {
                sender,
                activity,
                memory: ChargedAccounts([None, memory]),
                idle_before: None,
            };
            let idle_time = Duration::from_secs(seconds);
            let added = IdleConnection {
                connection,
                usage: ConnectionUse::new(limits()),
                idle_since: Instant::now().checked_sub(idle_time).unwrap(),
            };
            self.idle.add(key(port), added);
            self.ends.push(far);
        }

        fn take(&mut self, port: usize, reuse: Reuse) -> Option<Http1Connection> {
            let taken = self.idle.take(&key(port), limits(), reuse);
            taken.map(|(connection, _)| connection)
        }

        fn count(&self, port: usize) -> usize {
            let count: usize = self.idle.by_key.values().map(Vec::len).sum();
            assert_eq!(self.idle.count, count);
            self.idle.by_key.get(&key(port)).map_or(0, Vec::len)
        }

        /// Closes the endpoints' ends, and waits until the only connection of this port is known to be closed.
        async fn close(&mut self, port: usize) {
            self.ends.clear();
            wait_until("the connection is closed", || {
                let idle = &self.idle.by_key[&key(port)];
                idle[0].connection.activity.ended_at().is_some()
            })
            .await;
        }
    }

    #[tokio::test]
    async fn connections_idle_for_long_carry_repeatable_requests_only() {
        let mut scene = Scene::new();
        scene.add(1, 3_550).await;
        scene.add(1, 3_500).await;
        // A new connection takes the place of the oldest.
        assert!(scene.take(1, Reuse::Recent).is_none());
        assert_eq!(scene.count(1), 1);
        let taken = scene.take(1, Reuse::Any).unwrap();
        assert_eq!(taken.idle_before.unwrap().as_secs(), 3_500);
        assert!(scene.take(1, Reuse::Any).is_none());
        scene.add(1, 3).await;
        assert!(scene.take(1, Reuse::Recent).is_some());
        scene.add(1, 3_600).await;
        assert!(scene.take(1, Reuse::Any).is_none());
        assert_eq!(scene.count(1), 0);
    }

    #[tokio::test]
    async fn sweep_closes_connections_after_an_hour() {
        let mut scene = Scene::new();
        scene.add(1, 3_601).await;
        scene.add(1, 3_500).await;
        scene.idle.sweep();
        assert_eq!(scene.count(1), 1);
    }

    #[tokio::test]
    async fn too_many_connections_close_those_not_used_for_the_longest_time() {
        let mut scene = Scene::new();
        for port in 1..=MAX_COUNT {
            // Neither in the order of their ages, nor in the reverse order.
            let rank = u64::try_from((port * 37) % MAX_COUNT).unwrap();
            scene.add(port, 10 * (rank + 1)).await;
        }
        scene.add(0, 0).await;
        let closed = |port: &usize| scene.count(*port) == 0;
        let mut closed: Vec<_> = (0..=MAX_COUNT).filter(closed).collect();
        closed.sort_by_key(|port| (port * 37) % MAX_COUNT);
        let ranks: Vec<_> = closed.iter().map(|port| (port * 37) % MAX_COUNT).collect();
        let first = MAX_COUNT - 1 - MAX_COUNT / EVICTION_DIVISOR;
        assert_eq!(ranks, (first..MAX_COUNT).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn scarce_memory_shortens_the_idle_time() {
        let memory = Memory::new(64 * MIB, Default::default());
        let caller = memory.connection(None, [10, 0, 0, 1].into());
        let permit = caller.charge_tunnel(15 * MIB).unwrap();
        let mut scene = Scene::new();
        scene
            .add_charged(1, 90, Some(permit.account().clone()))
            .await;
        scene
            .add_charged(1, 30, Some(permit.account().clone()))
            .await;
        scene.add(2, 90).await;
        scene.idle.sweep();
        assert_eq!([scene.count(1), scene.count(2)], [2, 1]);
        // More than half of the caller's limit, the free bytes of 48 MiB.
        let _more = caller.charge_tunnel(2 * MIB).unwrap();
        scene.idle.sweep();
        assert_eq!([scene.count(1), scene.count(2)], [1, 1]);
    }

    #[tokio::test]
    async fn connections_are_closed_for_the_budget_that_they_are_charged_to() {
        let memory = Memory::new(64 * MIB, Default::default());
        let [own, other] = [1, 2].map(|host| {
            let caller = memory.connection(None, [10, 0, 0, host].into());
            caller.charge_tunnel(MIB).unwrap()
        });
        let mut scene = Scene::new();
        for (port, seconds, permit) in [(1, 20, &own), (2, 10, &own), (3, 30, &other)] {
            let account = permit.account().clone();
            scene.add_charged(port, seconds, Some(account)).await;
        }
        scene.add(4, 40).await;
        let is_own = |account: &MemoryAccount| account.is_same(own.account());
        assert_eq!(scene.idle.close_charged(1, is_own), 1);
        assert_eq!([1, 2, 3, 4].map(|port| scene.count(port)), [0, 1, 1, 1]);
        assert_eq!(scene.idle.close_charged(8, is_own), 1);
        assert_eq!(scene.idle.close_charged(8, is_own), 0);
        assert_eq!([1, 2, 3, 4].map(|port| scene.count(port)), [0, 0, 1, 1]);
    }

    #[tokio::test]
    async fn closed_connection_bounds_the_reuse_of_others_to_its_endpoint() {
        let mut scene = Scene::new();
        scene.add(1, 2).await;
        scene.close(1).await;
        scene.idle.sweep();
        assert_eq!(scene.count(1), 0);
        for port in [1, 1, 2] {
            scene.add(port, 3).await;
        }
        // The connection was closed after two seconds.
        assert!(scene.take(1, Reuse::Recent).is_none());
        assert!(scene.take(1, Reuse::Any).is_some());
        assert!(scene.take(2, Reuse::Recent).is_some());
        scene.add(1, 0).await;
        assert!(scene.take(1, Reuse::Recent).is_some());
    }

    #[tokio::test]
    async fn closed_connections_are_not_taken() {
        let mut scene = Scene::new();
        scene.add(1, 1).await;
        scene.close(1).await;
        assert!(scene.take(1, Reuse::Any).is_none());
        assert_eq!(scene.count(1), 0);
        // Its closing time applies to others.
        scene.add(1, 1).await;
        assert!(scene.take(1, Reuse::Recent).is_none());
    }
}
