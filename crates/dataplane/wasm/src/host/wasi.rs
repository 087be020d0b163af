//! Functions of WASI preview 1 that language runtimes need to start. There are no files, no sockets and no arguments;
//! the environment comes from the plugin's configuration, and output goes to the log.

use rand::RngCore as _;
use wasmtime::{Caller, Linker, Module, Val};

use super::{
    Host,
    memory::{Guest, HostError, answer},
    system,
};
use crate::{
    abi::Status,
    limits::{MAX_LINE, MAX_PIECE},
};

/// Wasm import module that contains the WASI functions.
const WASI: &str = "wasi_snapshot_preview1";
/// WASI's error `ENOTSUP`.
const NOT_SUPPORTED: i32 = 58;
/// WASI's error `EBADF`.
const BAD_DESCRIPTOR: u32 = 8;
/// WASI's id of the monotonic clock.
const MONOTONIC: u32 = 1;
/// Size of a subscription of `poll_oneoff`, and the maximum number of subscriptions.
const SUBSCRIPTION: u32 = 48;
const MAX_POLLED: u32 = 64;
/// WASI's error `EFAULT`.
const BAD_ADDRESS: u32 = 21;

/// Names of the WASI functions that the host implements.
const NAMES: [&str; 15] = [
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
    linker.func_wrap(WASI, "args_get", |_: Caller<'_, Host>, _: u32, _: u32| 0u32)?;
    linker.func_wrap(
        WASI,
        "args_sizes_get",
        |caller: Caller<'_, Host>, count: u32, size: u32| {
            put_both(Guest::new(caller), (count, 0), (size, 0))
        },
    )?;
    linker.func_wrap(
        WASI,
        "clock_res_get",
        |caller: Caller<'_, Host>, _: u32, at: u32| {
            errno(Guest::new(caller).put(at, &1u64.to_le_bytes()))
        },
    )?;
    linker.func_wrap(
        WASI,
        "clock_time_get",
        |caller: Caller<'_, Host>, clock: u32, _: u64, at: u32| {
            let now = match clock {
                MONOTONIC => system::monotonic(),
                _ => system::nanoseconds(),
            };
            errno(Guest::new(caller).put(at, &now.to_le_bytes()))
        },
    )?;
    linker.func_wrap(
        WASI,
        "environ_get",
        |caller: Caller<'_, Host>, list: u32, texts: u32| {
            errno(environment(Guest::new(caller), list, texts))
        },
    )?;
    linker.func_wrap(
        WASI,
        "environ_sizes_get",
        |mut caller: Caller<'_, Host>, count: u32, size: u32| {
            let variables = variables(caller.data_mut());
            let bytes: usize = variables.iter().map(Vec::len).sum();
            put_both(Guest::new(caller), (count, variables.len()), (size, bytes))
        },
    )?;
    linker.func_wrap(WASI, "fd_close", |_: Caller<'_, Host>, _: u32| 0u32)?;
    linker.func_wrap(
        WASI,
        "fd_fdstat_get",
        |caller: Caller<'_, Host>, descriptor: u32, at: u32| {
            if !(1..=2).contains(&descriptor) {
                return Ok(BAD_DESCRIPTOR);
            }
            // A writable character device.
            let mut stat = [0; 24];
            stat[0] = 2;
            stat[8] = 1 << 6;
            errno(Guest::new(caller).put(at, &stat))
        },
    )?;
    linker.func_wrap(
        WASI,
        "fd_prestat_get",
        |_: Caller<'_, Host>, _: u32, _: u32| BAD_DESCRIPTOR,
    )?;
    linker.func_wrap(
        WASI,
        "fd_seek",
        |_: Caller<'_, Host>, _: u32, _: i64, _: u32, _: u32| BAD_DESCRIPTOR,
    )?;
    linker.func_wrap(
        WASI,
        "fd_write",
        |caller: Caller<'_, Host>, descriptor: u32, list: u32, count: u32, at: u32| {
            errno_or(write(Guest::new(caller), descriptor, (list, count), at))
        },
    )?;
    linker.func_wrap(
        WASI,
        "poll_oneoff",
        |caller: Caller<'_, Host>, subscriptions: u32, events: u32, count: u32, at: u32| {
            errno(poll(Guest::new(caller), (subscriptions, count), events, at))
        },
    )?;
    linker.func_wrap(
        WASI,
        "proc_exit",
        |_: Caller<'_, Host>, code: u32| -> wasmtime::Result<()> {
            Err(wasmtime::Error::msg(format!(
                "the module ended itself with {code}"
            )))
        },
    )?;
    linker.func_wrap(
        WASI,
        "random_get",
        |caller: Caller<'_, Host>, at: u32, length: u32| {
            errno(random(Guest::new(caller), at, length))
        },
    )?;
    linker.func_wrap(WASI, "sched_yield", |_: Caller<'_, Host>| 0u32)?;
    Ok(())
}

