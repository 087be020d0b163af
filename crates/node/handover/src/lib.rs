//! A process that outlives the program it runs: it holds descriptors for it (listening sockets, network
//! namespaces, files), starts the program proper as its worker, and starts another as soon as that dies, so
//! that a crash costs milliseconds rather than the back-off of the one that started the process. Connections
//! opened meanwhile wait in the kernel's queues.
//!
//! [`process`] is that process, [`supervisor`] the worker's side of it. What is held are items with a name, words
//! that only workers understand, and descriptors: see [`record`]. Other processes may hold the same: the old and
//! the new program at a replacement, a standby in another container of the same pod ([`standby`]), and one
//! that only holds ([`holder`]).
//!
//! For workers: the [`gate`] that connections are accepted through, whose turn it is to accept ([`rollout`]), and
//! files that outlive a worker ([`journal`]), from which the next one starts warm.
#![forbid(unsafe_code)]

mod error;
pub mod gate;
pub mod holder;
pub mod journal;
mod links;
mod meeting;
pub mod process;
pub mod record;
mod refusal;
pub mod rollout;
mod standby;
mod state;
pub mod supervisor;
mod waiting;

pub use error::RunError;
pub use gate::{Gate, GateControl};
pub use journal::{Backing, Journal};
pub use meeting::Meeting;
pub use process::{Program, run};
pub use record::{Accept, Handover, HandoverItem, Record};
pub use supervisor::{Supervisor, SupervisorError};
