//! Functions of WASI preview 1 that language runtimes need to start. There are no files, no sockets and no arguments;
//! the environment comes from the plugin's configuration, and output goes to the log.

use rand::RngCore as _;
use wasmtime::{Caller, Linker, Module, Val};

use super::{
    Host,
    memory::{GuestMemory, HostError, to_status_code},
    system,
};
use crate::{
    abi::Status,
    limits::{MAX_COPY_BYTES, MAX_LOG_LINE_BYTES},
};

/// Wasm import module that contains the WASI functions.
const WASI_MODULE: &str = "wasi_snapshot_preview1";
/// WASI error number `ENOTSUP`: the function is not supported.
const ERRNO_NOT_SUPPORTED: i32 = 58;
/// WASI error number `EBADF`: the file descriptor is invalid.
const ERRNO_BAD_DESCRIPTOR: u32 = 8;
/// WASI's id of the monotonic clock.
const CLOCK_MONOTONIC: u32 = 1;
/// Size of one `poll_oneoff` subscription in the module's memory, in bytes.
const SUBSCRIPTION_BYTES: u32 = 48;
const MAX_POLL_SUBSCRIPTIONS: u32 = 64;
/// WASI error number `EFAULT`: the address is invalid.
const ERRNO_BAD_ADDRESS: u32 = 21;

/// Names of the WASI functions that the host implements; all others are stubs that fail.
const IMPLEMENTED_FUNCTIONS: [&str; 15] = [
    "args_get",
    "args_sizes_get",
    "clock_res_get",
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "fd_close",
    "fd_fdstat_get",
    "fd_prestat_get",
    "fd_seek",
    "fd_write",
    "poll_oneoff",
    "proc_exit",
    "random_get",
    "sched_yield",
];

pub(super) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        WASI_MODULE,
        "args_get",
        |_: Caller<'_, Host>, _: u32, _: u32| 0u32,
    )?;
    linker.func_wrap(
        WASI_MODULE,
        "args_sizes_get",
        |caller: Caller<'_, Host>, count: u32, size: u32| {
            write_two_numbers(GuestMemory::new(caller), (count, 0), (size, 0))
        },
    )?;
    linker.func_wrap(
        WASI_MODULE,
        "clock_res_get",
        |caller: Caller<'_, Host>, _: u32, at: u32| {
            errno(GuestMemory::new(caller).write(at, &1u64.to_le_bytes()))
        },
    )?;
    linker.func_wrap(
        WASI_MODULE,
        "clock_time_get",
        |caller: Caller<'_, Host>, clock: u32, _: u64, at: u32| {
            let now = match clock {
                CLOCK_MONOTONIC => system::monotonic_nanoseconds(),
                _ => system::unix_nanoseconds(),
            };
            errno(GuestMemory::new(caller).write(at, &now.to_le_bytes()))
        },
    )?;
    linker.func_wrap(
        WASI_MODULE,
        "environ_get",
        |caller: Caller<'_, Host>, list: u32, texts: u32| {
            errno(environ_get(GuestMemory::new(caller), list, texts))
        },
    )?;
    linker.func_wrap(
        WASI_MODULE,
        "environ_sizes_get",
        |mut caller: Caller<'_, Host>, count: u32, size: u32| {
            let variables = environment_variables(caller.data_mut());
            let bytes: usize = variables.iter().map(Vec::len).sum();
            write_two_numbers(
                GuestMemory::new(caller),
                (count, variables.len()),
                (size, bytes),
            )
        },
    )?;
    link_descriptors(linker)?;
    linker.func_wrap(
        WASI_MODULE,
        "poll_oneoff",
        |caller: Caller<'_, Host>, subscriptions: u32, events: u32, count: u32, at: u32| {
            errno(poll_oneoff(
                GuestMemory::new(caller),
                (subscriptions, count),
                events,
                at,
            ))
        },
    )?;
    linker.func_wrap(
        WASI_MODULE,
        "proc_exit",
        |_: Caller<'_, Host>, code: u32| -> wasmtime::Result<()> {
            Err(wasmtime::Error::msg(format!(
                "the module ended itself with {code}"
            )))
        },
    )?;
    linker.func_wrap(
        WASI_MODULE,
        "random_get",
        |caller: Caller<'_, Host>, at: u32, length: u32| {
            errno(random_get(GuestMemory::new(caller), at, length))
        },
    )?;
    linker.func_wrap(WASI_MODULE, "sched_yield", |_: Caller<'_, Host>| 0u32)?;
    Ok(())
}

