//! Resource limits of plugins.

use std::time::Duration;

/// Interval between two calls of [`crate::Engine::tick`].
pub(crate) const EPOCH_TICK: Duration = Duration::from_millis(10);

/// Resource limits of one instance of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum linear memory in bytes.
    pub max_memory_bytes: usize,
    /// Timeout of one callback.
    pub callback_timeout: Duration,
    /// Maximum duration of starting an instance, including its configuration.
    pub start_timeout: Duration,
    /// Maximum bytes of a body that the plugin buffers.
    pub max_body_bytes: usize,
    /// Maximum outstanding calls and gRPC streams of the instance.
    pub max_outstanding_calls: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_memory_bytes: 64 << 20,
            callback_timeout: Duration::from_millis(100),
            start_timeout: Duration::from_secs(10),
            max_body_bytes: 1 << 20,
            max_outstanding_calls: 256,
        }
    }
}

/// Converts a duration to ticks, plus one for the tick that has already begun.
pub(crate) fn epoch_ticks(time: Duration) -> u64 {
    let ticks = time.as_millis() / EPOCH_TICK.as_millis();
    u64::try_from(ticks).unwrap_or(u64::MAX / 2) + 1
}

/// Maximum size of one value, message or log text from a module, in bytes.
pub(crate) const MAX_COPY_BYTES: usize = 1 << 20;
/// Maximum bytes of an instance's outstanding calls and streams, including their bodies.
pub(crate) const MAX_CALL_BYTES: usize = 8 << 20;
/// Maximum bytes of the names and values of one header map.
pub(crate) const MAX_HEADER_BYTES: usize = 256 << 10;
/// Maximum bytes of the names and values of the properties that a module sets for one request.
pub(crate) const MAX_PROPERTY_BYTES: usize = 64 << 10;
/// Maximum log lines of an instance per second.
pub(crate) const MAX_LOG_LINES_PER_SECOND: u32 = 100;
/// Maximum linear memory of all instances of a process, in bytes.
pub(crate) const MAX_PROCESS_MEMORY_BYTES: usize = 256 << 20;
/// Maximum bytes of a log line.
pub(crate) const MAX_LOG_LINE_BYTES: usize = 4 << 10;
/// Maximum properties that a module sets for one request.
pub(crate) const MAX_PROPERTIES: usize = 64;
/// Maximum entries of a module's function table.
pub(crate) const MAX_TABLE_ELEMENTS: usize = 100_000;
/// Maximum size of a module, in bytes.
pub(crate) const MAX_MODULE_BYTES: usize = 64 << 20;
