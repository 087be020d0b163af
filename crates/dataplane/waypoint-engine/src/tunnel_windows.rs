//! Receive windows of HBONE connections and their memory: unread bytes of tunnels are charged in advance, as the
//! windows allow them.
//!
//! The tunnels of a connection share a part of the free budget, so that a few connections have large windows, and many
//! have small ones. The remaining window of a connection grows with its tunnels.

use ambit_hbone::{DialError, Settings, pool::Reserved};
use ambit_model::Reason;
use parking_lot::Mutex;

use crate::memory::{ConnectionMemory, Exhausted, Permit, Use, WindowShares};

/// Minimum number of bytes that the tunnels of a connection share.
const MIN_SHARED_BYTES: usize = 64 << 10;
/// Parts of the free budgets of a caller and of the process that the tunnels of one connection share. The total of its
/// windows is less than four times as much. Connections to endpoints are numerous, and are kept open for further
/// tunnels.
const CONNECTION_SHARES: WindowShares = WindowShares {
    of_caller: 64,
    of_process: 1024,
};
const UPSTREAM_SHARES: WindowShares = WindowShares {
    of_caller: 512,
    of_process: 4096,
};
/// Smallest receive window of one tunnel.
const MIN_WINDOW_BYTES: u32 = 16 << 10;
/// Bytes of one tunnel that are buffered for sending.
const MAX_SEND_BUFFER_BYTES: usize = 32 << 10;
/// Charged bytes of a tunnel in addition to its windows and buffers.
const TUNNEL_BYTES: usize = 16 << 10;

/// Charged bytes of one tunnel, without the window that it adds to its connection.
pub(crate) const TUNNEL_COST_BYTES: usize = TUNNEL_BYTES + MAX_SEND_BUFFER_BYTES;

/// Returns the HTTP/2 settings of a new connection, from the caller's free budget.
pub(crate) fn settings(configured: &Settings, memory: &ConnectionMemory) -> Settings {
    within(configured, memory.share_of_windows(CONNECTION_SHARES))
}

/// Returns the HTTP/2 settings of a connection whose tunnels share this many bytes.
fn within(configured: &Settings, shared: usize) -> Settings {
    let shared = u32::try_from(shared.max(MIN_SHARED_BYTES)).unwrap_or(u32::MAX);
    let shared = configured.connection_window.min(shared);
    Settings {
        connection_window: shared,
        stream_window: configured.stream_window.min(shared),
        min_stream_window: MIN_WINDOW_BYTES,
        frame_size: configured.frame_size.min(shared),
        send_buffer: MAX_SEND_BUFFER_BYTES,
        ..configured.clone()
    }
}

/// Receive windows of a caller's connection to this waypoint or of calls on its behalf.
#[derive(Debug)]
pub(crate) struct ReceiveWindows {
    permit: Permit,
    /// Window bytes that each tunnel adds.
    of_tunnel: usize,
    /// Maximum number of concurrent tunnels so far.
    peak: usize,
}

impl ReceiveWindows {
    /// Charges a connection without tunnels.
    ///
    /// # Errors When a budget has no room.
    pub(crate) fn open(settings: &Settings, memory: &ConnectionMemory) -> Result<Self, Exhausted> {
        Ok(Self {
            permit: memory.open(settings.server_bytes())?,
            of_tunnel: settings.stream_bytes(),
            peak: 0,
        })
    }

    /// Charges a tunnel if it raises the peak: the window of the connection grows with the number of tunnels, and does
    /// not shrink when they end.
    ///
    /// # Errors When a budget has no room.
    pub(crate) fn grow(&mut self, open: usize, memory: &ConnectionMemory) -> Result<(), Exhausted> {
        if open > self.peak {
            memory.grow(Use::Connection, &mut self.permit, self.of_tunnel)?;
            self.peak = open;
        }
        Ok(())
    }
}

/// Receive windows of a connection to an endpoint behind a tunnel, charged to the caller for whom it is opened. Tunnels
/// of other callers on the same connection are charged to those callers.
#[derive(Debug)]
pub(crate) struct UpstreamWindows<'a> {
    memory: &'a ConnectionMemory,
    configured: &'a Settings,
    /// Permit of a connection with minimal windows, in case a new one is needed.
    connection: Mutex<Option<Permit>>,
    tunnel: Option<Permit>,
}

impl<'a> UpstreamWindows<'a> {
    /// Charges a tunnel, and a connection with minimal windows.
    ///
    /// # Errors When the budget has no room.
    pub(crate) fn open(
        configured: &'a Settings,
        memory: &'a ConnectionMemory,
    ) -> Result<Self, Exhausted> {
        let smallest = within(configured, MIN_SHARED_BYTES);
        let tunnel = memory.open_upstream(TUNNEL_COST_BYTES + smallest.stream_bytes())?;
        let connection = memory.open_upstream(smallest.client_bytes())?;
        Ok(Self {
            memory,
            configured,
            connection: Mutex::new(Some(connection)),
            tunnel: Some(tunnel),
        })
    }

    /// Returns the permit of one tunnel, held for its lifetime.
    pub(crate) fn tunnel(&mut self) -> Option<Permit> {
        self.tunnel.take()
    }

    /// Returns the settings of a new connection with its permits. Without room, the first connection gets minimal
    /// windows, so that the tunnels that wait for it do not fail.
    pub(crate) fn connection(&self) -> Result<Option<Reserved>, DialError> {
        let charged = self.connection.lock().take();
        let smallest = within(self.configured, MIN_SHARED_BYTES);
        let mut permit = charged.map_or_else(
            || {
                let taken = self.memory.open_upstream(smallest.client_bytes());
                taken.map_err(|full| DialError::Prepare {
                    text: "no room for a connection",
                    reason: Reason::Connect,
                    source: Box::new(full),
                })
            },
            Ok,
        )?;
        let shared = self.memory.share_of_windows(UPSTREAM_SHARES);
        let settings = within(self.configured, shared);
        let more = settings
            .client_bytes()
            .saturating_sub(smallest.client_bytes());
        let settings = permit.grow(more).map_or(smallest, |()| settings);
        Ok(Some(Reserved {
            settings: settings.into(),
            permit: Box::new(permit),
        }))
    }
}
