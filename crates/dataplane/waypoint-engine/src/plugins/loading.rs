//! Loads plugin modules: fetches them on the main thread, and compiles them on blocking threads.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ambit_rt::AbortOnDrop;
use ambit_wasm::{Engine, Module};
use ambit_wasm_modules::ModuleFetcher;
use tokio::sync::Semaphore;

use super::sources::ModuleEgress;
use crate::{
    extensions::{Plugin, PluginState},
    waypoint::Waypoint,
};

/// Initial backoff after fetching a module has failed; it doubles up to the maximum.
const MIN_FETCH_DELAY: Duration = Duration::from_secs(1);
const MAX_FETCH_DELAY: Duration = Duration::from_secs(120);

/// Maximum concurrent compilations: each takes a thread, and many times the module's size in memory.
const MAX_COMPILATIONS: usize = 1;

/// Loads the modules of new plugin versions, while the process runs.
pub async fn load_modules(waypoint: Arc<Waypoint>, fetcher: Arc<ModuleFetcher>) {
    let (published, shared) = (&waypoint.published, &waypoint.shared_data);
    let mut changes = published.watch();
    let compiling = Arc::new(Semaphore::new(MAX_COMPILATIONS));
    let mut keys: HashSet<String> = HashSet::new();
    let mut engine = None;
    let mut loading: HashMap<u64, AbortOnDrop<()>> = HashMap::new();
    let mut clock = None;
    loop {
        changes.mark_unchanged();
        let desired = published.desired_plugins();
        let present: HashSet<String> = desired.iter().map(|plugin| plugin.key.clone()).collect();
        for gone in keys.difference(&present) {
            shared.remove_vm(gone);
        }
        keys = present;
        loading.retain(|number, _| desired.iter().any(|plugin| plugin.version_id == *number));
        for plugin in &desired {
            let is_new = matches!(plugin.state(), PluginState::Loading);
            if !is_new || loading.contains_key(&plugin.version_id) {
                continue;
            }
            // The engine is only created when there are plugins.
            let engine = engine.get_or_insert_with(Engine::new);
            let engine = match engine {
                Ok(engine) => engine.clone(),
                Err(error) => {
                    tracing::error!(%error, "plugins cannot be run");
                    plugin.set_state(PluginState::Failed(error.to_string().into()));
                    published.rebuild_plugin_chain();
                    continue;
                }
            };
            let work = load_until_ready(
                waypoint.clone(),
                fetcher.clone(),
                Compiler {
                    engine,
                    permits: compiling.clone(),
                },
                plugin.clone(),
            );
            loading.insert(
                plugin.version_id,
                ambit_rt::spawn_abortable("plugin module", work),
            );
        }
        clock = match (&engine, desired.is_empty(), clock) {
            (Some(Ok(engine)), false, None) => {
                let ticking = run_epoch_clock(engine.clone());
                Some(ambit_rt::spawn_abortable("plugin clock", ticking))
            }
            (_, true, _) => None,
            (_, _, present) => present,
        };
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Advances the engine's clock, which interrupts callbacks that exceed their timeout.
async fn run_epoch_clock(engine: Engine) {
    let mut ticks = tokio::time::interval(Engine::TICK_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        engine.tick();
    }
}

/// Compiler of fetched modules.
#[derive(Debug)]
struct Compiler {
    engine: Engine,
    /// Permits for concurrent compilations.
    permits: Arc<Semaphore>,
}

async fn load_until_ready(
    waypoint: Arc<Waypoint>,
    fetcher: Arc<ModuleFetcher>,
    compiler: Compiler,
    plugin: Arc<Plugin>,
) {
    let mut pause = MIN_FETCH_DELAY;
    loop {
        match load_once(&waypoint, &fetcher, &compiler, &plugin).await {
            Ok(module) => {
                tracing::info!(
                    plugin = plugin.key,
                    url = plugin.config.url.as_str(),
                    "a plugin's module is ready"
                );
                plugin.set_state(PluginState::Ready(module));
                return waypoint.published.rebuild_plugin_chain();
            }
            Err(why) => {
                let fail_open = plugin.config.fail_open;
                tracing::error!(
                    plugin = plugin.key,
                    url = plugin.config.url.as_str(),
                    error = why,
                    fail_open,
                    "a plugin's module cannot be had: requests are decided by its fail strategy, or by its last version"
                );
                plugin.set_state(PluginState::Failed(why.into()));
                waypoint.published.rebuild_plugin_chain();
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_FETCH_DELAY);
    }
}

async fn load_once(
    waypoint: &Arc<Waypoint>,
    fetcher: &ModuleFetcher,
    compiler: &Compiler,
    plugin: &Plugin,
) -> Result<Module, String> {
    let sources = ModuleEgress::new(waypoint, &plugin.config);
    let bytes = fetcher.fetch(&plugin.config, &sources).await;
    let bytes = bytes.map_err(|error| ambit_proxy::report::format_error_chain(&error))?;
    let engine = compiler.engine.clone();
    // The semaphore is never closed.
    let permit = compiler.permits.clone().acquire_owned().await.ok();
    let compile = move || {
        let _permit = permit;
        engine.compile(&bytes)
    };
    let compiled = ambit_rt::spawn_blocking("plugin compilation", compile).await;
    match compiled {
        Ok(module) => module.map_err(|error| error.to_string()),
        Err(_) => Err("the compiler failed; its panic is in the log".to_owned()),
    }
}
