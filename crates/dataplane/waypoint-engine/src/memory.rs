//! Memory budgets: bytes that the waypoint holds for its callers. A connection's budget is part of its caller's, and a
//! caller's budget part of the process's. Data that exceeds a budget is rejected before it is stored, so that the
//! process stays below half of its memory limit regardless of how much one caller sends.

mod account;
mod callers;

pub(crate) use account::{BudgetExhausted, BudgetScope, MemoryAccount, MemoryPermit};
pub(crate) use callers::{ChargePurpose, ConnectionMemory, Memory};
