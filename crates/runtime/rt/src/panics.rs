//! Panics: each is counted and logged with its location; the program chooses whether a panic ends its task or the
//! process.
//!
//! Where tasks serve one connection each, tokio catches a panic, and only its task ends. Tasks that the process cannot
//! do without are spawned as essential ([`crate::spawn_essential`]): their panic ends the process, so that its
//! supervisor starts it again, since a partly working process is worse than none. Locks of the data path are
//! `parking_lot`'s, which a panic does not poison; their values are changed without code in between that could panic,
//! or by a guard's drop.

use std::{
    panic::PanicHookInfo,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

#[cfg(panic = "abort")]
compile_error!("with panic = \"abort\" a panic in one connection's task would end all connections");

static PANIC_COUNT: AtomicU64 = AtomicU64::new(0);

/// Scope that a panic ends: its task or the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanicScope {
    /// A panic ends its task, or the process if the task is essential.
    Task,
    /// A panic ends the process, whichever task panicked.
    Process,
}

/// Installs the panic hook, which counts and logs panics.
pub fn install_hook(ends: PanicScope) {
    std::panic::set_hook(Box::new(move |info| {
        count_and_log(info);
        if ends == PanicScope::Process {
            end_process();
        }
    }));
}

/// Returns the number of panics so far.
pub fn panic_count() -> u64 {
    PANIC_COUNT.load(Ordering::Relaxed)
}

fn count_and_log(info: &PanicHookInfo<'_>) {
    PANIC_COUNT.fetch_add(1, Ordering::Relaxed);
    let thread = std::thread::current();
    tracing::error!(
        thread = thread.name().unwrap_or_default(),
        place = info.location().map(ToString::to_string),
        "panicked: {}",
        info.payload_as_str().unwrap_or("(no text)")
    );
}

/// Ends the process because of a panic that was logged.
pub(crate) fn end_process() -> ! {
    crate::logging::flush(Duration::from_secs(1));
    std::process::abort()
}
