//! Lifecycle of one proxied connection: setup ([`ConnectionSetup`]), relay ([`EstablishedConnection`]), and the
//! [`Report`] at its end.

use std::{error::Error, pin::pin};

use ambit_hbone::{RelayError, ReversedMeter, Tunnel, relay_plain, relay_tunnel, relay_tunnels};
use ambit_model::FailureReason;
use ambit_rt::OpenWork;
use ambit_sys::socket;
use futures_util::future::Either;
use tokio::net::TcpStream;

use crate::{
    connection_table::{TerminationReason, TrackedConnection},
    dial::NestedTunnel,
    report::Report,
};

/// Error of opening a proxied connection.
pub trait ConnectionFailure: Error + From<TerminationReason> + 'static {
    /// Returns the low-cardinality reason, for metrics and the access log.
    fn reason(&self) -> FailureReason;
    /// Returns the policy that denied the connection, `namespace/name`.
    fn policy(&self) -> Option<String> {
        None
    }
}

/// Connection in setup; it is listed in the connection table and reported whatever its outcome.
#[derive(Debug)]
pub struct ConnectionSetup {
    /// Report of the connection: access log, metrics and flow events.
    pub report: Report,
    /// Entry of the connection in the connection table.
    pub tracked_connection: TrackedConnection,
    /// Guard that keeps the drain waiting for this connection.
    pub drain_guard: OpenWork,
}

impl ConnectionSetup {
    /// Reports that both sides are connected, and returns the connection for the relay. `near` is the application's
    /// side, whose bytes are reported as sent.
    pub fn into_established(
        mut self,
        near: impl Into<RelayTransport>,
        far: impl Into<RelayTransport>,
    ) -> EstablishedConnection {
        self.report.record_established();
        EstablishedConnection {
            app_side: near.into(),
            peer_side: far.into(),
            report: self.report,
            tracked: self.tracked_connection,
            _drain_guard: self.drain_guard,
        }
    }

    /// Reports that the connection failed.
    pub fn report_failure(mut self, error: &impl ConnectionFailure) {
        self.report
            .record_failure(error, error.reason(), error.policy());
    }
}

/// Transport of one side of a relayed connection.
#[derive(Debug)]
pub enum RelayTransport {
    /// TCP socket to a client or server.
    Plain(TcpStream),
    /// HBONE tunnel to a peer.
    Tunnel(Tunnel),
    /// An HBONE tunnel inside another tunnel.
    NestedTunnel(Box<NestedTunnel>),
}

impl From<TcpStream> for RelayTransport {
    fn from(stream: TcpStream) -> Self {
        Self::Plain(stream)
    }
}

impl From<Tunnel> for RelayTransport {
    fn from(tunnel: Tunnel) -> Self {
        Self::Tunnel(tunnel)
    }
}

/// Borrowed transport of one side of the relay.
enum TransportRef<'a> {
    Socket(&'a mut TcpStream),
    Tunnel(&'a mut Tunnel),
}

impl RelayTransport {
    fn transport_ref(&mut self) -> TransportRef<'_> {
        match self {
            Self::Plain(stream) => TransportRef::Socket(stream),
            Self::Tunnel(tunnel) => TransportRef::Tunnel(tunnel),
            Self::NestedTunnel(inner) => TransportRef::Tunnel(inner.tunnel()),
        }
    }

    /// Copies between the application's side (`self`) and `far` until both directions have ended.
    fn relay(
        &mut self,
        far: &mut Self,
        report: &Report,
    ) -> impl Future<Output = Result<(), RelayError>> {
        // An async function would hold its arguments beside each of these futures.
        match (self.transport_ref(), far.transport_ref()) {
            (TransportRef::Socket(near), TransportRef::Socket(far)) => {
                Either::Left(Either::Left(relay_plain(near, far, report)))
            }
            (TransportRef::Socket(near), TransportRef::Tunnel(far)) => {
                Either::Left(Either::Right(relay_tunnel(near, far, report)))
            }
            (TransportRef::Tunnel(near), TransportRef::Socket(far)) => {
                let relay = relay_tunnel(far, near, ReversedMeter(report));
                Either::Right(Either::Left(relay))
            }
            // The future is boxed, since it is larger than the usual ones and would enlarge all tasks.
            (TransportRef::Tunnel(near), TransportRef::Tunnel(far)) => {
                let relay = Box::pin(relay_tunnels(near, far, report));
                Either::Right(Either::Right(relay))
            }
        }
    }

    /// Marks both directions as closed in order, so that dropping the socket does not reset it.
    fn close_without_reset(&self) {
        if let Self::Plain(stream) = self {
            socket::close_without_reset(stream);
        }
    }

    /// Resets this side of a broken or terminated connection. Sockets are reset when they are dropped.
    fn reset(&mut self) {
        if let TransportRef::Tunnel(tunnel) = self.transport_ref() {
            tunnel.reset();
        }
    }
}

/// Returns the future of a connection's task: `setup` opens the connection, which is then relayed until it ends.
///
/// Setup needs much more memory than relaying. It is boxed here, so that neither its state nor its arguments are a part
/// of the task while the connection is relayed.
pub fn serve_connection(
    setup: impl Future<Output = Option<EstablishedConnection>> + Send,
) -> impl Future<Output = ()> + Send {
    let setup = Box::pin(setup);
    async move {
        let Some(mut connection) = setup.await else {
            return;
        };
        connection.relay().await;
    }
}

/// Connection that is open on both sides, ready to be relayed.
#[derive(Debug)]
pub struct EstablishedConnection {
    app_side: RelayTransport,
    peer_side: RelayTransport,
    report: Report,
    tracked: TrackedConnection,
    _drain_guard: OpenWork,
}

impl EstablishedConnection {
    /// Relays until both directions have ended, the connection breaks, or it is terminated; the value must then be
    /// dropped. The method borrows the value, since a copy of it in the future would double the memory of a
    /// connection.
    pub async fn relay(&mut self) {
        let result = {
            // In a block of their own, the references are no part of the future while it waits.
            let Self {
                app_side: near,
                peer_side: far,
                report,
                tracked,
                ..
            } = self;
            let relay = pin!(near.relay(far, report));
            tracked.run_until_terminated(relay).await
        };
        match result {
            Ok(Ok(())) => {
                self.app_side.close_without_reset();
                return self.peer_side.close_without_reset();
            }
            Ok(Err(error)) => self.report.record_failure(&error, error.reason(), None),
            Err(cut) => self.report.record_failure(&cut, cut.reason(), None),
        }
        self.app_side.reset();
        self.peer_side.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum size of the future of a connection's task in bytes. With tokio's state of a task, a larger one takes 896
    /// bytes from the allocator instead of 768.
    const MAX_TASK_BYTES: usize = 648;

    #[test]
    fn tasks_of_connections_are_small() {
        let setup = async {
            let arguments = [0_u8; 4096];
            std::future::pending::<()>().await;
            std::hint::black_box(&arguments);
            None
        };
        let size = size_of_val(&serve_connection(setup));
        assert!(size <= MAX_TASK_BYTES, "{size} bytes");
    }
}
