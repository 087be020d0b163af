//! Code that all long-lived Ambit processes share: tasks, drain, signals, readiness, the admin and metrics server,
//! logging, environment variables, backoff.
//!
//! The crate knows nothing of meshes, TLS or protobuf. It is the only caller of `tokio::spawn`.
#![forbid(unsafe_code)]

pub mod backoff;
pub mod drain;
pub mod env;
mod error_chain;
pub mod handshakes;
pub mod http;
pub mod limits;
pub mod logging;
pub mod metrics;
pub mod panics;
mod rate_limits;
pub mod readiness;
mod resolve;
pub mod shutdown;
mod sleep;
mod slots;
mod task;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use backoff::Backoff;
pub use drain::{Drain, DrainMode, DrainWatcher, OpenWork};
pub use env::{Env, EnvError};
pub use error_chain::ErrorChain;
pub use rate_limits::RateLimits;
pub use readiness::{Readiness, ReadyTask};
pub use resolve::{lookup_host, lookup_name};
pub use shutdown::{Shutdown, ShutdownTrigger};
pub use sleep::sleep_until;
pub use slots::{Slot, SlotLimits, Slots};
pub use task::{
    AbortOnDrop, current_thread_runtime, end_process_on_panic, spawn, spawn_abortable,
    spawn_blocking, spawn_essential, spawn_local,
};
