//! Runs the plugins on a request in order, and on its response in reverse order.
//!
//! When a plugin fails or has no module, its fail strategy decides whether the request is rejected (503) or bypasses
//! the plugin. Changes that a plugin makes are normalized again, and never set headers that identify a caller or frame
//! a message.

mod body;
mod local_reply;
mod stream_context;

use std::sync::Arc;

use ambit_model::ExtensionPhase;
use ambit_telemetry::http::{ResponseFlag, ResponseFlags};
use ambit_wasm::{Direction, HeaderSection, LocalResponse, StreamDecision, VmError};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HOST},
};
use hyper::body::{Body as _, Incoming};

use super::{
    normalized_target::NormalizedTarget, reply::Reply, report::record::RequestRecord,
    response_body::ResponseBody,
};
use crate::{
    call_initiator::CallInitiator,
    extensions::{CallCause, Plugin, PluginCounters},
    headers,
    hops::Hops,
    message::{self, Body},
    plugins::{self, RequestProperties},
    session::Session,
};
use body::FilteredBody;
use local_reply::LocalReply;
use stream_context::{FAILED_DETAILS, PluginError, StreamContext};

/// Plugins of one request: those still to run, and those that have run.
pub(super) struct RequestPlugins {
    session: Arc<Session>,
    is_grpc: bool,
    /// Plugins that have not run yet, in reverse order: the next one is last.
    remaining_plugins: Vec<Arc<Plugin>>,
    stream_contexts: Vec<Arc<StreamContext>>,
    local_reply: Arc<LocalReply>,
    /// Number of waypoints that the request has passed.
    hops: Hops,
    /// Caller on whose behalf plugins make calls for this request.
    initiator: Arc<CallInitiator>,
}

/// Result of running the plugins of one phase on a request.
pub(super) enum PluginsOutcome {
    /// No plugin has run, so that the request is unchanged.
    Unchanged,
    /// A plugin ran and may have changed the request.
    MayHaveChanged,
    /// Response of a plugin, which ends the request.
    Responded(Box<Response<ResponseBody>>),
}

impl RequestPlugins {
    /// Returns the plugins that apply to a request; `None` if there are none.
    pub(super) fn for_request(session: &Arc<Session>, is_grpc: bool) -> Option<Box<Self>> {
        let chain = session.shard.waypoint.published.extensions()?;
        let mut waiting = chain.plugins_for(&session.attachments());
        // A plugin's own calls would call the plugin again.
        waiting.retain(|plugin| !session.caller.calls_on_behalf_of(&plugin.config.namespace));
        waiting.reverse();
        (!waiting.is_empty()).then(|| {
            Box::new(Self {
                session: session.clone(),
                is_grpc,
                remaining_plugins: waiting,
                stream_contexts: Vec::new(),
                local_reply: Arc::default(),
                hops: session.hops,
                initiator: Arc::new(session.initiator()),
            })
        })
    }

    /// Sets the number of waypoints that the request has passed, which calls of plugins carry on.
    pub(super) fn set_hops(&mut self, hops: Hops) {
        self.hops = hops;
    }

    /// Runs the plugins up to a phase on the request headers.
    pub(super) async fn run_on_request(
        &mut self,
        upto: ExtensionPhase,
        request: &mut Request<Incoming>,
        normalized: &mut NormalizedTarget,
    ) -> Result<PluginsOutcome, Reply> {
        let mut seen = PluginsOutcome::Unchanged;
        while let Some(plugin) = self
            .remaining_plugins
            .pop_if(|next| next.config.phase <= upto)
        {
            match self.run_plugin(&plugin, request, normalized).await {
                Ok(None) => seen = PluginsOutcome::MayHaveChanged,
                Ok(Some(response)) => return Ok(PluginsOutcome::Responded(Box::new(response))),
                Err(PluginError::Failed(why)) => apply_fail_strategy(&plugin, &why)?,
                Err(PluginError::InvalidChange(reply)) => return Err(reply),
            }
        }
        Ok(seen)
    }