/// Links stubs for WASI functions that a module imports and the host does not implement; calling them fails.
pub(crate) fn link_unsupported(linker: &mut Linker<Host>, module: &Module) -> wasmtime::Result<()> {
    for import in module.imports() {
        if import.module() != WASI {
            continue;
        }
        let Some(ty) = import.ty().func().cloned() else {
            continue;
        };
        let results: Vec<_> = ty.results().collect();
        let gives_number = matches!(&results[..], [one] if one.is_i32());
        let name = import.name().to_owned();
        if NAMES.contains(&name.as_str()) {
            continue;
        }
        linker.func_new(WASI, import.name(), ty, move |_, _, results| {
            if let (true, Some(result)) = (gives_number, results.first_mut()) {
                *result = Val::I32(NOT_SUPPORTED);
                return Ok(());
            }
            Err(wasmtime::Error::msg(format!("{name} is not supported")))
        })?;
    }
    Ok(())
}

fn errno(result: Result<(), HostError>) -> wasmtime::Result<u32> {
    Ok(match answer(result)? {
        0 => 0,
        _ => BAD_ADDRESS,
    })
}

fn errno_or(result: Result<u32, HostError>) -> wasmtime::Result<u32> {
    match result {
        Ok(errno) => Ok(errno),
        Err(refused) => errno(Err(refused)),
    }
}

fn put_both(
    mut guest: Guest<'_>,
    (first_at, first): (u32, usize),
    (at, second): (u32, usize),
) -> wasmtime::Result<u32> {
    let number = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
    let put = guest.put_number(first_at, number(first));
    errno(put.and_then(|()| guest.put_number(at, number(second))))
}

/// Returns the environment variables as zero-terminated `NAME=value`.
fn variables(host: &Host) -> Vec<Vec<u8>> {
    let all = host.settings.environment.iter();
    all.map(|(name, value)| format!("{name}={value}\0").into_bytes())
        .collect()
}

fn environment(mut guest: Guest<'_>, list: u32, texts: u32) -> Result<(), HostError> {
    let (mut place, mut at) = (list, texts);
    for variable in variables(guest.host()) {
        guest.put_number(place, at)?;
        guest.put(at, &variable)?;
        place = place.wrapping_add(4);
        at = at.wrapping_add(u32::try_from(variable.len()).unwrap_or(u32::MAX));
    }
    Ok(())
}

fn random(mut guest: Guest<'_>, at: u32, length: u32) -> Result<(), HostError> {
    let mut bytes = vec![0; (length as usize).min(MAX_PIECE)];
    rand::rng().fill_bytes(&mut bytes);
    guest.put(at, &bytes)
}

/// Implements `poll_oneoff` without blocking: reports clocks as expired, so that a sleeping module polls again until
/// its callback times out. Files are unsupported.
fn poll(
    mut guest: Guest<'_>,
    (subscriptions, count): (u32, u32),
    events: u32,
    at: u32,
) -> Result<(), HostError> {
    let (mut from, mut to, mut ready) = (subscriptions, events, 0u32);
    for _ in 0..count.min(MAX_POLLED) {
        let subscription = guest.copy(from, SUBSCRIPTION)?;
        let (userdata, rest) = subscription
            .split_first_chunk::<8>()
            .ok_or(Status::InvalidMemoryAccess)?;
        let kind = rest.first().copied().unwrap_or_default();
        let mut event = [0; 32];
        event[..8].copy_from_slice(userdata);
        if kind != 0 {
            event[8..12].copy_from_slice(&BAD_DESCRIPTOR.to_le_bytes());
        }
        event[10] = kind;
        guest.put(to, &event)?;
        ready += 1;
        from = from.wrapping_add(SUBSCRIPTION);
        to = to.wrapping_add(32);
    }
    guest.put_number(at, ready)
}

fn write(
    mut guest: Guest<'_>,
    descriptor: u32,
    (list, count): (u32, u32),
    at: u32,
) -> Result<u32, HostError> {
    let (place, level) = match descriptor {
        1 => (0, 2),
        2 => (1, 4),
        _ => return Ok(BAD_DESCRIPTOR),
    };
    let mut written = 0u32;
    for piece in 0..count.min(1024) {
        let piece = guest.copy(list.wrapping_add(piece.wrapping_mul(8)), 8)?;
        let Some((from, length)) = piece.split_first_chunk::<4>() else {
            break;
        };
        let from = u32::from_le_bytes(*from);
        let length = u32::from_le_bytes(length.try_into().unwrap_or_default());
        let bytes = guest.copy(from, length)?;
        log(guest.host(), place, level, &bytes)?;
        written = written.saturating_add(length);
        // Long output needs several calls, between which the callback's timeout is checked.
        if written as usize >= MAX_PIECE {
            break;
        }
    }
    guest.put_number(at, written)?;
    Ok(0)
}

/// Adds output to standard output or standard error, and logs the lines that are complete.
fn log(host: &mut Host, place: usize, level: u32, bytes: &[u8]) -> Result<(), HostError> {
    let Some(open) = host.lines.get_mut(place) else {
        return Ok(());
    };
    let mut open = std::mem::take(open);
    for byte in bytes {
        if *byte != b'\n' && open.len() < MAX_LINE {
            open.push(*byte);
            continue;
        }
        if !open.is_empty() {
            system::line(host, level, &open)?;
            open.clear();
        }
    }
    if let Some(rest) = host.lines.get_mut(place) {
        *rest = open;
    }
    Ok(())
}
