//! Listeners of one proxy instance on one worker, and the task that accepts from all of them.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    task::{Context, Poll},
    time::Duration,
};

use ambit_handover::Gate;
use ambit_model::PodName;
use ambit_rt::{DrainWatcher, OpenWork};
use tokio::net::{TcpListener, TcpStream};

/// Pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_ERROR_PAUSE: Duration = Duration::from_millis(20);

/// Accepted connection with its client's address.
#[derive(Debug)]
pub struct AcceptedConnection {
    /// The accepted connection.
    pub stream: TcpStream,
    /// Address of the client, in canonical form (IPv4-mapped addresses as IPv4).
    pub peer: SocketAddr,
    /// Guard that keeps the drain waiting for this connection.
    pub drain_guard: OpenWork,
}

/// Listeners of one proxy instance, polled by a single task: one task for each listener would increase a node proxy's
/// memory for idle pods by half. `P` identifies the listener.
#[derive(Debug)]
pub struct Listeners<P> {
    listeners: Vec<(TcpListener, P)>,
    /// Index of the listener that is polled first, rotating for fairness.
    first_polled: usize,
}

impl<P: Clone> Listeners<P> {
    /// Creates a set of listeners.
    pub fn new(all: Vec<(TcpListener, P)>) -> Self {
        Self {
            listeners: all,
            first_polled: 0,
        }
    }

    /// Accepts connections and passes them to `handle`, until the drain begins; pauses while the gate is closed. If
    /// `empties_queues` is set, queued connections are still accepted when the drain begins, since they would be reset
    /// otherwise. `name` is for logs.
    pub async fn accept(
        &mut self,
        name: &PodName,
        gate: &mut Gate,
        drain: &mut DrainWatcher,
        empties_queues: impl Fn() -> bool,
        handle: impl Fn(AcceptedConnection, P),
    ) {
        let mut last = false;
        loop {
            let (accepted, port) = if last {
                match self.next_connection().await {
                    Some(accepted) => accepted,
                    None => return,
                }
            } else {
                tokio::select! {
                    biased;
                    _mode = drain.wait_until_started() => {
                        if !empties_queues() {
                            return;
                        }
                        last = true;
                        continue;
                    }
                    accepted = gate.poll_while_open(|context| self.poll_accept(context)) => accepted,
                }
            };
            match accepted {
                Ok((stream, peer)) => {
                    let accepted = AcceptedConnection {
                        stream,
                        peer: ambit_model::canonical_socket_address(peer),
                        drain_guard: drain.open_work(),
                    };
                    handle(accepted, port);
                }
                Err(_) if last => return,
                Err(error) => {
                    tracing::warn!(pod = %name, %error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_ERROR_PAUSE).await;
                }
            }
        }
    }

    fn poll_accept(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<(io::Result<(TcpStream, SocketAddr)>, P)> {
        let (before, from) = self
            .listeners
            .split_at(self.first_polled.min(self.listeners.len()));
        for (after, (listener, port)) in from.iter().chain(before).enumerate() {
            if let Poll::Ready(accepted) = listener.poll_accept(context) {
                let port = port.clone();
                self.first_polled = (self.first_polled + after + 1) % self.listeners.len();
                return Poll::Ready((accepted, port));
            }
        }
        Poll::Pending
    }

    /// Returns the next connection that is already queued.
    async fn next_connection(&mut self) -> Option<(io::Result<(TcpStream, SocketAddr)>, P)> {
        let next = poll_fn(|context| match self.poll_accept(context) {
            Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
            Poll::Pending => Poll::Ready(None),
        });
        tokio::task::unconstrained(next).await
    }
}
