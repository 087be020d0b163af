//! Memory budgets of callers, by identity and address. Metrics count the charges for which a budget has no room.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use ambit_model::Identity;
use ambit_telemetry::http::HttpMetrics;
use parking_lot::Mutex;

use super::account::{BudgetExhausted, BudgetScope, MemoryAccount, MemoryPermit};

/// Minimum number of callers in the table at which callers without charged memory are removed.
const MIN_SWEPT_CALLERS: usize = 1024;

/// Purpose of a memory charge. Metrics of failed charges have it as reason label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ChargePurpose {
    /// Receive windows and buffers of a connection, or of a tunnel in it.
    Connection,
    /// Header section of a request, and the memory of handling it.
    Headers,
    /// Header section that is incomplete, or trailers that have not been read.
    HeaderBlock,
    /// Request body that is buffered for retries.
    RetryBody,
    /// Prefix of a request body that is buffered for an authorization provider.
    AuthorizationBody,
    /// Part of a body that a plugin holds back while it is paused.
    PluginBody,
    /// Request body that is buffered for a mirror that lags.
    MirrorBody,
    /// Response data that the client has not read.
    ResponseBody,
    /// Receive windows and buffers of connections to endpoints that are opened for the caller.
    Upstream,
    /// Request and response of a call that the waypoint makes on behalf of a client's request.
    Call,
}

impl ChargePurpose {
    fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Headers => "headers",
            Self::HeaderBlock => "header_block",
            Self::RetryBody => "retry_body",
            Self::AuthorizationBody => "ext_authz_body",
            Self::PluginBody => "plugin_body",
            Self::MirrorBody => "mirror_body",
            Self::ResponseBody => "response_body",
            Self::Upstream => "upstream",
            Self::Call => "call",
        }
    }
}

/// Identity and address by which a caller's budget is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CallerKey {
    identity: Option<Identity>,
    address: IpAddr,
}

/// Memory accounts of one caller. They are not parts of a common account: however many connections a caller keeps open,
/// their requests find room.
#[derive(Clone, Debug)]
struct CallerAccounts {
    requests: MemoryAccount,
    connections: MemoryAccount,
    /// Part of `connections` for windows that grow.
    growth: MemoryAccount,
}

impl CallerAccounts {
    /// Whether a connection still uses the accounts, so that they must stay in the table.
    fn is_used(&self) -> bool {
        // `growth` refers to `connections`.
        self.connections.reference_count() > 2
            || self.growth.reference_count() > 1
            || self.requests.reference_count() > 1
    }
}

#[derive(Debug, Default)]
struct CallerTable {
    accounts: HashMap<CallerKey, CallerAccounts>,
    /// Number of callers at which unused accounts are removed next.
    sweep_threshold: usize,
}

/// Memory accounts of the process and of its callers.
#[derive(Debug)]
pub(crate) struct Memory {
    process: MemoryAccount,
    callers: Mutex<CallerTable>,
    metrics: Arc<HttpMetrics>,
}

impl Memory {
    /// Creates the accounts of a process that may hold this many bytes for callers.
    pub(crate) fn new(limit: usize, metrics: Arc<HttpMetrics>) -> Self {
        Self {
            process: MemoryAccount::root(BudgetScope::Process, limit),
            callers: Mutex::default(),
            metrics,
        }
    }

    /// Returns the number of bytes charged for all callers.
    pub(crate) fn charged_bytes(&self) -> usize {
        self.process.charged_bytes()
    }

    /// Returns the limit of the memory charged for all callers, in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.process.limit()
    }

    /// Creates the memory accounts of a new connection of a caller.
    pub(crate) fn connection(
        &self,
        identity: Option<&Identity>,
        address: IpAddr,
    ) -> ConnectionMemory {
        let CallerAccounts {
            requests,
            connections,
            growth,
        } = self.caller(identity, address);
        ConnectionMemory {
            requests: requests.nested_in_half(BudgetScope::Connection),
            connections,
            growth,
            metrics: self.metrics.clone(),
        }
    }

    fn caller(&self, identity: Option<&Identity>, address: IpAddr) -> CallerAccounts {
        let key = CallerKey {
            identity: identity.cloned(),
            address,
        };
        let mut callers = self.callers.lock();
        if callers.accounts.len() >= callers.sweep_threshold.max(MIN_SWEPT_CALLERS) {
            callers.accounts.retain(|_, one| one.is_used());
            callers.sweep_threshold = callers.accounts.len() * 2;
        }
        let new = || {
            let connections = self.process.nested_in_free(BudgetScope::Connection);
            CallerAccounts {
                requests: self.process.nested_in_free(BudgetScope::Caller),
                growth: connections.nested_in_eighth(BudgetScope::Connection),
                connections,
            }
        };
        callers.accounts.entry(key).or_insert_with(new).clone()
    }
}

