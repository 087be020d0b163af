//! Instance of a plugin on one worker: started on another thread, driven by its timer, and restarted with a delay after
//! a failure.

mod context;
mod streams;

use std::{collections::HashMap, sync::Arc, task::Waker, time::Duration};

use ambit_rt::AbortOnDrop;
use ambit_wasm::{CallId, ContextId, Effect, GrpcStreamMessage, Vm, VmError};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc, watch},
    time::Instant,
};

use super::{Plugin, PluginChain, PluginCounters, PluginState};
pub(crate) use context::{CallCause, OpenStreamFn, PluginContext, StreamEventHandler};

/// Maximum time for which a request waits until a plugin instance has started.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Initial delay before a failed instance is restarted; it doubles up to the maximum.
const MIN_RESTART_DELAY: Duration = Duration::from_secs(1);
const MAX_RESTART_DELAY: Duration = Duration::from_secs(60);
/// Uptime of a plugin instance after which a failure is again followed by the initial restart delay.
const STABLE_UPTIME: Duration = Duration::from_secs(60);

/// Wakers of the tasks that wait for a plugin to resume their request.
#[derive(Debug, Default)]
pub(crate) struct WakeSignal(Mutex<Vec<Waker>>);

/// Request for which a plugin instance has an open context.
#[derive(Debug)]
struct OpenRequest {
    signal: Arc<WakeSignal>,
    cause: CallCause,
}

/// gRPC stream that a plugin instance has opened. Dropping it resets the stream.
#[derive(Debug)]
pub(super) struct OpenPluginStream {
    /// Queue of messages to send on the stream. The instance's limits bound the unsent bytes.
    pub(super) outgoing_messages: mpsc::UnboundedSender<GrpcStreamMessage>,
    pub(super) _task: AbortOnDrop<()>,
}

impl WakeSignal {
    /// Registers a waker for the next wake-up. Must be called before the awaited condition is checked, so that no
    /// wake-up is missed.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut all = self.0.lock();
        if !all.iter().any(|known| known.will_wake(waker)) {
            all.push(waker.clone());
        }
    }

    fn wake(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        for waker in all {
            waker.wake();
        }
    }
}

/// Plugins of one worker, by the unique number of each plugin version.
#[derive(Debug, Default)]
pub(crate) struct PluginSlots(Mutex<HashMap<u64, SlotEntry>>);

/// Plugin on one worker, and the task that runs it.
#[derive(Debug)]
struct SlotEntry {
    slot: Arc<PluginSlot>,
    _run_task: AbortOnDrop<()>,
}

/// Plugin on one worker, with its instance once it has started. Only the worker's thread takes the lock.
#[derive(Debug)]
struct PluginSlot {
    plugin: Arc<Plugin>,
    plugin_context: PluginContext,
    inner: Mutex<Inner>,
    stage_changed: watch::Sender<()>,
    instance_failed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    stage: InstanceStage,
    /// Number of instances started so far. Calls through a handle to an earlier instance fail.
    generation: u64,
    requests: HashMap<ContextId, OpenRequest>,
    shared_queues: Vec<u32>,
    /// Open gRPC streams of the instance.
    streams: HashMap<CallId, OpenPluginStream>,
}

#[derive(Debug, Default)]
enum InstanceStage {
    #[default]
    Starting,
    Running(Box<Vm>),
    Failed,
}

/// Handle to a running instance of a plugin; calls fail once another instance has replaced it.
#[derive(Clone, Debug)]
pub(crate) struct PluginInstance {
    slot: Arc<PluginSlot>,
    generation: u64,
}

impl PluginSlots {
    /// Returns the running instance of a plugin; waits while it starts.
    ///
    /// # Errors
    /// When no instance runs; the error is the reason.
    pub(crate) async fn instance(
        &self,
        plugin_context: impl FnOnce() -> PluginContext,
        plugin: &Arc<Plugin>,
    ) -> Result<PluginInstance, String> {
        let slot = self.slot(plugin_context, plugin);
        let deadline = Instant::now() + START_TIMEOUT;
        let mut changed = slot.stage_changed.subscribe();
        loop {
            changed.mark_unchanged();
            {
                let inner = slot.inner.lock();
                match &inner.stage {
                    InstanceStage::Running(_) => {
                        let generation = inner.generation;
                        drop(inner);
                        return Ok(PluginInstance { slot, generation });
                    }
                    InstanceStage::Failed => return Err(VmError::InstanceFailed.to_string()),
                    InstanceStage::Starting => {}
                }
            }
            if let PluginState::Failed(why) = plugin.state() {
                return Err(why.to_string());
            }
            let changes = tokio::time::timeout_at(deadline, changed.changed());
            if changes.await.is_err() {
                return Err("the module is not there yet".to_owned());
            }
        }
    }

