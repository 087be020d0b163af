//! Host functions for HTTP and gRPC calls and streams: each becomes an [`Effect`] with a number.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use wasmtime::{Caller, Linker};

use super::{
    Host,
    memory::{GuestMemory, HostError, to_status_code},
    state::{OpenStream, PendingCall},
};
use crate::{
    abi::{ENV_MODULE, Status, read_pairs},
    effect::{Call, CallId, CallKind, CallPermit, Effect, GrpcStreamMessage},
    stream::HeaderSection,
};

/// Maximum timeout that a module can set for a call.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        ENV_MODULE,
        "proxy_http_call",
        |caller: Caller<'_, Host>,
         upstream: u32,
         upstream_length: u32,
         headers: u32,
         headers_length: u32,
         body: u32,
         body_length: u32,
         trailers: u32,
         trailers_length: u32,
         timeout: u32,
         at: u32| {
            let call_arguments = CallArguments {
                upstream: (upstream, upstream_length),
                headers: (headers, headers_length),
                body: (body, body_length),
                trailers: (trailers, trailers_length),
                timeout,
            };
            to_status_code(call_arguments.start_http_call(GuestMemory::new(caller), at))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_grpc_call",
        |caller: Caller<'_, Host>,
         upstream: u32,
         upstream_length: u32,
         service: u32,
         service_length: u32,
         method: u32,
         method_length: u32,
         metadata: u32,
         metadata_length: u32,
         message: u32,
         message_length: u32,
         timeout: u32,
         at: u32| {
            let call_arguments = CallArguments {
                upstream: (upstream, upstream_length),
                headers: (metadata, metadata_length),
                body: (message, message_length),
                trailers: (0, 0),
                timeout,
            };
            let names = ((service, service_length), (method, method_length));
            to_status_code(call_arguments.start_grpc_call(GuestMemory::new(caller), names, at))
        },
    )?;
    link_streams(linker)?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_get_status",
        |caller: Caller<'_, Host>, code_at: u32, at: u32, length_at: u32| {
            to_status_code(get_grpc_status(
                GuestMemory::new(caller),
                code_at,
                at,
                length_at,
            ))
        },
    )?;
    Ok(())
}

fn link_streams(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        ENV_MODULE,
        "proxy_grpc_stream",
        |caller: Caller<'_, Host>,
         upstream: u32,
         upstream_length: u32,
         service: u32,
         service_length: u32,
         method: u32,
         method_length: u32,
         metadata: u32,
         metadata_length: u32,
         at: u32| {
            let call_arguments = CallArguments {
                upstream: (upstream, upstream_length),
                headers: (metadata, metadata_length),
                body: (0, 0),
                trailers: (0, 0),
                timeout: 0,
            };
            let names = ((service, service_length), (method, method_length));
            to_status_code(call_arguments.open_grpc_stream(GuestMemory::new(caller), names, at))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_grpc_send",
        |caller: Caller<'_, Host>, token: u32, at: u32, length: u32, is_end: u32| {
            to_status_code(grpc_send(
                GuestMemory::new(caller),
                token,
                (at, length),
                is_end != 0,
            ))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_grpc_cancel",
        |mut caller: Caller<'_, Host>, token: u32| grpc_cancel(caller.data_mut(), token) as u32,
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_grpc_close",
        |mut caller: Caller<'_, Host>, token: u32| grpc_close(caller.data_mut(), token) as u32,
    )?;
    Ok(())
}

fn grpc_send(
    mut guest: GuestMemory<'_>,
    token: u32,
    message: (u32, u32),
    is_end: bool,
) -> Result<(), HostError> {
    let bytes = Bytes::from(guest.read_bytes(message.0, message.1)?);
    let host = guest.host();
    let most = host.settings.limits.max_body_bytes;
    let unsent = &host.unsent_messages;
    let sending = host.calls.get_mut(&token).ok_or(Status::NotFound)?;
    let sending = sending.open_stream.as_mut().ok_or(Status::BadArgument)?;
    if sending.is_ended {
        return Err(Status::BadArgument.into());
    }
    // Bounded, since peers that do not read would otherwise fill the host's memory.
    let message = GrpcStreamMessage::new(Some(bytes), is_end, unsent);
    if unsent.exceeds_limits(most) {
        return Err(Status::InternalFailure.into());
    }
    sending.is_ended = is_end;
    host.effects
        .push(Effect::SendMessage(CallId(token), message));
    Ok(())
}

fn grpc_cancel(host: &mut Host, token: u32) -> Status {
    if host.calls.remove(&token).is_none() {
        return Status::NotFound;
    }
    host.effects.push(Effect::CancelCall(CallId(token)));
    Status::Ok
}

/// Closes the module's side of a stream; a call is cancelled, as in Envoy.
fn grpc_close(host: &mut Host, token: u32) -> Status {
    let pending = host.calls.get_mut(&token);
    let Some(sending) = pending.and_then(|pending| pending.open_stream.as_mut()) else {
        return grpc_cancel(host, token);
    };
    if !std::mem::replace(&mut sending.is_ended, true) {
        let message = GrpcStreamMessage::new(None, true, &host.unsent_messages);
        host.effects
            .push(Effect::SendMessage(CallId(token), message));
    }
    Status::Ok
}

fn get_grpc_status(
    mut guest: GuestMemory<'_>,
    code_at: u32,
    at: u32,
    length_at: u32,
) -> Result<(), HostError> {
    let received = &guest.host().callback_data;
    let (code, text) = (received.grpc_status, received.grpc_status_message.clone());
    guest.write_u32(code_at, code)?;
    guest.write_allocated(text.as_bytes(), at, length_at)
}