    async fn run_plugin(
        &mut self,
        plugin: &Arc<Plugin>,
        request: &mut Request<Incoming>,
        normalized: &mut NormalizedTarget,
    ) -> Result<Option<Response<ResponseBody>>, PluginError> {
        let shard = &self.session.shard;
        let instance = plugins::running_instance(shard, plugin).await;
        let instance = instance.map_err(PluginError::Failed)?;
        let cause = CallCause {
            hops: self.hops,
            initiator: Some(self.initiator.clone()),
        };
        let facts = Arc::new(RequestProperties::new(&self.session, request.version()));
        let (id, signal) = instance.create_context(facts, cause)?;
        let running = Arc::new(StreamContext {
            plugin: plugin.clone(),
            instance,
            id,
            wake_signal: signal,
            max_pause: shard.waypoint.config.plugins.hold,
        });
        let is_end = request.body().is_end_stream();
        let head = HeaderSection {
            pseudo_headers: vec![
                (":method", request.method().to_string()),
                (":scheme", "http".to_owned()),
                (":authority", normalized.host.clone()),
                (":path", normalized.target.to_string()),
            ],
            headers: request.headers().clone(),
        };
        let outcome = running
            .instance
            .run_callback(|vm| vm.on_headers(Direction::Request, id, head, is_end))?;
        match running
            .wait_until_resumed(Direction::Request, outcome)
            .await?
        {
            StreamDecision::LocalResponse(response) => {
                self.stream_contexts.push(running);
                return Ok(Some(self.local_response(response)));
            }
            StreamDecision::Reset => return Err(PluginError::InvalidChange(stream_closed_reply())),
            _ => {}
        }
        let head = running.instance.run_callback(|vm| {
            vm.take_head(Direction::Request, id)
                .ok_or(VmError::InstanceFailed)
        })?;
        self.stream_contexts.push(running);
        self.apply_changed_headers(head, request, normalized)
            .map_err(PluginError::InvalidChange)?;
        Ok(None)
    }

    /// Validates and normalizes the request headers after a plugin has changed them.
    fn apply_changed_headers(
        &self,
        mut head: HeaderSection,
        request: &mut Request<Incoming>,
        normalized: &mut NormalizedTarget,
    ) -> Result<(), Reply> {
        let method = head.take_pseudo_header(":method").unwrap_or_default();
        if method != request.method().as_str() {
            let method = Method::from_bytes(method.as_bytes());
            let method = method.map_err(|_| malformed_reply("the method"))?;
            if method == Method::CONNECT || *request.method() == Method::CONNECT {
                return Err(malformed_reply("the method"));
            }
            *request.method_mut() = method;
        }
        let host = head.take_pseudo_header(":authority").unwrap_or_default();
        let path = head.take_pseudo_header(":path").unwrap_or_default();
        if host != normalized.host || path != normalized.target.as_str() {
            *normalized =
                NormalizedTarget::from_plugin(&self.session, request.method(), host, &path)?;
        }
        let mut all = head.headers;
        remove_forbidden_headers(&mut all).map_err(|()| malformed_reply("the headers"))?;
        all.remove(HOST);
        all.remove(CONTENT_LENGTH);
        headers::remove_mesh_only_headers(&mut all);
        headers::restore_client_address_headers(&mut all, request.headers());
        // The number of passed waypoints is known already.
        let _forged = Hops::take_from_headers(&mut all);
        // Headers of a requested upgrade are kept.
        for kept in headers::UPGRADE_REQUEST_HEADERS {
            for value in request.headers().get_all(&kept) {
                all.append(kept.clone(), value.clone());
            }
        }
        *request.headers_mut() = all;
        Ok(())
    }

    /// Wraps the request body so that it passes through the plugins.
    pub(super) fn request_body(&self, body: Body) -> Body {
        let mut body = body;
        for running in &self.stream_contexts {
            let memory = &self.session.memory;
            body = FilteredBody::wrap(Direction::Request, memory, running, &self.local_reply, body);
        }
        body
    }

