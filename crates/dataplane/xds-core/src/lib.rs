//! Client side of delta xDS as a state machine: subscriptions, acknowledgements, known resources, waiting callers and
//! reconnection. No IO and no clock: callers pass in the time.
#![forbid(unsafe_code)]

mod backoff;
mod client;
mod known;

pub use arcstr::ArcStr;
pub use backoff::StreamEnding;
pub use client::{Client, DeltaRequest, Effect, Push, TypeConfig, TypeIndex};

#[cfg(test)]
mod tests;
