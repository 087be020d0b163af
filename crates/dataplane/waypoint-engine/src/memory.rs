//! Memory budgets: bytes that the waypoint holds for its callers. A connection's budget is part of its caller's, and a
//! caller's budget part of the process's. Data that exceeds one of them is rejected before it is stored, so that the
//! process stays below half of its memory limit regardless of what one caller sends.

mod account;
mod callers;

pub(crate) use account::{Exhausted, Permit, Scope};
pub(crate) use callers::{ConnectionMemory, Memory, Use, WindowShares};

/// Memory limits in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimits {
    /// Limit of all callers together.
    pub(crate) process: usize,
    /// Limit of one caller: a quarter of the process's, so that no caller exhausts that alone.
    pub(crate) caller: usize,
    /// Limit of one caller's connections: their buffers and windows.
    pub(crate) connections: usize,
    /// Limit of the requests on one connection.
    pub(crate) requests: usize,
}

impl MemoryLimits {
    /// Returns the limits for a process limit in bytes.
    pub(crate) fn of(process: usize) -> Self {
        let caller = process / 4;
        Self {
            process,
            caller,
            connections: caller / 2,
            requests: caller / 2,
        }
    }
}
