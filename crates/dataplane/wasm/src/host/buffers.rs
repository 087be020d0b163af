//! Host functions for buffers: bodies, configurations, and responses to calls.

use bytes::BytesMut;
use wasmtime::{Caller, Linker};

use super::{
    Host,
    memory::{GuestMemory, HostError, to_status_code},
};
use crate::abi::{BufferKind, ENV_MODULE, Status};

pub(super) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        ENV_MODULE,
        "proxy_get_buffer_bytes",
        |caller: Caller<'_, Host>, kind: u32, start: u32, size: u32, at: u32, length_at: u32| {
            to_status_code(get_buffer_bytes(
                GuestMemory::new(caller),
                kind,
                (start, size),
                (at, length_at),
            ))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_get_buffer_status",
        |caller: Caller<'_, Host>, kind: u32, length_at: u32, flags_at: u32| {
            to_status_code(get_buffer_status(
                GuestMemory::new(caller),
                kind,
                length_at,
                flags_at,
            ))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_set_buffer_bytes",
        |caller: Caller<'_, Host>, kind: u32, start: u32, size: u32, at: u32, length: u32| {
            to_status_code(set_buffer_bytes(
                GuestMemory::new(caller),
                kind,
                (start, size),
                (at, length),
            ))
        },
    )?;
    Ok(())
}

fn select_buffer(host: &mut Host, kind: BufferKind) -> Result<&[u8], Status> {
    Ok(match kind {
        BufferKind::RequestBody => &host.effective_stream()?.request_body,
        BufferKind::ResponseBody => &host.effective_stream()?.response_body,
        BufferKind::CallBody => &host.callback_data.body,
        BufferKind::GrpcMessage => &host.callback_data.grpc_message,
        BufferKind::VmConfiguration => &host.settings.vm_configuration,
        BufferKind::PluginConfiguration => &host.settings.configuration,
    })
}

fn get_buffer_bytes(
    mut guest: GuestMemory<'_>,
    kind: u32,
    (start, size): (u32, u32),
    (at, length_at): (u32, u32),
) -> Result<(), HostError> {
    let all = select_buffer(guest.host(), BufferKind::from_number(kind)?)?;
    let (start, size) = (start as usize, size as usize);
    let end = start.saturating_add(size).min(all.len());
    let bytes = all.get(start.min(end)..end).unwrap_or_default().to_vec();
    guest.write_allocated(&bytes, at, length_at)
}

fn get_buffer_status(
    mut guest: GuestMemory<'_>,
    kind: u32,
    length_at: u32,
    flags_at: u32,
) -> Result<(), HostError> {
    let length = select_buffer(guest.host(), BufferKind::from_number(kind)?)?.len();
    guest.write_u32(length_at, u32::try_from(length).unwrap_or(u32::MAX))?;
    guest.write_u32(flags_at, 0)
}

fn set_buffer_bytes(
    mut guest: GuestMemory<'_>,
    kind: u32,
    (start, size): (u32, u32),
    (at, length): (u32, u32),
) -> Result<(), HostError> {
    let kind = BufferKind::from_number(kind)?;
    let (bytes, host) = guest.read_with_host(at, length)?;
    let most = host.settings.limits.max_body_bytes;
    let stream = host.effective_stream()?;
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
    replace_range(body, start as usize, size as usize, bytes);
    Ok(())
}

/// Replaces `size` bytes from `start` in a buffer, as Envoy does. Size zero inserts; positions past the buffer's end
/// count as its end.
fn replace_range(bytes: &mut BytesMut, start: usize, size: usize, with: &[u8]) {
    let start = start.min(bytes.len());
    let end = start.saturating_add(size).min(bytes.len());
    let tail = bytes.split_off(end);
    bytes.truncate(start);
    bytes.extend_from_slice(with);
    bytes.extend_from_slice(&tail);
}
