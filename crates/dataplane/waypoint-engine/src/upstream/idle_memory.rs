//! Memory of idle connections to endpoints: when a budget is scarce, so that clients' connections may find no room, each
//! further tunnel closes connections of all workers that are charged to it and carry no request, those first that were not
//! used for the longest time.

use std::{
    any::Any,
    time::{Duration, Instant},
};

use ambit_hbone::{
    Settings,
    pool::{Pool, WeakPool},
};
use parking_lot::Mutex;

use super::http_pool::{HttpPool, WeakHttpPool};
use crate::{
    memory::{BudgetExhausted, BudgetScope, ConnectionMemory, MemoryAccount},
    tunnel_windows::{ConnectionWindows, UpstreamWindows},
};

/// Number of connections of each kind and worker that one scan closes.
const CLOSED_AT_ONCE: usize = 8;
/// Maximum time that closed connections are waited for: they release their memory in tasks of their own.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Interval of attempts to charge, and minimum interval of scans for one account, however many tunnels wait.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Latest scan for connections that are charged to one account.
#[derive(Debug)]
struct Scan {
    /// Account of a caller; `None` for the process.
    account: Option<MemoryAccount>,
    scanned_at: Instant,
    /// Time at which connections were closed last, which may not have released their memory yet.
    closed_at: Option<Instant>,
}

impl Scan {
    /// Whether connections that were closed may still release memory.
    fn is_pending(&self) -> bool {
        self.closed_at.is_some_and(|at| at.elapsed() < MAX_WAIT)
    }
}

#[derive(Debug, Default)]
struct State {
    pools: Vec<(WeakHttpPool, WeakPool)>,
    /// Scans of the last [`MAX_WAIT`].
    scans: Vec<Scan>,
}

/// Idle connections of all workers.
#[derive(Debug, Default)]
pub(crate) struct IdleUpstreams(Mutex<State>);

impl IdleUpstreams {
    /// Adds the pools of a worker.
    pub(super) fn add(&self, http: &HttpPool, tunnels: &Pool) {
        let mut state = self.0.lock();
        state.pools.push((http.downgrade(), tunnels.downgrade()));
    }

    /// Charges a tunnel to `memory`. Closes idle connections if the budget is scarce, and waits for them if it has no room
    /// for the tunnel and a connection that carries it.
    ///
    /// # Errors
    /// When the budget has no room without any idle connection, or after [`MAX_WAIT`]; metrics count the failure.
    pub(super) async fn charge_tunnel<'a>(
        &self,
        settings: &'a Settings,
        memory: &'a ConnectionMemory,
    ) -> Result<UpstreamWindows<'a>, BudgetExhausted> {
        if let Some(level) = memory.scarce_level() {
            self.close_some(memory, level);
        }
        let begin = Instant::now();
        loop {
            let exhausted = match UpstreamWindows::charge_tunnel(settings, memory) {
                Ok(windows) => return Ok(windows),
                Err(exhausted) => exhausted,
            };
            let is_pending = self.close_some(memory, exhausted.0);
            if !is_pending || begin.elapsed() >= MAX_WAIT {
                memory.count_upstream_refusal(exhausted);
                return Err(exhausted);
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Closes some idle connections that are charged to the budget of this level, unless a scan has just done so. Returns
    /// false if there are none, and none were closed recently.
    fn close_some(&self, memory: &ConnectionMemory, level: BudgetScope) -> bool {
        let account = (level != BudgetScope::Process).then(|| memory.connections_account());
        let is_same = |scan: &Scan| match (&scan.account, account) {
            (Some(scanned), Some(account)) => scanned.is_same(account),
            (scanned, account) => scanned.is_none() && account.is_none(),
        };
        let mut state = self.0.lock();
        let state = &mut *state;
        state
            .scans
            .retain(|scan| scan.scanned_at.elapsed() < MAX_WAIT);
        let latest = state.scans.iter_mut().find(|scan| is_same(scan));
        if let Some(latest) = &latest
            && latest.scanned_at.elapsed() < RETRY_INTERVAL
        {
            return latest.is_pending();
        }
        let closed_at = (close_in(&mut state.pools, account) > 0).then(Instant::now);
        match latest {
            Some(latest) => {
                latest.scanned_at = Instant::now();
                latest.closed_at = closed_at.or(latest.closed_at);
                latest.is_pending()
            }
            None => {
                state.scans.push(Scan {
                    account: account.cloned(),
                    scanned_at: Instant::now(),
                    closed_at,
                });
                closed_at.is_some()
            }
        }
    }
}

/// Closes some idle connections of each pool that are charged to the account, or to any if it is `None`. Returns their
/// number, and removes pools that were dropped.
fn close_in(pools: &mut Vec<(WeakHttpPool, WeakPool)>, account: Option<&MemoryAccount>) -> usize {
    let is_charged =
        |charged: &MemoryAccount| account.is_none_or(|account| account.is_same(charged));
    let is_permit_charged = |permit: &dyn Any| {
        let permit = permit.downcast_ref::<ConnectionWindows>();
        permit.is_some_and(|permit| is_charged(permit.account()))
    };
    let mut closed = 0;
    pools.retain(|(http, tunnels)| {
        let Some(idle) = http.close_idle(CLOSED_AT_ONCE, is_charged) else {
            return false;
        };
        let tunnels = tunnels.upgrade();
        let unused = tunnels.map(|pool| pool.close_unused(CLOSED_AT_ONCE, is_permit_charged));
        closed += idle + unused.unwrap_or_default();
        true
    });
    closed
}
