//! Plugins of a waypoint: WebAssembly modules that are called for each request, by the proxy-wasm ABI 0.2.1.
//!
//! [`Engine`] compiles a [`Module`]; a [`Vm`] is an instance of one, of one worker and one plugin. Each request is a
//! context in it: the waypoint gives what has arrived, the module reads and changes it by the functions of `host`, and
//! the waypoint takes it back. Nothing here waits or sends: what a module wants of the network is an [`Effect`], and
//! time passes by [`Engine::tick`].
//!
//! Modules are hostile. Their pointers and lengths are looked at before anything is read or made by them; what they may
//! keep is bounded by [`Limits`]; a callback that takes too long traps, and after a trap the [`Vm`] is never entered again.
#![forbid(unsafe_code)]

mod abi;
mod effect;
mod engine;
mod host;
mod limits;
mod memory_limit;
mod metrics;
mod settings;
mod shared;
mod stream;
mod vm;

pub use abi::{read_pairs, write_pairs};
pub use effect::{Call, CallKind, CallResponse, Effect, Message, Outstanding, StreamEvent, Token};
pub use engine::{Engine, Module, ModuleError};
pub use limits::Limits;
pub use metrics::{MetricKind, MetricValue, Metrics};
pub use settings::Settings;
pub use shared::Shared;
pub use stream::{ContextId, Direction, Facts, Head, LocalResponse, Outcome, Value};
pub use vm::{Failure, Vm};
