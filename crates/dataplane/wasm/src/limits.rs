//! What one plugin may take.

use std::time::Duration;

/// How long the engine's clock stands between two calls of [`crate::Engine::tick`].
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// What one instance may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of its memory.
    pub memory: usize,
    /// How long a callback may take.
    pub callback: Duration,
    /// How long its start may take, until it is configured.
    pub start: Duration,
    /// Bytes of a body that it holds back.
    pub body: usize,
    /// Calls that it has not yet got an answer to.
    pub calls: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            callback: Duration::from_millis(100),
            start: Duration::from_secs(10),
            body: 1 << 20,
            calls: 256,
        }
    }
}

/// In ticks: one more, as the present one has begun.
pub(crate) fn ticks(time: Duration) -> u64 {
    let ticks = time.as_millis() / TICK.as_millis();
    u64::try_from(ticks).unwrap_or(u64::MAX / 2) + 1
}

/// Bytes of what a module gives to keep, as one piece: a value, a message, a log line.
pub(crate) const MAX_PIECE: usize = 1 << 20;
/// Bytes of a line of a log.
pub(crate) const MAX_LINE: usize = 4 << 10;
/// Properties that a module sets for one request.
pub(crate) const MAX_PROPERTIES: usize = 64;
/// Entries of a table of functions.
pub(crate) const MAX_TABLE: usize = 100_000;
/// Bytes of a module.
pub(crate) const MAX_MODULE: usize = 64 << 20;
