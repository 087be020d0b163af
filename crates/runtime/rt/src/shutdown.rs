//! Shutdown of the process by SIGTERM, SIGINT, or a request to the admin server.

use std::{io, sync::Arc};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::spawn_essential;

/// Receiver of the signal that the process should end. Clones share it.
#[derive(Clone, Debug)]
pub struct Shutdown {
    cause: watch::Receiver<Option<&'static str>>,
    trigger: ShutdownTrigger,
}

/// Sender of the signal that the process should end.
#[derive(Clone, Debug)]
pub struct ShutdownTrigger(Arc<watch::Sender<Option<&'static str>>>);

impl Shutdown {
    /// Listens for SIGTERM and SIGINT. The second signal ends the process at once, with status 1. Must be called
    /// within a runtime.
    pub fn on_signals() -> io::Result<Self> {
        let shutdown = Self::manual();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let trigger = shutdown.trigger();
        spawn_essential("signals", async move {
            loop {
                let cause = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                if !trigger.shut_down(cause) {
                    tracing::warn!(signal = cause, "second signal: not waiting any longer");
                    crate::logging::flush(std::time::Duration::from_millis(200));
                    std::process::exit(1);
                }
            }
        });
        Ok(shutdown)
    }

    /// Creates a shutdown that no signal triggers, for tests and for components that run inside another process.
    pub fn manual() -> Self {
        let (sender, cause) = watch::channel(None);
        Self {
            cause,
            trigger: ShutdownTrigger(Arc::new(sender)),
        }
    }

    /// Returns the trigger of this shutdown, for the admin server's quit request.
    pub fn trigger(&self) -> ShutdownTrigger {
        self.trigger.clone()
    }

    /// Waits until the shutdown is requested; returns its cause.
    pub async fn wait(&mut self) -> &'static str {
        match self
            .cause
            .wait_for(Option::is_some)
            .await
            .map(|cause| *cause)
        {
            Ok(Some(cause)) => cause,
            // `self.trigger` keeps the sender alive.
            _ => std::future::pending().await,
        }
    }
}

impl ShutdownTrigger {
    /// Requests the shutdown. Returns false if it was requested before.
    pub fn shut_down(&self, cause: &'static str) -> bool {
        self.0.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                tracing::info!(cause, "shutting down");
                *current = Some(cause);
            }
            first
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::within;

    use super::*;

    #[tokio::test]
    async fn the_first_cause_counts() {
        within(async {
            let mut shutdown = Shutdown::manual();
            assert!(shutdown.trigger().shut_down("/quitquitquit"));
            assert!(!shutdown.trigger().shut_down("again"));
            assert_eq!(shutdown.wait().await, "/quitquitquit");
            assert_eq!(shutdown.clone().wait().await, "/quitquitquit");
        })
        .await;
    }

    #[tokio::test]
    async fn a_termination_signal_is_a_cause() {
        within(async {
            let mut shutdown = Shutdown::on_signals().unwrap();
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)
                .unwrap();
            assert_eq!(shutdown.wait().await, "SIGTERM");
        })
        .await;
    }
}
