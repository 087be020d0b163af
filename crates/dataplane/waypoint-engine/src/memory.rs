//! Memory budgets: bytes that the waypoint holds for its callers. A connection's budget is part of its caller's, and a
//! caller's budget part of the process's. Data that exceeds a budget is rejected before it is stored, so that the
//! process stays below half of its memory limit regardless of how much one caller sends.

mod account;
mod callers;

pub(crate) use account::{BudgetExhausted, BudgetScope, MemoryAccount, MemoryPermit};
pub(crate) use callers::{ChargePurpose, ConnectionMemory, Memory, WindowDivisors};

/// Limits of the memory budgets, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimits {
    /// Limit of the memory held for all callers together.
    pub(crate) process_bytes: usize,
    /// Limit of the memory held for one caller: a quarter of the process's, so that one caller cannot exhaust it alone.
    pub(crate) caller_bytes: usize,
    /// Limit of the buffers and windows of all connections of one caller.
    pub(crate) caller_connections_bytes: usize,
    /// Limit of the memory of all requests on one connection.
    pub(crate) connection_requests_bytes: usize,
}

impl MemoryLimits {
    /// Derives all limits from the limit of the process, in bytes.
    pub(crate) fn from_process_limit(process: usize) -> Self {
        let caller = process / 4;
        Self {
            process_bytes: process,
            caller_bytes: caller,
            caller_connections_bytes: caller / 2,
            connection_requests_bytes: caller / 2,
        }
    }
}
