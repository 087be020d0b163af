//! Receive windows of HBONE connections, and what they cost: what may be sent in tunnels and is not read is charged as the
//! windows allow it, not as it comes.
//!
//! The tunnels of a connection share a part of what is left of the budgets, so that a few connections have large windows,
//! and many have small ones. The rest that a connection's window has grows with its tunnels.

use ambit_hbone::{DialError, Settings, pool::Reserved};
use ambit_model::Reason;
use parking_lot::Mutex;

use crate::memory::{ConnectionMemory, Exhausted, Permit, Use};

/// Bytes that the tunnels of a connection share at least.
const MIN_SHARED: usize = 64 << 10;
/// Smallest receive window of one tunnel.
const MIN_WINDOW: u32 = 16 << 10;
/// Bytes of one tunnel that wait to be written to its connection.
const MAX_SEND_BUFFER: usize = 32 << 10;
/// What a tunnel takes besides what it carries.
const TUNNEL_BYTES: usize = 16 << 10;

/// Bytes that one tunnel costs, besides the window that it adds to its connection.
pub(crate) const COST: usize = TUNNEL_BYTES + MAX_SEND_BUFFER;

/// The limits of a new connection of a caller, or for one.
pub(crate) fn settings(configured: &Settings, memory: &ConnectionMemory) -> Settings {
    let shared = memory.share_of_windows().max(MIN_SHARED);
    let shared = u32::try_from(shared).unwrap_or(u32::MAX);
    let shared = configured.connection_window.min(shared);
    Settings {
        connection_window: shared,
        stream_window: configured.stream_window.min(shared),
        min_stream_window: MIN_WINDOW,
        frame_size: configured.frame_size.min(shared),
        send_buffer: MAX_SEND_BUFFER,
        ..configured.clone()
    }
}

/// What a caller's connection may send without being read, whomever it calls for.
#[derive(Debug)]
pub(crate) struct ReceiveWindows {
    permit: Permit,
    /// What each tunnel adds.
    of_tunnel: usize,
    /// Most tunnels that were open at once.
    peak: usize,
}

impl ReceiveWindows {
    /// Charges a connection without tunnels.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn open(settings: &Settings, memory: &ConnectionMemory) -> Result<Self, Exhausted> {
        Ok(Self {
            permit: memory.open(settings.server_bytes())?,
            of_tunnel: settings.stream_bytes(),
            peak: 0,
        })
    }

    /// Charges a tunnel, if there were never so many: the window of the connection grows with it, and does not shrink
    /// when it ends.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn grow(&mut self, open: usize, memory: &ConnectionMemory) -> Result<(), Exhausted> {
        if open > self.peak {
            memory.grow(Use::Connection, &mut self.permit, self.of_tunnel)?;
            self.peak = open;
        }
        Ok(())
    }
}

/// What an endpoint behind a tunnel may send without being read, which is the caller's for whom it is opened. Other
/// callers' tunnels on the same connection are charged to them.
#[derive(Debug)]
pub(crate) struct UpstreamWindows<'a> {
    memory: &'a ConnectionMemory,
    settings: Settings,
    /// For the connection, if it is a new one.
    connection: Mutex<Option<Permit>>,
    tunnel: Option<Permit>,
}

impl<'a> UpstreamWindows<'a> {
    /// Charges a tunnel and a new connection for it.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn open(
        configured: &Settings,
        memory: &'a ConnectionMemory,
    ) -> Result<Self, Exhausted> {
        let settings = settings(configured, memory);
        let tunnel = memory.open_upstream(COST + settings.stream_bytes())?;
        let connection = memory.open_upstream(settings.client_bytes())?;
        Ok(Self {
            memory,
            settings,
            connection: Mutex::new(Some(connection)),
            tunnel: Some(tunnel),
        })
    }

    /// What is to be held as long as the tunnel lasts.
    pub(crate) fn tunnel(&mut self) -> Option<Permit> {
        self.tunnel.take()
    }

    /// The limits of a new connection, and what is to be held as long as it lasts: for the first one that was charged
    /// already, so that nobody else who waits for it fails for want of room.
    pub(crate) fn connection(&self) -> Result<Option<Reserved>, DialError> {
        let charged = self.connection.lock().take();
        let permit = match charged {
            Some(permit) => permit,
            None => {
                let taken = self.memory.open_upstream(self.settings.client_bytes());
                taken.map_err(|full| DialError::Prepare {
                    text: "no room for a connection",
                    reason: Reason::Connect,
                    source: Box::new(full),
                })?
            }
        };
        Ok(Some(Reserved {
            settings: self.settings.clone().into(),
            permit: Box::new(permit),
        }))
    }
}
