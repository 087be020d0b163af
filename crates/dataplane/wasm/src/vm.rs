//! Instance of a module: its contexts, and the callbacks by which it receives events.

mod callbacks;
mod calls;
mod failure;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use wasmtime::{Store, Trap, TypedFunc, WasmParams, WasmResults};

use crate::{
    effect::{CallId, Effect},
    engine::Module,
    host::Host,
    limits::epoch_ticks,
    metrics::Metrics,
    settings::Settings,
    shared::SharedState,
    stream::{
        ContextId, Direction, HeaderSection, PropertySource, PropertyValue, ROOT_CONTEXT,
        StreamContext, StreamDecision,
    },
};
use callbacks::Callbacks;
pub use failure::VmError;

/// Maximum contexts of ended requests whose deletion a module may delay.
const MAX_UNDELETED_CONTEXTS: usize = 1024;

/// Instance of a module for one plugin and worker.
pub struct Vm {
    store: Store<Host>,
    callbacks: Callbacks,
    last_context_id: u32,
    has_failed: bool,
}

impl fmt::Debug for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vm")
            .field("plugin", &self.store.data().settings.name)
            .field("is_dead", &self.has_failed)
            .finish_non_exhaustive()
    }
}

impl Vm {
    /// Creates and configures an instance. Blocks for a long time, so it must not run on worker threads.
    ///
    /// # Errors
    ///
    /// When the module traps, times out, or rejects its configuration.
    pub fn start(
        module: &Module,
        settings: Arc<Settings>,
        shared: SharedState,
        metrics: Metrics,
    ) -> Result<Self, VmError> {
        let limit = settings.limits.start_timeout;
        let lengths = (
            settings.vm_configuration.len(),
            settings.configuration.len(),
        );
        let host = Host::new(settings, shared, metrics, &module.memory);
        let mut store = Store::new(&module.engine, host);
        store.limiter(|host| &mut host.limits);
        store.set_epoch_deadline(epoch_ticks(limit));
        let instance = module.instance.instantiate(&mut store);
        let instance = instance.map_err(|error| VmError::Start(failure_text(&error)))?;
        let callbacks = Callbacks::resolve(&instance, &mut store)?;
        let mut vm = Self {
            store,
            callbacks,
            last_context_id: ROOT_CONTEXT.0,
            has_failed: false,
        };
        let size = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        let (initialize, main, start) = (
            vm.callbacks.initialize.clone(),
            vm.callbacks.main.clone(),
            vm.callbacks.start.clone(),
        );
        if initialize.is_some() {
            vm.call_export("_initialize", limit, initialize.as_ref(), ())?;
            vm.call_export("main", limit, main.as_ref(), (0, 0))?;
        } else {
            vm.call_export("_start", limit, start.as_ref(), ())?;
        }
        let callbacks = vm.callbacks.clone();
        vm.call_export(
            "proxy_on_context_create",
            limit,
            callbacks.context_create.as_ref(),
            (ROOT_CONTEXT.0, 0),
        )?;
        let arguments = (ROOT_CONTEXT.0, size(lengths.0));
        let started = vm.call_export(
            "proxy_on_vm_start",
            limit,
            callbacks.vm_start.as_ref(),
            arguments,
        )?;
        if started == Some(0) {
            return Err(VmError::Configuration("proxy_on_vm_start"));
        }
        let arguments = (ROOT_CONTEXT.0, size(lengths.1));
        let configured = vm.call_export(
            "proxy_on_configure",
            limit,
            callbacks.configure.as_ref(),
            arguments,
        )?;
        if configured == Some(0) {
            return Err(VmError::Configuration("proxy_on_configure"));
        }
        Ok(vm)
    }

    /// Whether the instance has failed, so that it must not be used any more.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether the module exports the body or trailer callbacks for this direction.
    pub fn has_body_callback(&self, of: Direction) -> bool {
        match of {
            Direction::Request => {
                self.callbacks.request_body.is_some() || self.callbacks.request_trailers.is_some()
            }
            Direction::Response => {
                self.callbacks.response_body.is_some() || self.callbacks.response_trailers.is_some()
            }
        }
    }

