//! Memory budgets: bytes that the waypoint holds for its callers. A connection's budget is part of its caller's, and that
//! one of the process's. What does not fit into all of them is refused before it is kept, so that the process stays
//! below half of its memory limit whatever one caller sends.

mod account;
mod callers;

pub(crate) use account::{Exhausted, Permit, Scope};
pub(crate) use callers::{ConnectionMemory, Memory, Use};

/// How many bytes are held at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimits {
    /// For all callers.
    pub(crate) process: usize,
    /// For one caller: a quarter, so that no caller can use up the process's budget.
    pub(crate) caller: usize,
    /// For the connections of one caller, whatever they carry: their buffers and windows.
    pub(crate) connections: usize,
    /// For the requests on one connection.
    pub(crate) requests: usize,
}

impl MemoryLimits {
    /// The shares of a process that may hold so many bytes.
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
