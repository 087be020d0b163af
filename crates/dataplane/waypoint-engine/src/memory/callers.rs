//! Memory budgets of callers, by identity and address. Metrics count the charges for which a budget has no room.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use ambit_model::Identity;
use ambit_telemetry::http::HttpMetrics;
use parking_lot::Mutex;

use super::{
    MemoryLimits,
    account::{BudgetExhausted, BudgetScope, MemoryAccount, MemoryPermit},
};

/// Minimum number of callers in the table at which callers without charged memory are removed.
const MIN_SWEPT_CALLERS: usize = 1024;

/// Divisors of the free budgets of a caller and of the process, whose quotients bound the receive windows of a new
/// connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowDivisors {
    /// Divisor of the caller's free budget.
    pub(crate) caller: usize,
    /// Divisor of the process's free budget.
    pub(crate) process: usize,
}

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

/// Memory accounts of one caller.
#[derive(Clone, Debug)]
struct CallerAccounts {
    total: MemoryAccount,
    connections: MemoryAccount,
}

impl CallerAccounts {
    /// Whether a connection still uses the accounts, so that they must stay in the table.
    fn is_used(&self) -> bool {
        // The caller's account has the account of its connections as part.
        self.connections.reference_count() > 1 || self.total.reference_count() > 2
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
    limits: MemoryLimits,
    process: MemoryAccount,
    callers: Mutex<CallerTable>,
    metrics: Arc<HttpMetrics>,
}

impl Memory {
    pub(crate) fn new(limits: MemoryLimits, metrics: Arc<HttpMetrics>) -> Self {
        Self {
            process: MemoryAccount::root(BudgetScope::Process, limits.process_bytes),
            limits,
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
            total: all,
            connections,
        } = self.caller(identity, address);
        ConnectionMemory {
            requests: all.nested(
                BudgetScope::Connection,
                self.limits.connection_requests_bytes,
            ),
            connections,
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
            let all = self
                .process
                .nested(BudgetScope::Caller, self.limits.caller_bytes);
            CallerAccounts {
                connections: all.nested(
                    BudgetScope::Connection,
                    self.limits.caller_connections_bytes,
                ),
                total: all,
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

    /// Returns the number of bytes that the receive windows of a new connection may have together. It is a small part
    /// of the free budgets of the caller and of the process, so that neither many connections of one caller nor many
    /// callers with one connection each exhaust them.
    pub(crate) fn window_bytes(&self, divisors: WindowDivisors) -> usize {
        let by_caller = self.connections.free_bytes() / divisors.caller.max(1);
        let by_process = self.connections.free_bytes_at_root() / divisors.process.max(1);
        by_caller.min(by_process)
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

    /// Counts a connection to an endpoint for which the budget has no room, in metrics.
    pub(crate) fn count_upstream_refusal(&self, exhausted: BudgetExhausted) {
        let _counted = self.count_exhausted::<()>(ChargePurpose::Upstream, Err(exhausted));
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
        Memory::new(MemoryLimits::from_process_limit(512 * MIB), Arc::default())
    }

    fn ip(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn callers_differ_by_identity_and_address() {
        let memory = memory();
        let web = Identity::new("cluster.local", "shop", "web");
        let other = Identity::new("cluster.local", "shop", "other");
        let first = memory.connection(Some(&web), ip(1));
        let again = memory.connection(Some(&web), ip(1));
        let held: Vec<_> = [&first, &again]
            .map(|one| {
                one.charge_request(ChargePurpose::Headers, 64 * MIB)
                    .unwrap()
            })
            .into();
        let third = memory.connection(Some(&web), ip(1));
        let refused = third.charge_request(ChargePurpose::Headers, 1).unwrap_err();
        assert_eq!(refused, BudgetExhausted(BudgetScope::Caller));
        for (identity, address) in [(Some(&web), ip(2)), (Some(&other), ip(1)), (None, ip(1))] {
            let beside = memory.connection(identity, address);
            assert!(
                beside
                    .charge_request(ChargePurpose::Headers, 64 * MIB)
                    .is_ok()
            );
        }
        drop(held);
        assert!(
            third
                .charge_request(ChargePurpose::Headers, 64 * MIB)
                .is_ok()
        );
        assert_eq!(memory.charged_bytes(), 0);
    }

    #[test]
    fn windows_shrink_as_a_caller_opens_connections() {
        let memory = memory();
        let mut windows = Vec::new();
        while let Ok(window) = memory
            .connection(None, ip(1))
            .charge_window(64, 64 << 10, 4 * MIB)
        {
            windows.push(window);
        }
        let sizes: Vec<_> = windows.iter().map(MemoryPermit::bytes).collect();
        assert_eq!(sizes[0], MIB);
        assert_eq!(sizes.last(), Some(&(64 << 10)));
        assert!(sizes.is_sorted_by(|one, next| one >= next));
        assert!(
            (200..400).contains(&sizes.len()),
            "{} connections",
            sizes.len()
        );
        // Connections leave the other half of the budget to requests.
        let requests = memory.connection(None, ip(1));
        assert!(
            requests
                .charge_request(ChargePurpose::Headers, 60 * MIB)
                .is_ok()
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
        let taken = again.charge_request(ChargePurpose::Headers, 64 * MIB);
        let other = memory.connection(None, ip(0));
        assert!(
            other
                .charge_request(ChargePurpose::Headers, 64 * MIB)
                .is_err()
        );
        drop((held, taken));
    }
}