    fn slot(
        &self,
        plugin_context: impl FnOnce() -> PluginContext,
        plugin: &Arc<Plugin>,
    ) -> Arc<PluginSlot> {
        let mut slots = self.0.lock();
        if let Some(entry) = slots.get(&plugin.version_id) {
            return entry.slot.clone();
        }
        let slot = Arc::new(PluginSlot {
            plugin: plugin.clone(),
            plugin_context: plugin_context(),
            inner: Mutex::default(),
            stage_changed: watch::Sender::new(()),
            instance_failed: Notify::new(),
        });
        let keeping = ambit_rt::spawn_abortable("plugin", run_with_restarts(slot.clone()));
        let entry = SlotEntry {
            slot: slot.clone(),
            _run_task: keeping,
        };
        slots.insert(plugin.version_id, entry);
        slot
    }

    /// Starts the plugins of a changed chain, and stops all others. Requests in flight keep the instances that they
    /// use.
    pub(crate) fn reconcile(&self, plugin_context: &PluginContext, chain: Option<&PluginChain>) {
        let plugins = chain.map(|chain| &chain.0[..]).unwrap_or_default();
        let is_there = |number: &u64| plugins.iter().any(|plugin| plugin.version_id == *number);
        let gone: Vec<_> = {
            let mut slots = self.0.lock();
            let gone = slots.extract_if(|number, _| !is_there(number));
            gone.collect()
        };
        drop(gone);
        for plugin in plugins {
            let _slot = self.slot(|| plugin_context.clone(), plugin);
        }
    }
}

/// Runs the instance of a plugin, and starts a new one after each failure.
async fn run_with_restarts(slot: Arc<PluginSlot>) {
    let mut pause = MIN_RESTART_DELAY;
    loop {
        let Some(module) = wait_until_loaded(&slot.plugin).await else {
            return;
        };
        let (settings, shared) = (
            slot.plugin.settings.clone(),
            slot.plugin_context.shared_data.clone(),
        );
        let metrics = slot.plugin.metrics.clone();
        let start = move || Vm::start(&module, settings, shared, metrics);
        let started = ambit_rt::spawn_blocking("plugin start", start).await;
        let began = Instant::now();
        match started {
            Ok(Ok(vm)) => {
                slot.set_running(vm);
                slot.run().await;
            }
            Ok(Err(failure)) => slot.record_failure(&failure),
            // The panic has been logged.
            Err(_) => slot.record_failure(&VmError::Start("the host failed".to_owned())),
        }
        if began.elapsed() > STABLE_UPTIME {
            pause = MIN_RESTART_DELAY;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_RESTART_DELAY);
    }
}

async fn wait_until_loaded(plugin: &Plugin) -> Option<ambit_wasm::Module> {
    let mut state = plugin.watch_state();
    let is_ready = |state: &PluginState| matches!(state, PluginState::Ready(_));
    let found = state.wait_for(is_ready).await.ok()?;
    match &*found {
        PluginState::Ready(module) => Some(module.clone()),
        _ => None,
    }
}

impl PluginSlot {
    fn set_running(self: &Arc<Self>, vm: Vm) {
        let mut inner = self.inner.lock();
        inner.generation += 1;
        inner.stage = InstanceStage::Running(Box::new(vm));
        let generation = inner.generation;
        drop(inner);
        self.stage_changed.send_replace(());
        // Performs the effects of the start.
        let instance = PluginInstance {
            slot: self.clone(),
            generation,
        };
        let _started = instance.run_callback(|_| Ok(()));
    }

    /// Calls the instance's timer and queue callbacks when they are due, until the instance fails.
    async fn run(self: &Arc<Self>) {
        let generation = self.inner.lock().generation;
        let instance = PluginInstance {
            slot: self.clone(),
            generation,
        };
        let mut queues = self.plugin_context.queue_signal.subscribe();
        // Timers and queues take at most a tenth of the worker's time.
        let mut rest = Duration::ZERO;
        loop {
            let period = match &self.inner.lock().stage {
                InstanceStage::Running(vm) => vm.tick_period(),
                _ => return,
            };
            let tick = async {
                match period {
                    Some(period) => tokio::time::sleep(period.max(rest)).await,
                    None => std::future::pending().await,
                }
            };
            // Failures are counted where they happen.
            let began = tokio::select! {
                () = self.instance_failed.notified() => return,
                () = tick => {
                    let began = Instant::now();
                    let _ticked = instance.run_callback(Vm::on_tick);
                    began
                }
                began = async {
                    tokio::time::sleep(rest).await;
                    let _changed = queues.changed().await;
                    Instant::now()
                } => {
                    instance.notify_queues();
                    began
                }
            };
            rest = began.elapsed() * 10;
        }
    }

