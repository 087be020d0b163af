//! Gate that accept loops wait at. While it is closed, connections wait in the kernel's accept queues, or another proxy
//! with the same sockets accepts them.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use tokio::sync::watch;

/// Gate that accept loops wait at; clones share its state.
#[derive(Clone, Debug)]
pub struct Gate(watch::Receiver<bool>);

/// Handle that opens and closes a [`Gate`].
#[derive(Debug)]
pub struct GateControl(watch::Sender<bool>);

impl Default for Gate {
    /// Creates a gate that is always open.
    fn default() -> Self {
        // Without its sender the value can only be read.
        Self(watch::channel(true).1)
    }
}

impl Gate {
    /// Creates a closed gate.
    pub fn closed() -> (GateControl, Self) {
        let (sender, receiver) = watch::channel(false);
        (GateControl(sender), Self(receiver))
    }

    /// Whether the gate is open.
    pub fn is_open(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the gate is open.
    pub async fn wait_until_open(&mut self) {
        if self.0.wait_for(|open| *open).await.is_err() {
            // The gate stays closed forever.
            std::future::pending::<()>().await;
        }
    }

    async fn wait_until_closed(&mut self) {
        if self.0.wait_for(|open| !*open).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Polls `next` while the gate is open, and returns its result; does not poll it while the gate is closed.
    pub async fn poll_while_open<T>(
        &mut self,
        mut next: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> T {
        loop {
            self.wait_until_open().await;
            tokio::select! {
                biased;
                () = self.wait_until_closed() => {}
                next = poll_fn(&mut next) => return next,
            }
        }
    }
}

impl GateControl {
    /// Opens or closes the gate.
    pub fn set_open(&self, open: bool) {
        self.0
            .send_if_modified(|now| std::mem::replace(now, open) != open);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn listener() -> TcpListener {
        TcpListener::bind(("127.0.0.1", 0)).await.unwrap()
    }

    #[tokio::test]
    async fn connections_wait_while_the_gate_is_closed() {
        let (control, mut gate) = Gate::closed();
        let listener = listener().await;
        let _client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let brief = Duration::from_millis(20);
        let passed = tokio::time::timeout(
            brief,
            gate.poll_while_open(|context| listener.poll_accept(context)),
        )
        .await;
        assert!(passed.is_err());
        control.set_open(true);
        gate.poll_while_open(|context| listener.poll_accept(context))
            .await
            .unwrap();
        control.set_open(false);
        assert!(!gate.is_open());
    }

    #[tokio::test]
    async fn without_a_control_it_stays_open() {
        let mut gate = Gate::default();
        let listener = listener().await;
        let _client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        gate.poll_while_open(|context| listener.poll_accept(context))
            .await
            .unwrap();
    }
}
