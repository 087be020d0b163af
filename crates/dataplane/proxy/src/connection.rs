//! Life of one proxied connection: it is [opened](Opening), relayed ([`Established`]), and its [`Report`] is written
//! at its end.

use std::{error::Error, pin::pin};

use ambit_hbone::{RelayError, Reversed, Tunnel, relay_plain, relay_tunnel, relay_tunnels};
use ambit_model::Reason;
use ambit_rt::OpenWork;
use ambit_sys::socket;
use tokio::net::TcpStream;

use crate::{
    connection_table::{Cut, Tracked},
    dial::Inner,
    report::Report,
};

/// Error of opening a proxied connection.
pub trait Failure: Error + From<Cut> + 'static {
    /// Returns the low-cardinality reason, for metrics and the access log.
    fn reason(&self) -> Reason;
    /// Returns the policy that denied the connection, `namespace/name`.
    fn policy(&self) -> Option<String> {
        None
    }
}

/// Connection in setup; it is listed in the connection table and reported whatever its outcome.
#[derive(Debug)]
pub struct Opening {
    /// Access log, metrics and flow events of the connection so far.
    pub report: Report,
    /// Entry of the connection in the connection table.
    pub tracked: Tracked,
    /// Guard that keeps the drain waiting for this connection.
    pub open: OpenWork,
}

impl Opening {
    /// Records that both sides are connected. `near` is the application's side, whose bytes are reported as sent.
    pub fn established(mut self, near: impl Into<End>, far: impl Into<End>) -> Established {
        self.report.opened();
        Established {
            near: near.into(),
            far: far.into(),
            report: self.report,
            tracked: self.tracked,
            _open: self.open,
        }
    }

    /// Reports that the connection failed.
    pub fn failed(mut self, error: &impl Failure) {
        self.report.refused_by(error.policy());
        self.report.failed(error, error.reason());
    }
}

/// Transport of one side of a relayed connection.
#[derive(Debug)]
pub enum End {
    /// A TCP socket.
    Plain(TcpStream),
    /// An HBONE tunnel.
    Tunnel(Tunnel),
    /// An HBONE tunnel inside another tunnel.
    Inner(Box<Inner>),
}

impl From<TcpStream> for End {
    fn from(stream: TcpStream) -> Self {
        Self::Plain(stream)
    }
}

impl From<Tunnel> for End {
    fn from(tunnel: Tunnel) -> Self {
        Self::Tunnel(tunnel)
    }
}

/// Borrowed transport of one side of the relay.
enum Side<'a> {
    Socket(&'a mut TcpStream),
    Tunnel(&'a mut Tunnel),
}

impl End {
    fn side(&mut self) -> Side<'_> {
        match self {
            Self::Plain(stream) => Side::Socket(stream),
            Self::Tunnel(tunnel) => Side::Tunnel(tunnel),
            Self::Inner(inner) => Side::Tunnel(inner.tunnel()),
        }
    }

    /// Copies between the application's side (`self`) and `far` until both directions have ended.
    async fn relay(&mut self, far: &mut Self, report: &Report) -> Result<(), RelayError> {
        match (self.side(), far.side()) {
            (Side::Socket(near), Side::Socket(far)) => relay_plain(near, far, report).await,
            (Side::Socket(near), Side::Tunnel(far)) => relay_tunnel(near, far, report).await,
            (Side::Tunnel(near), Side::Socket(far)) => {
                relay_tunnel(far, near, Reversed(report)).await
            }
            (Side::Tunnel(near), Side::Tunnel(far)) => relay_tunnels(near, far, report).await,
        }
    }

    /// Marks both directions as closed in order, so that dropping the socket does not reset it.
    fn end_in_order(&self) {
        if let Self::Plain(stream) = self {
            socket::end_in_order(stream);
        }
    }

    /// Resets this side of a broken or terminated connection. Sockets are reset when they are dropped.
    fn reset(&mut self) {
        if let Side::Tunnel(tunnel) = self.side() {
            tunnel.reset();
        }
    }
}

/// Connection that is open on both sides, ready to be relayed.
#[derive(Debug)]
pub struct Established {
    near: End,
    far: End,
    report: Report,
    tracked: Tracked,
    _open: OpenWork,
}

impl Established {
    /// Relays until both directions have ended, the connection breaks, or it is terminated; the value must then be
    /// dropped. The method borrows the value, since a copy of it in the future would double the memory of a
    /// connection.
    pub async fn relay(&mut self) {
        let Self {
            near,
            far,
            report,
            tracked,
            ..
        } = self;
        let result = tracked.unless_cut(pin!(near.relay(far, report))).await;
        match result {
            Ok(Ok(())) => {
                near.end_in_order();
                return far.end_in_order();
            }
            Ok(Err(error)) => report.failed(&error, error.reason()),
            Err(cut) => report.failed(&cut, cut.reason()),
        }
        near.reset();
        far.reset();
    }
}