    fn record_failure(&self, failure: &VmError) {
        let plugin = &self.plugin;
        PluginCounters::increment(&plugin.counts.failures);
        tracing::error!(plugin = plugin.key, reason = failure.reason(), error = %failure, "a plugin failed: requests are decided by its fail strategy until it is started anew");
        let requests = {
            let mut inner = self.inner.lock();
            inner.stage = InstanceStage::Failed;
            inner.shared_queues.clear();
            inner.streams.clear();
            std::mem::take(&mut inner.requests)
        };
        for request in requests.into_values() {
            request.signal.wake();
        }
        self.stage_changed.send_replace(());
        self.instance_failed.notify_one();
    }
}

impl PluginInstance {
    /// Creates the instance's context for a request (`proxy_on_context_create`).
    pub(crate) fn create_context(
        &self,
        facts: Arc<dyn ambit_wasm::PropertySource>,
        cause: CallCause,
    ) -> Result<(ContextId, Arc<WakeSignal>), VmError> {
        let id = self.run_callback(|vm| vm.create_stream_context(facts))?;
        let signal = Arc::<WakeSignal>::default();
        let opened = OpenRequest {
            signal: signal.clone(),
            cause,
        };
        self.slot.inner.lock().requests.insert(id, opened);
        Ok((id, signal))
    }

    /// Deletes the instance's context of a request that has ended.
    pub(crate) fn delete_context(&self, id: ContextId) {
        let is_own = {
            let mut inner = self.slot.inner.lock();
            let is_own = inner.generation == self.generation;
            if is_own {
                inner.requests.remove(&id);
            }
            is_own
        };
        if is_own {
            // Failures are counted where they happen.
            let _closed = self.run_callback(|vm| vm.end_stream(id));
        }
    }

    /// Runs a callback of the instance, and then performs the effects that it requested: calls, streams, wake-ups.
    pub(crate) fn run_callback<R>(
        &self,
        act: impl FnOnce(&mut Vm) -> Result<R, VmError>,
    ) -> Result<R, VmError> {
        let (result, effects) = {
            let mut inner = self.slot.inner.lock();
            if inner.generation != self.generation {
                return Err(VmError::InstanceFailed);
            }
            let InstanceStage::Running(vm) = &mut inner.stage else {
                return Err(VmError::InstanceFailed);
            };
            let result = act(vm);
            (result, vm.take_effects())
        };
        match &result {
            Err(failure) if *failure != VmError::InstanceFailed => {
                self.slot.record_failure(failure)
            }
            _ => self.perform_effects(effects),
        }
        result
    }

    fn perform_effects(&self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::StreamDecisionChanged(id) => {
                    let inner = self.slot.inner.lock();
                    let signal = inner.requests.get(&id).map(|one| one.signal.clone());
                    drop(inner);
                    if let Some(signal) = signal {
                        signal.wake();
                    }
                }
                Effect::StartCall(token, call) => {
                    let instance = self.clone();
                    let cause = self.call_cause(call.context);
                    let outstanding = call.permit();
                    ambit_rt::spawn("plugin call", async move {
                        let _outstanding = outstanding;
                        let kind = call.kind;
                        let slot = &instance.slot;
                        let plugin = slot.plugin.clone();
                        let response = (slot.plugin_context.make_call)(plugin, *call, cause).await;
                        let _ended =
                            instance.run_callback(|vm| vm.on_call_response(token, kind, response));
                    });
                }
                Effect::OpenStream(token, call) => self.open_stream(token, *call),
                Effect::SendMessage(token, message) => self.send(token, message),
                // The response of a cancelled call is discarded.
                Effect::CancelCall(token) => self.end_stream(token),
                Effect::SubscribeQueue(queue) => {
                    let queues = &mut self.slot.inner.lock().shared_queues;
                    if !queues.contains(&queue) {
                        queues.push(queue);
                    }
                }
                Effect::MessageEnqueued(_) => {
                    self.slot.plugin_context.queue_signal.send_replace(())
                }
            }
        }
    }

    /// Returns what causes a plugin's call: the request of the calling context, or the plugin itself.
    fn call_cause(&self, context: ContextId) -> CallCause {
        let inner = self.slot.inner.lock();
        let request = inner.requests.get(&context);
        request.map_or(CallCause::PLUGIN_ITSELF, |request| request.cause.clone())
    }

    /// Calls the instance's queue callback for each message in its shared queues, until the instance stops dequeueing.
    fn notify_queues(&self) {
        let queues = self.slot.inner.lock().shared_queues.clone();
        for queue in queues {
            let mut waiting = self.slot.plugin_context.shared_data.queued_messages(queue);
            while waiting > 0 {
                if self.run_callback(|vm| vm.on_queue_ready(queue)).is_err() {
                    return;
                }
                let left = self.slot.plugin_context.shared_data.queued_messages(queue);
                if left >= waiting {
                    break;
                }
                waiting = left;
            }
        }
    }
}
