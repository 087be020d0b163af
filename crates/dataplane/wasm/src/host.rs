//! The functions that modules call, and what they work on.

mod buffers;
mod calls;
mod headers;
mod logged;
mod memory;
mod properties;
mod shares;
mod streams;
mod system;
mod wasi;

use std::{collections::BTreeMap, sync::Arc};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use wasmtime::{Linker, Module, Val};

use crate::{
    abi::Status,
    effect::{Calls, Effect, Unsent},
    memory_limit::{Limiter, ProcessMemory},
    metrics::Metrics,
    settings::Settings,
    shared::Shared,
    stream::{ContextId, Head, ROOT, Stream},
};

use logged::Logged;

/// The module in which the functions of the ABI are.
const ENV: &str = "env";
/// Import module of the WASI functions.
const WASI: &str = "wasi_snapshot_preview1";

/// State that one instance works on.
pub(crate) struct Host {
    pub(crate) settings: Arc<Settings>,
    pub(crate) shared: Shared,
    pub(crate) metrics: Metrics,
    pub(crate) limits: Limiter,
    pub(crate) streams: BTreeMap<ContextId, Stream>,
    /// The context that functions work on.
    pub(crate) effective: ContextId,
    /// Response of a call, while the module's callback for it runs.
    pub(crate) received: Received,
    pub(crate) effects: Vec<Effect>,
    /// Messages of all streams that the network has not accepted.
    pub(crate) unsent: Arc<Unsent>,
    /// Active calls and streams.
    pub(crate) calls: BTreeMap<u32, Pending>,
    /// The same with those that the module has cancelled, until they have ended.
    pub(crate) outstanding: Arc<Calls>,
    pub(crate) last_call: u32,
    pub(crate) tick_period: u32,
    /// Contexts that the module has marked as done.
    pub(crate) done: Vec<ContextId>,
    /// Volume of log output so far.
    pub(crate) logged: Logged,
    /// Lines of its log that are not yet complete: standard output and error.
    pub(crate) lines: [Vec<u8>; 2],
}

/// Active call or stream.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Context to which the call belongs.
    pub(crate) context: ContextId,
    /// Output of a stream.
    pub(crate) sending: Option<Sending>,
}

/// The module's side of a stream.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    pub(crate) is_ended: bool,
}

/// Response for [`Host::received`].
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) headers: Head,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
    pub(crate) grpc_initial: HeaderMap,
    pub(crate) grpc_trailing: HeaderMap,
    pub(crate) grpc_message: Bytes,
    pub(crate) grpc_status: u32,
    pub(crate) grpc_text: String,
}

impl Host {
    pub(crate) fn new(
        settings: Arc<Settings>,
        shared: Shared,
        metrics: Metrics,
        memory: &Arc<ProcessMemory>,
    ) -> Self {
        let limits = Limiter::new(settings.limits.memory, memory.clone());
        Self {
            settings,
            shared,
            metrics,
            limits,
            streams: BTreeMap::new(),
            effective: ROOT,
            received: Received::default(),
            effects: Vec::new(),
            calls: BTreeMap::new(),
            outstanding: Arc::default(),
            last_call: 0,
            logged: Logged::default(),
            unsent: Arc::default(),
            tick_period: 0,
            done: Vec::new(),
            lines: [Vec::new(), Vec::new()],
        }
    }

    /// The request that functions work on.
    pub(crate) fn stream(&mut self) -> Result<&mut Stream, Status> {
        self.streams
            .get_mut(&self.effective)
            .ok_or(Status::BadArgument)
    }

    fn replace(bytes: &mut BytesMut, start: usize, size: usize, with: &[u8]) -> Result<(), Status> {
        // As Envoy has it: at its beginning nothing is removed for a size of zero, beyond its end is appended.
        let start = start.min(bytes.len());
        let end = start.saturating_add(size).min(bytes.len());
        let tail = bytes.split_off(end);
        bytes.truncate(start);
        bytes.extend_from_slice(with);
        bytes.extend_from_slice(&tail);
        Ok(())
    }
}

/// Links the functions of the ABI.
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

/// Links the system functions that a module imports and the host does not implement: they fail.
pub(crate) fn link_rest(linker: &mut Linker<Host>, module: &Module) -> wasmtime::Result<()> {
    for import in module.imports() {
        if import.module() != WASI {
            continue;
        }
        let Some(ty) = import.ty().func().cloned() else {
            continue;
        };
        let results: Vec<_> = ty.results().collect();
        let gives_number = matches!(&results[..], [one] if one.is_i32());
        let name = import.name().to_owned();
        let is_known = KNOWN.contains(&name.as_str());
        if is_known {
            continue;
        }
        linker.func_new(WASI, import.name(), ty, move |_, _, results| {
            if let (true, Some(result)) = (gives_number, results.first_mut()) {
                *result = Val::I32(wasi::NOT_SUPPORTED);
                return Ok(());
            }
            Err(wasmtime::Error::msg(format!("{name} is not supported")))
        })?;
    }
    Ok(())
}

/// WASI functions that are implemented.
const KNOWN: [&str; 15] = wasi::NAMES;