/// Memory accounts to which one connection and its requests are charged. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionMemory {
    /// Account of the requests on this connection.
    requests: MemoryAccount,
    /// Account of all connections of the caller.
    connections: MemoryAccount,
    /// Part of `connections` for windows that grow.
    growth: MemoryAccount,
    metrics: Arc<HttpMetrics>,
}

impl ConnectionMemory {
    /// Charges bytes for a request on the connection.
    ///
    /// # Errors
    /// When the budget has no room; metrics count the failure.
    pub(crate) fn charge_request(
        &self,
        of: ChargePurpose,
        bytes: usize,
    ) -> Result<MemoryPermit, BudgetExhausted> {
        self.count_exhausted(of, self.requests.charge(bytes))
    }

    /// Charges further bytes to the permit of a request.
    ///
    /// # Errors
    /// When the budget has no room; metrics count the failure.
    pub(crate) fn grow(
        &self,
        of: ChargePurpose,
        permit: &mut MemoryPermit,
        bytes: usize,
    ) -> Result<(), BudgetExhausted> {
        self.count_exhausted(of, permit.grow(bytes))
    }

    /// Charges the HTTP receive windows of the connection. Their size is the caller's remaining budget divided by
    /// `share`, between `least` and `most`, so that a caller with few connections has large windows, and one with many
    /// has small ones.
    ///
    /// # Errors
    /// When the budget has no room for `least` bytes; metrics count the failure.
    pub(crate) fn charge_window(
        &self,
        share: usize,
        least: usize,
        most: usize,
    ) -> Result<MemoryPermit, BudgetExhausted> {
        let bytes = (self.connections.free_bytes() / share.max(1)).clamp(least, most.max(least));
        self.count_exhausted(ChargePurpose::Connection, self.connections.charge(bytes))
    }

    /// Returns the number of bytes that the receive windows of a new connection may have together: the free budget for
    /// connections of the caller, divided by `divisor`. The budget shrinks with whatever is charged, so that neither
    /// many connections of one caller nor many callers with one connection each exhaust it.
    pub(crate) fn window_bytes(&self, divisor: usize) -> usize {
        self.connections.free_bytes() / divisor.max(1)
    }

    /// Charges a connection to an endpoint that is opened for the caller.
    ///
    /// # Errors
    /// When the budget has no room. If that fails a request, the caller counts it: [`Self::count_upstream_refusal`].
    pub(crate) fn charge_upstream_tunnel(
        &self,
        bytes: usize,
    ) -> Result<MemoryPermit, BudgetExhausted> {
        self.connections.charge(bytes)
    }

    /// Checks that the budget has room for a connection to an endpoint, without charging it.
    ///
    /// # Errors
    /// When it has not, which metrics do not count.
    pub(crate) fn check_upstream_room(&self, bytes: usize) -> Result<(), BudgetExhausted> {
        self.connections.check_room(bytes)
    }

    /// Counts a connection to an endpoint for which the budget has no room, in metrics.
    pub(crate) fn count_upstream_refusal(&self, exhausted: BudgetExhausted) {
        let _counted = self.count_exhausted::<()>(ChargePurpose::Upstream, Err(exhausted));
    }

    /// Returns a permit that covers nothing yet, for windows that grow. All of a caller together cover at most an eighth of
    /// what its connections may.
    pub(crate) fn growth_permit(&self) -> MemoryPermit {
        self.growth.empty_permit()
    }

    /// Returns the level at which the budget for connections is scarce, if it is: see [`MemoryAccount::scarce_level`].
    pub(crate) fn scarce_level(&self) -> Option<BudgetScope> {
        self.connections.scarce_level()
    }

    /// Returns the account of all connections of the caller.
    pub(crate) fn connections_account(&self) -> &MemoryAccount {
        &self.connections
    }

    /// Charges a tunnel of the connection.
    ///
    /// # Errors
    /// When the budget has no room; metrics count the failure.
    pub(crate) fn charge_tunnel(&self, bytes: usize) -> Result<MemoryPermit, BudgetExhausted> {
        self.count_exhausted(ChargePurpose::Connection, self.connections.charge(bytes))
    }