    /// Waits until a plugin responds in place of the application, while the request body is being sent.
    pub(super) async fn wait_for_response(&self) -> Response<ResponseBody> {
        loop {
            self.local_reply.notify.notified().await;
            if let Some(response) = self.local_reply.response.lock().take() {
                return self.local_response(response);
            }
        }
    }

    /// Takes the response that a plugin has given in place of the application, if any, after sending the request has
    /// failed.
    pub(super) fn take_response(&self) -> Option<Response<ResponseBody>> {
        let response = self.local_reply.response.lock().take()?;
        Some(self.local_response(response))
    }

    /// Runs the plugins that have handled the request on its response, in reverse order.
    pub(super) async fn run_on_response(
        &self,
        mut response: Response<ResponseBody>,
        record: &mut RequestRecord,
    ) -> Response<ResponseBody> {
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            match self.run_response_headers(&mut response).await {
                Ok(None) => {}
                Ok(Some(own)) => response = own,
                Err(reply) => {
                    record.record_reply(&reply);
                    response = reply
                        .into_response(self.is_grpc)
                        .map(ResponseBody::Generated);
                }
            }
        }
        if let Some(LocalReplyDetails(details, bytes)) = response.extensions_mut().remove() {
            record.record_plugin_reply(&details, bytes);
        }
        response
    }

    /// Passes the response headers to the plugins that have handled the request; returns a plugin's own response, if it
    /// gives one.
    async fn run_response_headers(
        &self,
        response: &mut Response<ResponseBody>,
    ) -> Result<Option<Response<ResponseBody>>, Reply> {
        let is_end = match response.body() {
            ResponseBody::Generated(body) => body.is_end_stream(),
            ResponseBody::Streamed(body) => body.incoming.is_end_stream(),
        };
        for running in self.stream_contexts.iter().rev() {
            let head = HeaderSection {
                pseudo_headers: vec![(":status", response.status().as_str().to_owned())],
                headers: response.headers().clone(),
            };
            let id = running.id;
            let pass_through = running
                .instance
                .run_callback(|vm| vm.on_headers(Direction::Response, id, head, is_end));
            let settled = match pass_through {
                Ok(outcome) => {
                    running
                        .wait_until_resumed(Direction::Response, outcome)
                        .await
                }
                Err(failure) => Err(failure.into()),
            };
            let head = match settled {
                Ok(StreamDecision::LocalResponse(response)) => {
                    return Ok(Some(self.local_response(response)));
                }
                Ok(StreamDecision::Reset) => return Err(stream_closed_reply()),
                Ok(_) => running
                    .instance
                    .run_callback(|vm| {
                        vm.take_head(Direction::Response, id)
                            .ok_or(VmError::InstanceFailed)
                    })
                    .map_err(PluginError::from),
                Err(unable) => Err(unable),
            };
            match head {
                Ok(head) => change_response(running, head, response)?,
                Err(PluginError::Failed(why)) => apply_fail_strategy(&running.plugin, &why)?,
                Err(PluginError::InvalidChange(reply)) => return Err(reply),
            }
        }
        Ok(None)
    }

    /// Wraps the response body so that it passes through the plugins.
    pub(super) fn response_body(&self, body: Body) -> Body {
        let mut body = body;
        for running in self.stream_contexts.iter().rev() {
            let memory = &self.session.memory;
            body = FilteredBody::wrap(
                Direction::Response,
                memory,
                running,
                &self.local_reply,
                body,
            );
        }
        body
    }

    fn local_response(&self, response: LocalResponse) -> Response<ResponseBody> {
        build_local_response(self.is_grpc, response).map(ResponseBody::Generated)
    }
}

