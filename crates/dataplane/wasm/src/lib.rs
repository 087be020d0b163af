//! Plugins of a waypoint: WebAssembly modules that are called for each request, by the proxy-wasm ABI 0.2.1.
//!
//! [`Engine`] compiles a [`Module`]; a [`Vm`] is an instance of it, one per worker and plugin. Each request is a
//! context in the instance: the waypoint passes headers and bodies to the context, the module reads and changes them
//! by the functions of `host`, and the waypoint takes them back. This crate neither waits nor sends: network calls of
//! a module are [`Effect`]s, and the clock advances by [`Engine::tick`].
//!
//! Modules are untrusted. Their pointers and lengths are checked before memory is accessed or allocated; their
//! resources are bounded by [`Limits`]; a callback that exceeds its timeout traps, and after a trap the [`Vm`] is
//! never entered again.
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
pub use effect::{
    Call, CallId, CallKind, CallPermit, CallResponse, Effect, GrpcStreamEvent, GrpcStreamMessage,
};
pub use engine::{Engine, Module, ModuleError};
pub use limits::Limits;
pub use metrics::{MetricKind, MetricValue, Metrics};
pub use settings::Settings;
pub use shared::SharedState;
pub use stream::{
    ContextId, Direction, HeaderSection, LocalResponse, PropertySource, PropertyValue,
    StreamDecision,
};
pub use vm::{Vm, VmError};
