//! Compiles modules, and drives the clock that interrupts callbacks.

use std::{fmt, sync::Arc, time::Duration};

use wasmtime::{Config, Linker};

use crate::{
    host::{self, Host},
    limits::{EPOCH_TICK, MAX_MODULE_BYTES},
    memory_limit::ProcessMemory,
};

/// Supported ABI versions; a module exports a function of this name.
const ABI_VERSIONS: [&str; 2] = ["proxy_abi_version_0_2_1", "proxy_abi_version_0_2_0"];

/// Compiler of Wasm modules. Clones share its state.
#[derive(Clone)]
pub struct Engine {
    engine: wasmtime::Engine,
    linker: Arc<Linker<Host>>,
    memory: Arc<ProcessMemory>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// Compiled Wasm module. Clones share it.
#[derive(Clone)]
pub struct Module {
    pub(crate) engine: wasmtime::Engine,
    pub(crate) instance: wasmtime::InstancePre<Host>,
    pub(crate) memory: Arc<ProcessMemory>,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").finish_non_exhaustive()
    }
}

/// Reason why a Wasm module cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The module's size in bytes exceeds the limit.
    #[error("the module has {0} bytes, at most {MAX_MODULE_BYTES} are taken")]
    TooLarge(usize),
    /// The bytes are not a valid Wasm module.
    #[error("this is no WebAssembly module that can be compiled: {0}")]
    Invalid(String),
    /// The module exports no supported version of the proxy-wasm ABI.
    #[error(
        "the module exports neither proxy_abi_version_0_2_1 nor proxy_abi_version_0_2_0: it is no proxy-wasm plugin"
    )]
    UnsupportedAbi,
    /// The module imports functions that the host does not provide.
    #[error("the module imports what this host does not have: {0}")]
    UnknownImports(String),
    /// The processor or operating system does not support compilation at run time.
    #[error("WebAssembly cannot be run here: {0}")]
    CompilationUnsupported(String),
}

impl Engine {
    /// Interval at which [`Self::tick`] must be called while there are instances of modules.
    pub const TICK_INTERVAL: Duration = EPOCH_TICK;

    /// Creates an engine.
    ///
    /// # Errors
    ///
    /// When the system does not allow compilation at run time.
    pub fn new() -> Result<Self, ModuleError> {
        let mut config = Config::new();
        config.epoch_interruption(true);
        // Reserved address space per memory; instances are many, their memories small.
        config.memory_reservation(128 << 20);
        config.memory_guard_size(64 << 10);
        config.wasm_memory64(false);
        let failed =
            |error: wasmtime::Error| ModuleError::CompilationUnsupported(format!("{error:#}"));
        let engine = wasmtime::Engine::new(&config).map_err(failed)?;
        let mut linker = Linker::new(&engine);
        host::link(&mut linker).map_err(failed)?;
        Ok(Self {
            engine,
            linker: Arc::new(linker),
            memory: Arc::default(),
        })
    }

    /// Advances the clock by one tick: callbacks that have exceeded their timeout trap.
    pub fn tick(&self) {
        self.engine.increment_epoch();
    }

    /// Compiles a module. Blocks for a long time, so it must not run on worker threads.
    ///
    /// # Errors
    ///
    /// When the bytes are not a Wasm module, or not one for this ABI.
    pub fn compile(&self, bytes: &[u8]) -> Result<Module, ModuleError> {
        if bytes.len() > MAX_MODULE_BYTES {
            return Err(ModuleError::TooLarge(bytes.len()));
        }
        let module = wasmtime::Module::from_binary(&self.engine, bytes);
        let module = module.map_err(|error| ModuleError::Invalid(format!("{error:#}")))?;
        let is_plugin = ABI_VERSIONS
            .iter()
            .any(|name| module.get_export(name).is_some());
        if !is_plugin {
            return Err(ModuleError::UnsupportedAbi);
        }
        let mut linker = Linker::clone(&self.linker);
        let linked = host::link_unsupported(&mut linker, &module);
        let instance = linked.and_then(|()| linker.instantiate_pre(&module));
        let instance =
            instance.map_err(|error| ModuleError::UnknownImports(format!("{error:#}")))?;
        Ok(Module {
            engine: self.engine.clone(),
            instance,
            memory: self.memory.clone(),
        })
    }
}
