//! A process that outlives the program it runs: it holds descriptors for it (listening sockets,
//! network namespaces, files), starts the program proper as its worker, and restarts it as soon as
//! it dies, so that a crash costs milliseconds rather than kubelet's back-off. Connections opened
//! meanwhile wait in the kernel's queues.
//!
//! [`process`] is that process, [`supervisor`] the worker's side of it. Items have a name, metadata
//! that only workers understand, and descriptors: see [`record`]. Other processes may hold the same
//! items: the old and the new program at a rollout, a standby in another container of the same pod
//! ([`standby`]), and one that does nothing else ([`holder`]).
//!
//! For workers: the
//! [`gate`] before accepting connections, the order of accepting at a rollout ([`rollout`]), and
//! files that outlive a worker ([`journal`]), from which the next one starts warm.
#![forbid(unsafe_code)]

mod error;
pub mod gate;
pub mod holder;
pub mod journal;
mod links;
pub mod process;
mod queue_reset;
pub mod record;
pub mod rollout;
mod standby;
mod state;
pub mod supervisor;
mod supervisor_sockets;
mod waiting;

pub use error::RunError;
pub use gate::{Gate, GateControl};
pub use journal::{Journal, JournalStorage};
pub use process::{WorkerProgram, run};
pub use record::{AcceptCommand, Handover, HandoverItem, Record};
pub use supervisor::{Supervisor, SupervisorError};
pub use supervisor_sockets::SupervisorSockets;