    /// Returns the interval of [`Self::on_tick`] that the module requested; `None` if it set none.
    pub fn tick_period(&self) -> Option<Duration> {
        let period = self.store.data().tick_period;
        // A minimum interval bounds the load of timers.
        (period > 0).then(|| Duration::from_millis(period.into()).max(Duration::from_millis(10)))
    }

    /// Returns the effects that the module has requested since the last call of this method.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.store.data_mut().effects)
    }

    /// Creates the context of a request.
    ///
    /// # Errors
    ///
    /// When a callback of the module fails.
    pub fn create_stream_context(
        &mut self,
        facts: Arc<dyn PropertySource>,
    ) -> Result<ContextId, VmError> {
        let mut number = self.last_context_id.wrapping_add(1).max(ROOT_CONTEXT.0 + 1);
        while self.store.data().streams.contains_key(&ContextId(number)) {
            number = number.wrapping_add(1).max(ROOT_CONTEXT.0 + 1);
        }
        self.last_context_id = number;
        let id = ContextId(number);
        self.store
            .data_mut()
            .streams
            .insert(id, StreamContext::new(facts));
        let create = self.callbacks.context_create.clone();
        self.call_in_context(
            "proxy_on_context_create",
            id,
            create.as_ref(),
            (number, ROOT_CONTEXT.0),
        )?;
        Ok(id)
    }

    /// Passes the headers of a request or response to the module; [`Self::take_head`] returns them.
    ///
    /// # Errors
    ///
    /// When a callback of the module fails.
    pub fn on_headers(
        &mut self,
        of: Direction,
        id: ContextId,
        head: HeaderSection,
        is_end: bool,
    ) -> Result<StreamDecision, VmError> {
        let count = head.pseudo_headers.len() + head.headers.len();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let Some(stream) = self.stream(id) else {
            return Err(VmError::InstanceFailed);
        };
        *stream.head_mut(of) = head;
        let (name, callback) = match of {
            Direction::Request => ("proxy_on_request_headers", &self.callbacks.request_headers),
            Direction::Response => (
                "proxy_on_response_headers",
                &self.callbacks.response_headers,
            ),
        };
        let callback = callback.clone();
        let arguments = (id.0, count, u32::from(is_end));
        let action = self.call_in_context(name, id, callback.as_ref(), arguments)?;
        Ok(self.apply_action(of, id, action))
    }

    /// Removes and returns the headers, as the module has modified them.
    pub fn take_head(&mut self, of: Direction, id: ContextId) -> Option<HeaderSection> {
        // A copy, since the module may still read it.
        Some(self.stream(id)?.head_mut(of).clone())
    }

    /// Passes a part of a body to the module; [`Self::take_body`] returns the bytes that it releases.
    ///
    /// # Errors
    ///
    /// When a callback of the module fails.
    pub fn on_body(
        &mut self,
        of: Direction,
        id: ContextId,
        part: &[u8],
        is_end: bool,
    ) -> Result<StreamDecision, VmError> {
        let Some(stream) = self.stream(id) else {
            return Err(VmError::InstanceFailed);
        };
        let body = stream.body_mut(of);
        body.extend_from_slice(part);
        let length = body.len();
        let (name, callback) = match of {
            Direction::Request => ("proxy_on_request_body", &self.callbacks.request_body),
            Direction::Response => ("proxy_on_response_body", &self.callbacks.response_body),
        };
        let callback = callback.clone();
        let arguments = (
            id.0,
            u32::try_from(length).unwrap_or(u32::MAX),
            u32::from(is_end),
        );
        let action = self.call_in_context(name, id, callback.as_ref(), arguments)?;
        let outcome = self.apply_action(of, id, action);
        let most = self.store.data().settings.limits.max_body_bytes;
        let held = self
            .stream(id)
            .map_or(0, |stream| stream.body_mut(of).len());
        if outcome == StreamDecision::Paused && held > most {
            return Ok(StreamDecision::BodyTooLarge);
        }
        Ok(outcome)
    }

    /// Removes and returns the buffered body, as the module has modified it.
    pub fn take_body(&mut self, of: Direction, id: ContextId) -> Bytes {
        let body = self
            .stream(id)
            .map(|stream| stream.body_mut(of).split().freeze());
        body.unwrap_or_default()
    }

    /// Passes trailers to the module; [`Self::take_trailers`] returns them.
    ///
    /// # Errors
    ///
    /// When a callback of the module fails.
    pub fn on_trailers(
        &mut self,
        of: Direction,
        id: ContextId,
        trailers: HeaderMap,
    ) -> Result<StreamDecision, VmError> {
        let count = u32::try_from(trailers.len()).unwrap_or(u32::MAX);
        let Some(stream) = self.stream(id) else {
            return Err(VmError::InstanceFailed);
        };
        *stream.trailers_mut(of) = trailers;
        let (name, callback) = match of {
            Direction::Request => (
                "proxy_on_request_trailers",
                &self.callbacks.request_trailers,
            ),
            Direction::Response => (
                "proxy_on_response_trailers",
                &self.callbacks.response_trailers,
            ),
        };
        let callback = callback.clone();
        let action = self.call_in_context(name, id, callback.as_ref(), (id.0, count))?;
        Ok(self.apply_action(of, id, action))
    }

    /// Removes and returns the trailers, as the module has modified them.
    pub fn take_trailers(&mut self, of: Direction, id: ContextId) -> HeaderMap {
        let trailers = self
            .stream(id)
            .map(|stream| std::mem::take(stream.trailers_mut(of)));
        trailers.unwrap_or_default()
    }

    /// Returns the module's decision about a request or response. A local response is returned only once.
    ///
    /// # Errors
    ///
    /// When the instance has failed.
    pub fn stream_decision(
        &mut self,
        of: Direction,
        id: ContextId,
    ) -> Result<StreamDecision, VmError> {
        if self.has_failed {
            return Err(VmError::InstanceFailed);
        }
        let Some(stream) = self.stream(id) else {
            return Err(VmError::InstanceFailed);
        };
        Ok(match stream.local_response.take() {
            Some(answer) => StreamDecision::LocalResponse(answer),
            None if stream.is_reset => StreamDecision::Reset,
            None if *stream.paused_mut(of) => StreamDecision::Paused,
            None => StreamDecision::Continue,
        })
    }

    /// Ends a request and deletes its context, unless the module delays the deletion.
    ///
    /// # Errors
    ///
    /// When a callback of the module fails.
    pub fn end_stream(&mut self, id: ContextId) -> Result<(), VmError> {
        let Some(stream) = self.stream(id) else {
            return Ok(());
        };
        if stream.is_done {
            return Ok(());
        }
        stream.is_done = true;
        let done = self.callbacks.done.clone();
        let done = self.call_in_context("proxy_on_done", id, done.as_ref(), id.0)?;
        if done == Some(0)
            && let Some(stream) = self.stream(id)
        {
            // Attributes of the request are released, even if the module keeps the context.
            stream.property_source = Arc::new(NoProperties);
            stream.request_body = bytes::BytesMut::new();
            stream.response_body = bytes::BytesMut::new();
            stream.local_response = None;
        }
        let lingering = self
            .store
            .data()
            .streams
            .values()
            .filter(|stream| stream.is_done)
            .count();
        if done != Some(0) || lingering > MAX_UNDELETED_CONTEXTS {
            self.delete_context(id)?;
        }
        Ok(())
    }

    /// Calls the module's timer callback (`proxy_on_tick`).
    ///
    /// # Errors
    ///
    /// When the callback fails.
    pub fn on_tick(&mut self) -> Result<(), VmError> {
        let tick = self.callbacks.tick.clone();
        self.call_in_context("proxy_on_tick", ROOT_CONTEXT, tick.as_ref(), ROOT_CONTEXT.0)?;
        Ok(())
    }

    /// Notifies the module of messages in a shared queue (`proxy_on_queue_ready`).
    ///
    /// # Errors
    ///
    /// When the callback fails.
    pub fn on_queue_ready(&mut self, queue: u32) -> Result<(), VmError> {
        let ready = self.callbacks.queue_ready.clone();
        self.call_in_context(
            "proxy_on_queue_ready",
            ROOT_CONTEXT,
            ready.as_ref(),
            (ROOT_CONTEXT.0, queue),
        )?;
        Ok(())
    }

    fn stream(&mut self, id: ContextId) -> Option<&mut StreamContext> {
        self.store.data_mut().streams.get_mut(&id)
    }

    /// Records the action that a callback returned, and returns the decision on the request or response.
    fn apply_action(
        &mut self,
        of: Direction,
        id: ContextId,
        action: Option<u32>,
    ) -> StreamDecision {
        if let Some(stream) = self.stream(id) {
            *stream.paused_mut(of) = action.unwrap_or(0) != 0;
        }
        self.stream_decision(of, id)
            .unwrap_or(StreamDecision::Reset)
    }

    /// Calls a callback in a context, and then deletes the contexts that the module has marked as done.
    fn call_in_context<P: WasmParams, R: WasmResults>(
        &mut self,
        name: &'static str,
        id: ContextId,
        callback: Option<&TypedFunc<P, R>>,
        arguments: P,
    ) -> Result<Option<R>, VmError> {
        let limit = self.store.data().settings.limits.callback_timeout;
        self.store.data_mut().effective_context = id;
        let result = self.call_export(name, limit, callback, arguments)?;
        while let Some(done) = self.store.data_mut().done_contexts.pop() {
            self.delete_context(done)?;
        }
        Ok(result)
    }

    fn delete_context(&mut self, id: ContextId) -> Result<(), VmError> {
        if self.stream(id).is_none() {
            return Ok(());
        }
        let limit = self.store.data().settings.limits.callback_timeout;
        let (log, delete) = (self.callbacks.log.clone(), self.callbacks.delete.clone());
        self.store.data_mut().effective_context = id;
        self.call_export("proxy_on_log", limit, log.as_ref(), id.0)?;
        self.call_export("proxy_on_delete", limit, delete.as_ref(), id.0)?;
        let host = self.store.data_mut();
        host.streams.remove(&id);
        host.effective_context = ROOT_CONTEXT;
        let calls = host.calls.iter().filter(|(_, of)| of.context == id);
        let calls: Vec<u32> = calls.map(|(token, _)| *token).collect();
        for token in calls {
            host.calls.remove(&token);
            host.effects.push(Effect::CancelCall(CallId(token)));
        }
        Ok(())
    }

    fn call_export<P: WasmParams, R: WasmResults>(
        &mut self,
        name: &'static str,
        limit: Duration,
        callback: Option<&TypedFunc<P, R>>,
        arguments: P,
    ) -> Result<Option<R>, VmError> {
        if self.has_failed {
            return Err(VmError::InstanceFailed);
        }
        let Some(callback) = callback else {
            return Ok(None);
        };
        self.store.set_epoch_deadline(epoch_ticks(limit));
        match callback.call(&mut self.store, arguments) {
            Ok(result) => Ok(Some(result)),
            Err(error) => {
                // The module's memory may be inconsistent.
                self.has_failed = true;
                Err(match error.downcast_ref::<Trap>() {
                    Some(Trap::Interrupt) => VmError::TimedOut {
                        callback: name,
                        limit,
                    },
                    _ => VmError::Trapped {
                        callback: name,
                        why: failure_text(&error),
                    },
                })
            }
        }
    }
}

/// Property source of an ended request, which has no properties.
struct NoProperties;

impl PropertySource for NoProperties {
    fn property(&self, _: &[&str]) -> Option<PropertyValue> {
        None
    }
}

/// Formats an error with its causes, without the module's stack frames.
fn failure_text(error: &wasmtime::Error) -> String {
    let causes = error.chain().map(ToString::to_string);
    let text = causes.filter(|cause| !cause.starts_with("error while executing"));
    text.collect::<Vec<_>>().join(": ")
}