struct CallArguments {
    upstream: (u32, u32),
    headers: (u32, u32),
    body: (u32, u32),
    trailers: (u32, u32),
    timeout: u32,
}

impl CallArguments {
    fn start_http_call(self, mut guest: GuestMemory<'_>, at: u32) -> Result<(), HostError> {
        let head = parse_head(&guest.read_bytes(self.headers.0, self.headers.1)?)?;
        // Required pseudo-headers, as in Envoy.
        let is_whole = [":method", ":path", ":authority"]
            .iter()
            .all(|name| head.pseudo_header(name).is_some());
        if !is_whole {
            return Err(Status::BadArgument.into());
        }
        let trailers =
            self::parse_head(&guest.read_bytes(self.trailers.0, self.trailers.1)?)?.headers;
        let sizes = [self.upstream, self.headers, self.body, self.trailers];
        let call = Call {
            context: guest.host().effective_context,
            permit: acquire_permit(&mut guest, sizes)?,
            upstream: guest.read_text(self.upstream.0, self.upstream.1)?,
            head,
            body: Bytes::from(guest.read_bytes(self.body.0, self.body.1)?),
            trailers,
            timeout: self.timeout(),
            kind: CallKind::Http,
        };
        start_call(guest, call, at, None)
    }

    fn start_grpc_call(
        self,
        mut guest: GuestMemory<'_>,
        names: ((u32, u32), (u32, u32)),
        at: u32,
    ) -> Result<(), HostError> {
        let call = self.grpc_call(&mut guest, names)?;
        start_call(guest, call, at, None)
    }

    fn open_grpc_stream(
        self,
        mut guest: GuestMemory<'_>,
        names: ((u32, u32), (u32, u32)),
        at: u32,
    ) -> Result<(), HostError> {
        let call = self.grpc_call(&mut guest, names)?;
        start_call(guest, call, at, Some(OpenStream::default()))
    }

    fn grpc_call(
        self,
        guest: &mut GuestMemory<'_>,
        (service, method): ((u32, u32), (u32, u32)),
    ) -> Result<Call, HostError> {
        let (service, method) = (
            guest.read_text(service.0, service.1)?,
            guest.read_text(method.0, method.1)?,
        );
        let mut head = parse_head(&guest.read_bytes(self.headers.0, self.headers.1)?)?;
        head.pseudo_headers.clear();
        head.set_pseudo_header(":method", "POST".to_owned());
        head.set_pseudo_header(":path", format!("/{service}/{method}"));
        let sizes = [self.upstream, self.headers, self.body, self.trailers];
        Ok(Call {
            context: guest.host().effective_context,
            permit: acquire_permit(guest, sizes)?,
            upstream: guest.read_text(self.upstream.0, self.upstream.1)?,
            head,
            body: Bytes::from(guest.read_bytes(self.body.0, self.body.1)?),
            trailers: HeaderMap::new(),
            timeout: self.timeout(),
            kind: CallKind::Grpc,
        })
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout.into()).min(MAX_TIMEOUT)
    }
}

/// Takes a permit for a call with arguments of these lengths; fails if the calls or their bytes exceed the limits.
fn acquire_permit(
    guest: &mut GuestMemory<'_>,
    pieces: [(u32, u32); 4],
) -> Result<CallPermit, Status> {
    let bytes = pieces.iter().map(|(_, length)| *length as usize).sum();
    let host = guest.host();
    let most = host.settings.limits.max_outstanding_calls;
    let outstanding = host.outstanding_calls.try_acquire(bytes, most);
    outstanding.ok_or(Status::InternalFailure)
}

fn start_call(
    mut guest: GuestMemory<'_>,
    call: Call,
    at: u32,
    sending: Option<OpenStream>,
) -> Result<(), HostError> {
    let host = guest.host();
    if host.calls.len() >= host.settings.limits.max_outstanding_calls {
        return Err(Status::InternalFailure.into());
    }
    let mut number = host.last_call_id.wrapping_add(1).max(1);
    while host.calls.contains_key(&number) {
        number = number.wrapping_add(1).max(1);
    }
    guest.write_u32(at, number)?;
    let host = guest.host();
    host.last_call_id = number;
    let (token, call) = (CallId(number), Box::new(call));
    host.effects.push(match sending {
        Some(_) => Effect::OpenStream(token, call),
        None => Effect::StartCall(token, call),
    });
    let context = host.effective_context;
    host.calls.insert(
        number,
        PendingCall {
            context,
            open_stream: sending,
        },
    );
    Ok(())
}

fn parse_head(bytes: &[u8]) -> Result<HeaderSection, Status> {
    let mut head = HeaderSection::default();
    for (name, value) in read_pairs(bytes).ok_or(Status::ParseFailure)? {
        if name.starts_with(b":") {
            let name = str::from_utf8(name).map_err(|_| Status::BadArgument)?;
            let value = str::from_utf8(value).map_err(|_| Status::BadArgument)?;
            head.set_pseudo_header(name, value.to_owned());
            continue;
        }
        let name = HeaderName::from_bytes(name).map_err(|_| Status::BadArgument)?;
        let value = HeaderValue::from_bytes(value).map_err(|_| Status::BadArgument)?;
        head.headers
            .try_append(name, value)
            .map_err(|_| Status::BadArgument)?;
    }
    Ok(head)
}
