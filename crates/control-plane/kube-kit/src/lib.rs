//! Code of Kubernetes API clients that Ambit's components share. No domain logic.
#![forbid(unsafe_code)]

pub mod apply;
pub mod client;
pub mod events;
pub mod forward;
pub mod lease;
pub mod token;
pub mod watch;

pub use client::{ClientError, create_client};
pub use watch::{ObjectId, ObjectWatch, WatchEvent};
