//! Host functions for the log, the clock and the timer, and functions that are not implemented.

use std::{
    sync::LazyLock,
    time::{Instant, SystemTime},
};

use wasmtime::{Caller, Linker};

use super::{
    Host,
    log_rate::Line,
    memory::{Guest, HostError, answer},
};
use crate::{
    abi::{ENV, Status},
    limits::MAX_LINE,
};

pub(super) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        ENV,
        "proxy_log",
        |caller: Caller<'_, Host>, level: u32, at: u32, length: u32| {
            answer(log(Guest::new(caller), level, at, length))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_get_log_level",
        |caller: Caller<'_, Host>, at: u32| answer(Guest::new(caller).put_number(at, log_level())),
    )?;
    linker.func_wrap(
        ENV,
        "proxy_get_current_time_nanoseconds",
        |caller: Caller<'_, Host>, at: u32| {
            answer(Guest::new(caller).put(at, &nanoseconds().to_le_bytes()))
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_set_tick_period_milliseconds",
        |mut caller: Caller<'_, Host>, period: u32| {
            caller.data_mut().tick_period = period;
            Status::Ok as u32
        },
    )?;
    linker.func_wrap(
        ENV,
        "proxy_call_foreign_function",
        |_: Caller<'_, Host>, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32| {
            Status::NotFound as u32
        },
    )?;
    Ok(())
}

/// Returns the nanoseconds since the Unix epoch.
pub(super) fn nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// Returns monotonic time since an arbitrary moment, in nanoseconds.
pub(super) fn monotonic() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(BEGAN.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the enabled log level, in the ABI's numbering.
fn log_level() -> u32 {
    if tracing::enabled!(target: "wasm", tracing::Level::TRACE) {
        0
    } else if tracing::enabled!(target: "wasm", tracing::Level::DEBUG) {
        1
    } else if tracing::enabled!(target: "wasm", tracing::Level::INFO) {
        2
    } else {
        3
    }
}

fn log(mut guest: Guest<'_>, level: u32, at: u32, length: u32) -> Result<(), HostError> {
    let (text, host) = guest.both(at, length)?;
    line(host, level, text)
}

/// Writes a log line of a plugin, unless the instance exceeds its rate limit.
pub(super) fn line(host: &mut Host, level: u32, text: &[u8]) -> Result<(), HostError> {
    if level > 5 {
        return Err(Status::BadArgument.into());
    }
    let plugin = host.settings.name.as_str();
    match host.logged.line(Instant::now()) {
        Line::Written(0) => {}
        Line::Written(dropped) => {
            tracing::warn!(target: "wasm", plugin, dropped, "a plugin logs too much: lines were dropped");
        }
        Line::Dropped => return Ok(()),
    }
    let text = text.get(..MAX_LINE).unwrap_or(text);
    let text = String::from_utf8_lossy(text);
    match level {
        0 => tracing::trace!(target: "wasm", plugin, "{text}"),
        1 => tracing::debug!(target: "wasm", plugin, "{text}"),
        2 => tracing::info!(target: "wasm", plugin, "{text}"),
        3 => tracing::warn!(target: "wasm", plugin, "{text}"),
        _ => tracing::error!(target: "wasm", plugin, "{text}"),
    }
    Ok(())
}
