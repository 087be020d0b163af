//! Host functions by which a module resumes, resets or answers requests.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use wasmtime::{Caller, Linker};

use super::{
    Host,
    memory::{GuestMemory, HostError, to_status_code},
};
use crate::{
    abi::{ENV_MODULE, Status, read_pairs},
    effect::Effect,
    limits::MAX_HEADER_BYTES,
    stream::{ContextId, Direction, LocalResponse, ROOT_CONTEXT},
};

pub(super) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        ENV_MODULE,
        "proxy_send_local_response",
        |caller: Caller<'_, Host>,
         status: u32,
         details: u32,
         details_length: u32,
         body: u32,
         body_length: u32,
         headers: u32,
         headers_length: u32,
         grpc_status: i32| {
            let parts = LocalResponseArguments {
                status,
                details: (details, details_length),
                body: (body, body_length),
                headers: (headers, headers_length),
                grpc_status,
            };
            to_status_code(parts.send_local_response(GuestMemory::new(caller)))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_continue_stream",
        |mut caller: Caller<'_, Host>, kind: u32| continue_stream(caller.data_mut(), kind) as u32,
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_close_stream",
        |mut caller: Caller<'_, Host>, _: u32| close_stream(caller.data_mut()) as u32,
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_set_effective_context",
        |mut caller: Caller<'_, Host>, id: u32| {
            let host = caller.data_mut();
            let id = ContextId(id);
            if id != ROOT_CONTEXT && !host.streams.contains_key(&id) {
                return Status::BadArgument as u32;
            }
            host.effective_context = id;
            Status::Ok as u32
        },
    )?;
    linker.func_wrap(ENV_MODULE, "proxy_done", |mut caller: Caller<'_, Host>| {
        let host = caller.data_mut();
        let effective = host.effective_context;
        match host.streams.get(&effective) {
            Some(stream) if stream.is_done => {
                if !host.done_contexts.contains(&effective) {
                    host.done_contexts.push(effective);
                }
                Status::Ok as u32
            }
            _ => Status::NotFound as u32,
        }
    })?;
    Ok(())
}

fn continue_stream(host: &mut Host, kind: u32) -> Status {
    let direction = match kind {
        0 => Direction::Request,
        1 => Direction::Response,
        // Streams of TCP connections.
        2 | 3 => return Status::Unimplemented,
        _ => return Status::BadArgument,
    };
    let id = host.effective_context;
    match host.effective_stream() {
        Ok(stream) => *stream.paused_mut(direction) = false,
        Err(status) => return status,
    }
    Effect::StreamDecisionChanged(id).push_unless_duplicate(&mut host.effects);
    Status::Ok
}

fn close_stream(host: &mut Host) -> Status {
    let id = host.effective_context;
    match host.effective_stream() {
        Ok(stream) => stream.is_reset = true,
        Err(status) => return status,
    }
    Effect::StreamDecisionChanged(id).push_unless_duplicate(&mut host.effects);
    Status::Ok
}

struct LocalResponseArguments {
    status: u32,
    details: (u32, u32),
    body: (u32, u32),
    headers: (u32, u32),
    grpc_status: i32,
}

impl LocalResponseArguments {
    fn send_local_response(self, mut guest: GuestMemory<'_>) -> Result<(), HostError> {
        let status = u16::try_from(self.status).ok();
        let status = status
            .filter(|status| (200..600).contains(status))
            .ok_or(Status::BadArgument)?;
        let details = guest.read_bytes(self.details.0, self.details.1)?;
        let details = String::from_utf8_lossy(details.get(..256).unwrap_or(&details)).into_owned();
        let body = Bytes::from(guest.read_bytes(self.body.0, self.body.1)?);
        let (bytes, host) = guest.read_with_host(self.headers.0, self.headers.1)?;
        if bytes.len() > MAX_HEADER_BYTES {
            return Err(Status::BadArgument.into());
        }
        let mut headers = HeaderMap::new();
        for (name, value) in read_pairs(bytes).ok_or(Status::ParseFailure)? {
            // `:status` is the `status` field.
            if name.starts_with(b":") {
                continue;
            }
            let name = HeaderName::from_bytes(name).map_err(|_| Status::BadArgument)?;
            let value = HeaderValue::from_bytes(value).map_err(|_| Status::BadArgument)?;
            let added = headers.try_append(name, value);
            added.map_err(|_| Status::BadArgument)?;
        }
        let id = host.effective_context;
        let stream = host.effective_stream()?;
        // The first local response applies.
        if stream.local_response.is_none() {
            stream.local_response = Some(LocalResponse {
                status,
                response_code_details: details,
                headers,
                body,
                grpc_status: u32::try_from(self.grpc_status).ok(),
            });
        }
        Effect::StreamDecisionChanged(id).push_unless_duplicate(&mut host.effects);
        Ok(())
    }
}