/// Links the functions of file descriptors: modules have standard output and standard error only.
fn link_descriptors(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(WASI_MODULE, "fd_close", |_: Caller<'_, Host>, _: u32| 0u32)?;
    linker.func_wrap(
        WASI_MODULE,
        "fd_fdstat_get",
        |caller: Caller<'_, Host>, descriptor: u32, at: u32| {
            if !(1..=2).contains(&descriptor) {
                return Ok(ERRNO_BAD_DESCRIPTOR);
            }
            // A writable character device.
            let mut stat = [0; 24];
            stat[0] = 2;
            stat[8] = 1 << 6;
            errno(GuestMemory::new(caller).write(at, &stat))
        },
    )?;
    linker.func_wrap(
        WASI_MODULE,
        "fd_prestat_get",
        |_: Caller<'_, Host>, _: u32, _: u32| ERRNO_BAD_DESCRIPTOR,
    )?;
    linker.func_wrap(
        WASI_MODULE,
        "fd_seek",
        |_: Caller<'_, Host>, _: u32, _: i64, _: u32, _: u32| ERRNO_BAD_DESCRIPTOR,
    )?;
    linker.func_wrap(
        WASI_MODULE,
        "fd_write",
        |caller: Caller<'_, Host>, descriptor: u32, list: u32, count: u32, at: u32| {
            errno_or(fd_write(
                GuestMemory::new(caller),
                descriptor,
                (list, count),
                at,
            ))
        },
    )?;
    Ok(())
}

/// Links stubs for WASI functions that a module imports and the host does not implement; calling them fails.
pub(crate) fn link_unsupported(linker: &mut Linker<Host>, module: &Module) -> wasmtime::Result<()> {
    for import in module.imports() {
        if import.module() != WASI_MODULE {
            continue;
        }
        let Some(ty) = import.ty().func().cloned() else {
            continue;
        };
        let results: Vec<_> = ty.results().collect();
        let gives_number = matches!(&results[..], [one] if one.is_i32());
        let name = import.name().to_owned();
        if IMPLEMENTED_FUNCTIONS.contains(&name.as_str()) {
            continue;
        }
        linker.func_new(WASI_MODULE, import.name(), ty, move |_, _, results| {
            if let (true, Some(result)) = (gives_number, results.first_mut()) {
                *result = Val::I32(ERRNO_NOT_SUPPORTED);
                return Ok(());
            }
            Err(wasmtime::Error::msg(format!("{name} is not supported")))
        })?;
    }
    Ok(())
}

fn errno(result: Result<(), HostError>) -> wasmtime::Result<u32> {
    Ok(match to_status_code(result)? {
        0 => 0,
        _ => ERRNO_BAD_ADDRESS,
    })
}

fn errno_or(result: Result<u32, HostError>) -> wasmtime::Result<u32> {
    match result {
        Ok(errno) => Ok(errno),
        Err(refused) => errno(Err(refused)),
    }
}

fn write_two_numbers(
    mut guest: GuestMemory<'_>,
    (first_at, first): (u32, usize),
    (at, second): (u32, usize),
) -> wasmtime::Result<u32> {
    let number = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
    let put = guest.write_u32(first_at, number(first));
    errno(put.and_then(|()| guest.write_u32(at, number(second))))
}

/// Returns the environment variables as zero-terminated `NAME=value`.
fn environment_variables(host: &Host) -> Vec<Vec<u8>> {
    let all = host.settings.environment.iter();
    all.map(|(name, value)| format!("{name}={value}\0").into_bytes())
        .collect()
}

