//! One connection's way through a proxy, once it is known what it is: it is [opened](Opening), relayed
//! ([`Established`]) and, with its [`Report`], ended.

use std::{error::Error, pin::pin};

use ambit_hbone::{RelayError, Tunnel, relay_plain, relay_tunnel};
use ambit_model::Reason;
use ambit_rt::OpenWork;
use ambit_sys::socket;
use tokio::net::TcpStream;

use crate::{
    connection_table::{Cut, Tracked},
    dial::Inner,
    report::Report,
};

/// Why a connection could not be opened.
pub trait Failure: Error + From<Cut> + 'static {
    /// The low-cardinality cause.
    fn reason(&self) -> Reason;
}

/// A connection that is being set up: on the list, and reported from here on, whatever comes of it.
#[derive(Debug)]
pub struct Opening {
    /// What is known of it so far.
    pub report: Report,
    /// Its entry on the list.
    pub tracked: Tracked,
    /// Shutdown waits for it.
    pub open: OpenWork,
}

impl Opening {
    /// Both ends are connected.
    pub fn established<F>(mut self, near: TcpStream, far: F) -> Established<F> {
        self.report.opened();
        Established {
            near,
            far,
            report: self.report,
            tracked: self.tracked,
            _open: self.open,
        }
    }

    /// It came to nothing.
    pub fn failed(mut self, error: &impl Failure) {
        self.report.failed(error, error.reason());
    }
}

/// What a connection is relayed to.
pub trait FarEnd {
    /// Copies between `near` and this until both directions have ended.
    fn relay(
        &mut self,
        near: &mut TcpStream,
        report: &Report,
    ) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// Both directions have ended: the socket, if it is one, is not to be reset any more.
    fn end_in_order(&self);

    /// The connection broke, or is cut. Sockets are reset when they are dropped.
    fn reset(&mut self);
}

impl FarEnd for Tunnel {
    fn relay(
        &mut self,
        near: &mut TcpStream,
        report: &Report,
    ) -> impl Future<Output = Result<(), RelayError>> + Send {
        relay_tunnel(near, self, report)
    }

    fn end_in_order(&self) {}

    fn reset(&mut self) {
        Self::reset(self);
    }
}

/// The far end of a connection that may go by any way.
#[derive(Debug)]
pub enum Far {
    /// As it came.
    Plain(TcpStream),
    /// Through a tunnel.
    Tunnel(Tunnel),
    /// Through a tunnel inside a tunnel.
    Inner(Box<Inner>),
}

impl FarEnd for Far {
    async fn relay(&mut self, near: &mut TcpStream, report: &Report) -> Result<(), RelayError> {
        match self {
            Self::Plain(far) => relay_plain(near, far, report).await,
            Self::Tunnel(tunnel) => relay_tunnel(near, tunnel, report).await,
            Self::Inner(inner) => relay_tunnel(near, inner.tunnel(), report).await,
        }
    }

    fn end_in_order(&self) {
        if let Self::Plain(far) = self {
            socket::end_in_order(far);
        }
    }

    fn reset(&mut self) {
        match self {
            Self::Plain(_) => {}
            Self::Tunnel(tunnel) => tunnel.reset(),
            Self::Inner(inner) => inner.tunnel().reset(),
        }
    }
}

/// What remains of a connection once it is set up. `near` is the end whose bytes are reported as the
/// application's.
#[derive(Debug)]
pub struct Established<F> {
    near: TcpStream,
    far: F,
    report: Report,
    tracked: Tracked,
    _open: OpenWork,
}

impl<F: FarEnd> Established<F> {
    /// Relays until both directions have ended, it breaks, or it is cut. To be dropped then. Takes it
    /// borrowed, as a copy of it in here would double the memory of a connection.
    pub async fn relay(&mut self) {
        let Self {
            near,
            far,
            report,
            tracked,
            ..
        } = self;
        let result = tracked.unless_cut(pin!(far.relay(near, report))).await;
        match result {
            Ok(Ok(())) => {
                socket::end_in_order(near);
                return far.end_in_order();
            }
            Ok(Err(error)) => report.failed(&error, error.reason()),
            Err(cut) => report.failed(&cut, cut.reason()),
        }
        far.reset();
    }
}
