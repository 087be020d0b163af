//! Host functions of the proxy-wasm ABI, and the state of an instance on which they operate.

mod buffers;
mod calls;
mod headers;
mod log_rate;
mod memory;
mod properties;
mod shares;
mod state;
mod streams;
mod system;
mod wasi;

use wasmtime::Linker;

pub(crate) use state::{CallbackData, Host};
pub(crate) use wasi::link_unsupported;

/// Adds all host functions to a linker.
pub(crate) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    system::link(linker)?;
    headers::link(linker)?;
    buffers::link(linker)?;
    properties::link(linker)?;
    streams::link(linker)?;
    shares::link(linker)?;
    calls::link(linker)?;
    wasi::link(linker)
}
