//! Delta xDS as a state machine, the client's side: what to subscribe to, what to answer, what is
//! known, whom to wake, when to connect again. Pure: no IO and no clock, the time is passed in.
#![forbid(unsafe_code)]

mod backoff;
mod client;
mod known;

pub use arcstr::ArcStr;
pub use backoff::Ending;
pub use client::{Client, Effect, Kind, Push, Request, TypeConfig};

#[cfg(test)]
mod tests;
