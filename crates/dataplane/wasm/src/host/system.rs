//! Host functions for the log, the clock and the timer, and functions that are not implemented.

use std::{
    sync::LazyLock,
    time::{Instant, SystemTime},
};

use wasmtime::{Caller, Linker};

use super::{
    Host,
    log_rate::LogPermission,
    memory::{GuestMemory, HostError, to_status_code},
};
use crate::{
    abi::{ENV_MODULE, Status},
    limits::MAX_LOG_LINE_BYTES,
};

pub(super) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.func_wrap(
        ENV_MODULE,
        "proxy_log",
        |caller: Caller<'_, Host>, level: u32, at: u32, length: u32| {
            to_status_code(log(GuestMemory::new(caller), level, at, length))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_get_log_level",
        |caller: Caller<'_, Host>, at: u32| {
            to_status_code(GuestMemory::new(caller).write_u32(at, log_level()))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_get_current_time_nanoseconds",
        |caller: Caller<'_, Host>, at: u32| {
            to_status_code(GuestMemory::new(caller).write(at, &unix_nanoseconds().to_le_bytes()))
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_set_tick_period_milliseconds",
        |mut caller: Caller<'_, Host>, period: u32| {
            caller.data_mut().tick_period = period;
            Status::Ok as u32
        },
    )?;
    linker.func_wrap(
        ENV_MODULE,
        "proxy_call_foreign_function",
        |_: Caller<'_, Host>, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32| {
            Status::NotFound as u32
        },
    )?;
    Ok(())
}

/// Returns the nanoseconds since the Unix epoch.
pub(super) fn unix_nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// Returns monotonic time since an arbitrary moment, in nanoseconds.
pub(super) fn monotonic_nanoseconds() -> u64 {
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

fn log(mut guest: GuestMemory<'_>, level: u32, at: u32, length: u32) -> Result<(), HostError> {
    let (text, host) = guest.read_with_host(at, length)?;
    log_line(host, level, text)
}

/// Writes a log line of a plugin, unless the instance exceeds its rate limit.
pub(super) fn log_line(host: &mut Host, level: u32, text: &[u8]) -> Result<(), HostError> {
    if level > 5 {
        return Err(Status::BadArgument.into());
    }
    let plugin = host.settings.name.as_str();
    match host.log_rate.count_line(Instant::now()) {
        LogPermission::Allowed(0) => {}
        LogPermission::Allowed(dropped) => {
            tracing::warn!(target: "wasm", plugin, dropped, "a plugin logs too much: lines were dropped");
        }
        LogPermission::Dropped => return Ok(()),
    }
    let text = text.get(..MAX_LOG_LINE_BYTES).unwrap_or(text);
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
