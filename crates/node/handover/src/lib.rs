//! A process that outlives the program it runs: it holds descriptors for it (listening sockets, network
//! namespaces, files), starts the program proper as its worker, and starts another as soon as that dies, so
//! that a crash costs milliseconds rather than the back-off of whoever started the process. Connections
//! opened meanwhile wait in the kernel's queues.
//!
//! [`process`] is that process, [`keeper`] the worker's side. What is held are items with a name, words that
//! only workers understand, and descriptors: see [`record`]. Other processes may hold the same: the old and
//! the new program at a replacement, a standby in another container of the same pod ([`standby`]), and one
//! that only holds ([`holder`]).
#![forbid(unsafe_code)]

pub mod holder;
pub mod keeper;
mod links;
pub mod process;
pub mod record;
mod standby;
mod state;

pub use keeper::{Keeper, KeeperError};
pub use process::{Meeting, Program, run};
pub use record::{Accept, Held, HeldItem, Record};
