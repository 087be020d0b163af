//! Callbacks that a module exports.

use wasmtime::{Instance, Store, TypedFunc, WasmParams, WasmResults};

use super::failure::VmError;
use crate::host::Host;

/// Parameters of a callback with five 32-bit integers.
type HttpCallResponseParams = (u32, u32, u32, u32, u32);

/// Exported callbacks of a module; missing ones are not called.
#[derive(Clone)]
pub(super) struct Callbacks {
    pub(super) initialize: Option<TypedFunc<(), ()>>,
    pub(super) main: Option<TypedFunc<(u32, u32), u32>>,
    pub(super) start: Option<TypedFunc<(), ()>>,
    pub(super) context_create: Option<TypedFunc<(u32, u32), ()>>,
    pub(super) vm_start: Option<TypedFunc<(u32, u32), u32>>,
    pub(super) configure: Option<TypedFunc<(u32, u32), u32>>,
    pub(super) tick: Option<TypedFunc<u32, ()>>,
    pub(super) queue_ready: Option<TypedFunc<(u32, u32), ()>>,
    pub(super) request_headers: Option<TypedFunc<(u32, u32, u32), u32>>,
    pub(super) request_body: Option<TypedFunc<(u32, u32, u32), u32>>,
    pub(super) request_trailers: Option<TypedFunc<(u32, u32), u32>>,
    pub(super) response_headers: Option<TypedFunc<(u32, u32, u32), u32>>,
    pub(super) response_body: Option<TypedFunc<(u32, u32, u32), u32>>,
    pub(super) response_trailers: Option<TypedFunc<(u32, u32), u32>>,
    pub(super) http_call_response: Option<TypedFunc<HttpCallResponseParams, ()>>,
    pub(super) grpc_initial: Option<TypedFunc<(u32, u32, u32), ()>>,
    pub(super) grpc_trailing: Option<TypedFunc<(u32, u32, u32), ()>>,
    pub(super) grpc_receive: Option<TypedFunc<(u32, u32, u32), ()>>,
    pub(super) grpc_close: Option<TypedFunc<(u32, u32, u32), ()>>,
    pub(super) done: Option<TypedFunc<u32, u32>>,
    pub(super) log: Option<TypedFunc<u32, ()>>,
    pub(super) delete: Option<TypedFunc<u32, ()>>,
}

impl Callbacks {
    pub(super) fn resolve(instance: &Instance, store: &mut Store<Host>) -> Result<Self, VmError> {
        let mut of = ExportResolver { instance, store };
        Ok(Self {
            initialize: of.find("_initialize")?,
            // Some language runtimes export a `main` with other parameters, which is ignored.
            main: of.find("main").unwrap_or(None),
            start: of.find("_start")?,
            context_create: of.find("proxy_on_context_create")?,
            vm_start: of.find("proxy_on_vm_start")?,
            configure: of.find("proxy_on_configure")?,
            tick: of.find("proxy_on_tick")?,
            queue_ready: of.find("proxy_on_queue_ready")?,
            request_headers: of.find("proxy_on_request_headers")?,
            request_body: of.find("proxy_on_request_body")?,
            request_trailers: of.find("proxy_on_request_trailers")?,
            response_headers: of.find("proxy_on_response_headers")?,
            response_body: of.find("proxy_on_response_body")?,
            response_trailers: of.find("proxy_on_response_trailers")?,
            http_call_response: of.find("proxy_on_http_call_response")?,
            grpc_initial: of.find("proxy_on_grpc_receive_initial_metadata")?,
            grpc_trailing: of.find("proxy_on_grpc_receive_trailing_metadata")?,
            grpc_receive: of.find("proxy_on_grpc_receive")?,
            grpc_close: of.find("proxy_on_grpc_close")?,
            done: of.find("proxy_on_done")?,
            log: of.find("proxy_on_log")?,
            delete: of.find("proxy_on_delete")?,
        })
    }
}

struct ExportResolver<'a> {
    instance: &'a Instance,
    store: &'a mut Store<Host>,
}

impl ExportResolver<'_> {
    fn find<P: WasmParams, R: WasmResults>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<TypedFunc<P, R>>, VmError> {
        let Some(function) = self.instance.get_func(&mut *self.store, name) else {
            return Ok(None);
        };
        let function = function.typed::<P, R>(&*self.store);
        let function = function.map_err(|error| VmError::Start(format!("{name}: {error}")))?;
        Ok(Some(function))
    }
}