fn environ_get(mut guest: GuestMemory<'_>, list: u32, texts: u32) -> Result<(), HostError> {
    let (mut place, mut at) = (list, texts);
    for variable in environment_variables(guest.host()) {
        guest.write_u32(place, at)?;
        guest.write(at, &variable)?;
        place = place.wrapping_add(4);
        at = at.wrapping_add(u32::try_from(variable.len()).unwrap_or(u32::MAX));
    }
    Ok(())
}

fn random_get(mut guest: GuestMemory<'_>, at: u32, length: u32) -> Result<(), HostError> {
    let mut bytes = vec![0; (length as usize).min(MAX_COPY_BYTES)];
    rand::rng().fill_bytes(&mut bytes);
    guest.write(at, &bytes)
}

/// Implements `poll_oneoff` without blocking: reports clocks as expired, so that a sleeping module polls again until
/// its callback times out. Files are unsupported.
fn poll_oneoff(
    mut guest: GuestMemory<'_>,
    (subscriptions, count): (u32, u32),
    events: u32,
    at: u32,
) -> Result<(), HostError> {
    let (mut from, mut to, mut ready) = (subscriptions, events, 0u32);
    for _ in 0..count.min(MAX_POLL_SUBSCRIPTIONS) {
        let subscription = guest.read_bytes(from, SUBSCRIPTION_BYTES)?;
        let (userdata, rest) = subscription
            .split_first_chunk::<8>()
            .ok_or(Status::InvalidMemoryAccess)?;
        let kind = rest.first().copied().unwrap_or_default();
        let mut event = [0; 32];
        event[..8].copy_from_slice(userdata);
        if kind != 0 {
            event[8..12].copy_from_slice(&ERRNO_BAD_DESCRIPTOR.to_le_bytes());
        }
        event[10] = kind;
        guest.write(to, &event)?;
        ready += 1;
        from = from.wrapping_add(SUBSCRIPTION_BYTES);
        to = to.wrapping_add(32);
    }
    guest.write_u32(at, ready)
}

fn fd_write(
    mut guest: GuestMemory<'_>,
    descriptor: u32,
    (list, count): (u32, u32),
    at: u32,
) -> Result<u32, HostError> {
    let (place, level) = match descriptor {
        1 => (0, 2),
        2 => (1, 4),
        _ => return Ok(ERRNO_BAD_DESCRIPTOR),
    };
    let mut written = 0u32;
    for piece in 0..count.min(1024) {
        let piece = guest.read_bytes(list.wrapping_add(piece.wrapping_mul(8)), 8)?;
        let Some((from, length)) = piece.split_first_chunk::<4>() else {
            break;
        };
        let from = u32::from_le_bytes(*from);
        let length = u32::from_le_bytes(length.try_into().unwrap_or_default());
        let bytes = guest.read_bytes(from, length)?;
        log_complete_lines(guest.host(), place, level, &bytes)?;
        written = written.saturating_add(length);
        // Long output needs several calls, between which the callback's timeout is checked.
        if written as usize >= MAX_COPY_BYTES {
            break;
        }
    }
    guest.write_u32(at, written)?;
    Ok(0)
}

/// Adds output to standard output or standard error, and logs the lines that are complete.
fn log_complete_lines(
    host: &mut Host,
    place: usize,
    level: u32,
    bytes: &[u8],
) -> Result<(), HostError> {
    let Some(open) = host.partial_lines.get_mut(place) else {
        return Ok(());
    };
    let mut open = std::mem::take(open);
    for byte in bytes {
        if *byte != b'\n' && open.len() < MAX_LOG_LINE_BYTES {
            open.push(*byte);
            continue;
        }
        if !open.is_empty() {
            system::log_line(host, level, &open)?;
            open.clear();
        }
    }
    if let Some(rest) = host.partial_lines.get_mut(place) {
        *rest = open;
    }
    Ok(())
}