    fn count_exhausted<T>(
        &self,
        of: ChargePurpose,
        taken: Result<T, BudgetExhausted>,
    ) -> Result<T, BudgetExhausted> {
        taken.inspect_err(|BudgetExhausted(scope)| {
            self.metrics.count_memory_refusal(of.name(), scope.name())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn memory() -> Memory {
        Memory::new(512 * MIB, Arc::default())
    }

    fn ip(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    /// Charges 4 MiB again and again until the budget is exhausted.
    fn exhaust(
        charge: impl Fn(usize) -> Result<MemoryPermit, BudgetExhausted>,
    ) -> (Vec<MemoryPermit>, BudgetExhausted) {
        let mut permits = Vec::new();
        loop {
            match charge(4 * MIB) {
                Ok(permit) => permits.push(permit),
                Err(exhausted) => return (permits, exhausted),
            }
        }
    }

    #[test]
    fn callers_differ_by_identity_and_address() {
        let memory = memory();
        let web = Identity::new("cluster.local", "shop", "web");
        let other = Identity::new("cluster.local", "shop", "other");
        let connect = || memory.connection(Some(&web), ip(1));
        let charge = |connection: ConnectionMemory| {
            move |bytes| connection.charge_request(ChargePurpose::Headers, bytes)
        };
        let (first, scope) = exhaust(charge(connect()));
        assert_eq!(scope, BudgetExhausted(BudgetScope::Connection));
        let (second, scope) = exhaust(charge(connect()));
        assert_eq!(scope, BudgetExhausted(BudgetScope::Caller));
        // The caller has as much as it leaves.
        assert_eq!(memory.charged_bytes(), 192 * MIB);
        let third = connect();
        assert!(
            third
                .charge_request(ChargePurpose::Headers, 4 * MIB)
                .is_err()
        );
        for (identity, address) in [(Some(&web), ip(2)), (Some(&other), ip(1)), (None, ip(1))] {
            let beside = memory.connection(identity, address);
            assert!(
                beside
                    .charge_request(ChargePurpose::Headers, 64 * MIB)
                    .is_ok()
            );
        }
        drop((first, second));
        assert!(
            third
                .charge_request(ChargePurpose::Headers, 64 * MIB)
                .is_ok()
        );
        assert_eq!(memory.charged_bytes(), 0);
    }

    #[test]
    fn connections_of_all_callers_leave_room_for_requests() {
        let memory = memory();
        let first = memory.connection(None, ip(1));
        let (_first, _) = exhaust(|bytes| first.charge_tunnel(bytes));
        let others: Vec<_> = (2..10).map(|n| memory.connection(None, ip(n))).collect();
        let charge = |other: &ConnectionMemory| exhaust(|bytes| other.charge_tunnel(bytes)).0;
        let _others: Vec<_> = others.iter().map(charge).collect();
        // Its connections exceed what a caller may have now; its requests still find room, as those of all do.
        assert!(first.charge_tunnel(1).is_err());
        for connection in [&first].into_iter().chain(&others) {
            let permit = connection.charge_request(ChargePurpose::Headers, 64 << 10);
            assert!(permit.is_ok());
        }
    }

    #[test]
    fn thousand_tunnels_with_requests_fit_in_one_callers_budget() {
        // Opening tunnels to endpoints charges more for a moment, which is not part of this.
        let memory = memory();
        let caller = memory.connection(None, ip(1));
        // A tunnel from the client, one to the endpoint, and the charge of a usual request.
        let held: Vec<_> = (0..1000)
            .flat_map(|_| {
                let tunnels = [(); 2].map(|()| caller.charge_tunnel(64 << 10));
                let request = caller.charge_request(ChargePurpose::Headers, 80 << 10);
                tunnels.into_iter().chain([request])
            })
            .collect();
        assert!(held.iter().all(Result::is_ok));
    }

    #[test]
    fn windows_shrink_as_a_caller_opens_connections() {
        let memory = memory();
        let mut windows = Vec::new();
        while let Ok(window) = memory
            .connection(None, ip(1))
            .charge_window(384, 64 << 10, 4 * MIB)
        {
            windows.push(window);
        }
        let sizes: Vec<_> = windows.iter().map(MemoryPermit::bytes).collect();
        assert_eq!(sizes[0], MIB);
        assert_eq!(sizes.last(), Some(&(64 << 10)));
        assert!(sizes.is_sorted_by(|one, next| one >= next));
        assert!(
            (600..2400).contains(&sizes.len()),
            "{} connections",
            sizes.len()
        );
    }

    #[test]
    fn callers_without_charges_are_forgotten() {
        let memory = memory();
        let stays = memory.connection(None, ip(0));
        let held = stays.charge_request(ChargePurpose::Headers, 1).unwrap();
        drop(stays);
        for number in 1..5000 {
            drop(memory.connection(None, ip(number)));
        }
        assert!(memory.callers.lock().accounts.len() <= 2 * MIN_SWEPT_CALLERS);
        let again = memory.connection(None, ip(0));
        let (taken, _) = exhaust(|bytes| again.charge_request(ChargePurpose::Headers, bytes));
        let other = memory.connection(None, ip(0));
        let (more, exhausted) =
            exhaust(|bytes| other.charge_request(ChargePurpose::Headers, bytes));
        // Both are charged to one account.
        assert_eq!(exhausted, BudgetExhausted(BudgetScope::Caller));
        drop((held, taken, more));
    }
}