/// Applies the fail strategy of a failed plugin: rejects the request, or bypasses the plugin.
fn apply_fail_strategy(plugin: &Plugin, why: &str) -> Result<(), Reply> {
    if plugin.config.fail_open {
        PluginCounters::increment(&plugin.counts.bypassed_requests);
        tracing::debug!(
            plugin = plugin.key,
            why,
            "a request goes on without a plugin"
        );
        return Ok(());
    }
    PluginCounters::increment(&plugin.counts.rejected_requests);
    tracing::debug!(
        plugin = plugin.key,
        why,
        "a request is refused for a plugin"
    );
    Err(failed_reply())
}

fn failed_reply() -> Reply {
    Reply::for_plugin(
        StatusCode::SERVICE_UNAVAILABLE,
        FAILED_DETAILS,
        ResponseFlags::default(),
    )
}

fn stream_closed_reply() -> Reply {
    Reply::for_plugin(
        StatusCode::SERVICE_UNAVAILABLE,
        "wasm_close_stream",
        ResponseFlags::default(),
    )
}

/// Returns the reply to a request to which a plugin has given invalid headers.
fn malformed_reply(what: &str) -> Reply {
    let text = format!("a plugin gave the request {what} that cannot be sent");
    Reply::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        text,
        ResponseFlag::NoRoute,
    )
}

/// Removes headers that plugins may not set. Fails for a transfer encoding other than chunked, and for a `Connection`
/// header that names an end-to-end header.
fn remove_forbidden_headers(all: &mut HeaderMap) -> Result<(), ()> {
    if headers::has_unsupported_transfer_encoding(all) {
        return Err(());
    }
    headers::remove_hop_by_hop(all).map_err(|_| ())?;
    headers::remove_mesh_only_response_headers(all);
    Ok(())
}

fn change_response<B>(
    context: &StreamContext,
    mut head: HeaderSection,
    response: &mut Response<B>,
) -> Result<(), Reply> {
    let status = head.take_pseudo_header(":status").unwrap_or_default();
    if status != response.status().as_str() {
        let status = status.parse::<u16>().ok();
        let status = status.and_then(|status| StatusCode::from_u16(status).ok());
        let status = status.filter(|status| (200..600).contains(&status.as_u16()));
        *response.status_mut() = status.ok_or_else(|| malformed_reply("a status"))?;
    }
    let mut all = head.headers;
    remove_forbidden_headers(&mut all).map_err(|()| malformed_reply("the headers"))?;
    all.remove(CONTENT_LENGTH);
    let wants_body = context
        .instance
        .run_callback(|vm| Ok(vm.has_body_callback(Direction::Response)));
    if !wants_body.unwrap_or(false) {
        for length in response.headers().get_all(CONTENT_LENGTH) {
            all.append(CONTENT_LENGTH, length.clone());
        }
    }
    *response.headers_mut() = all;
    Ok(())
}

/// Converts the response that a plugin gives in place of the application. gRPC clients receive it as a gRPC status and
/// message.
fn build_local_response(is_grpc: bool, local: LocalResponse) -> Response<Body> {
    let LocalResponse {
        status,
        response_code_details: details,
        mut headers,
        body,
        grpc_status,
    } = local;
    let bytes = body.len();
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = if is_grpc {
        let text = String::from_utf8_lossy(&body).into_owned();
        let reply = Reply::for_plugin(status, "", ResponseFlags::default());
        let mut response = Reply { text, ..reply }.into_response(true);
        if let Some(grpc_status) = grpc_status {
            response
                .headers_mut()
                .insert("grpc-status", HeaderValue::from(grpc_status));
        }
        headers.remove(CONTENT_TYPE);
        response
    } else {
        let mut response = Response::new(message::text_body(body));
        *response.status_mut() = status;
        response
    };
    if remove_forbidden_headers(&mut headers).is_ok() {
        headers.remove(CONTENT_LENGTH);
        response.headers_mut().extend(headers);
    }
    response
        .extensions_mut()
        .insert(LocalReplyDetails(details, bytes));
    response
}

/// Extension of a plugin's response that carries its response-code details for the access log, and the length of its
/// body.
#[derive(Clone, Debug)]
pub(super) struct LocalReplyDetails(String, usize);
