//! Handling of the signals by which container runtimes terminate a process.

use std::{io, process, thread};

use ambit_rt::Shutdown;

/// Exit code that shells report for a process that was ended by SIGTERM.
const SIGTERM_EXIT_CODE: i32 = 128 + 15;

/// Makes SIGTERM and SIGINT end the process, even as process 1 of its container.
pub(crate) fn end_process_on_signal() {
    on_termination_signal(|| process::exit(SIGTERM_EXIT_CODE));
}

/// Calls `end` on a thread when SIGTERM or SIGINT arrives.
#[expect(clippy::print_stderr, reason = "its output is the pod's log")]
pub(crate) fn on_termination_signal(end: impl FnOnce() + Send + 'static) {
    thread::spawn(move || match wait_for_termination_signal() {
        Ok(()) => end(),
        Err(error) => eprintln!("signals are not followed: {error}"),
    });
}

fn wait_for_termination_signal() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        Shutdown::on_signals()?.wait().await;
        Ok(())
    })
}

/// Blocks for ever; signals end the process.
pub(crate) fn sleep_forever() -> ! {
    loop {
        thread::park();
    }
}
