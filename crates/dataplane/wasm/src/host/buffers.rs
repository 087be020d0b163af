//! Host functions for buffers: bodies, configurations, and responses to calls.

use bytes::BytesMut;
use wasmtime::{Caller, Linker};

use super::{
    Host,
    memory::{Guest, HostError, answer},
};
use crate::abi::{BufferKind, ENV, Status};

pub(super) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_get_buffer_bytes",
        |caller: Caller<'_, Host>, kind: u32, start: u32, size: u32, at: u32, length_at: u32| {
            answer(get(
                Guest::new(caller),
                kind,
                (start, size),
                (at, length_at),
            ))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_get_buffer_status",
        |caller: Caller<'_, Host>, kind: u32, length_at: u32, flags_at: u32| {
            answer(status(Guest::new(caller), kind, length_at, flags_at))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_set_buffer_bytes",
        |caller: Caller<'_, Host>, kind: u32, start: u32, size: u32, at: u32, length: u32| {
            answer(set(Guest::new(caller), kind, (start, size), (at, length)))
        },
    )?;
    Ok(())
}

fn buffer(host: &mut Host, kind: BufferKind) -> Result<&[u8], Status> {
    Ok(match kind {
        BufferKind::RequestBody => &host.stream()?.request_body,
        BufferKind::ResponseBody => &host.stream()?.response_body,
        BufferKind::CallBody => &host.received.body,
        BufferKind::GrpcMessage => &host.received.grpc_message,
        BufferKind::VmConfiguration => &host.settings.vm_configuration,
        BufferKind::PluginConfiguration => &host.settings.configuration,
    })
}

fn get(
    mut guest: Guest<'_>,
    kind: u32,
    (start, size): (u32, u32),
    (at, length_at): (u32, u32),
) -> Result<(), HostError> {
    let all = buffer(guest.host(), BufferKind::of(kind)?)?;
    let (start, size) = (start as usize, size as usize);
    let end = start.saturating_add(size).min(all.len());
    let bytes = all.get(start.min(end)..end).unwrap_or_default().to_vec();
    guest.give(&bytes, at, length_at)
}

fn status(mut guest: Guest<'_>, kind: u32, length_at: u32, flags_at: u32) -> Result<(), HostError> {
    let length = buffer(guest.host(), BufferKind::of(kind)?)?.len();
    guest.put_number(length_at, u32::try_from(length).unwrap_or(u32::MAX))?;
    guest.put_number(flags_at, 0)
}

fn set(
    mut guest: Guest<'_>,
    kind: u32,
    (start, size): (u32, u32),
    (at, length): (u32, u32),
) -> Result<(), HostError> {
    let kind = BufferKind::of(kind)?;
    let (bytes, host) = guest.both(at, length)?;
    let most = host.settings.limits.body;
    let stream = host.stream()?;
    let body = match kind {
        BufferKind::RequestBody => &mut stream.request_body,
        BufferKind::ResponseBody => &mut stream.response_body,
        _ => return Err(Status::BadArgument.into()),
    };
    if bytes.len()
        > most
            .saturating_sub(body.len().min(most))
            .saturating_add(size as usize)
    {
        return Err(Status::BadArgument.into());
    }
    replace(body, start as usize, size as usize, bytes);
    Ok(())
}

/// Replaces a range of a buffer with Envoy's semantics: at the start nothing is removed for a size of zero, and bytes
/// past the end are appended.
fn replace(bytes: &mut BytesMut, start: usize, size: usize, with: &[u8]) {
    let start = start.min(bytes.len());
    let end = start.saturating_add(size).min(bytes.len());
    let tail = bytes.split_off(end);
    bytes.truncate(start);
    bytes.extend_from_slice(with);
    bytes.extend_from_slice(&tail);
}
