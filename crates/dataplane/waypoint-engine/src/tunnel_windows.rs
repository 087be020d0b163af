//! Receive windows of HBONE connections, which are charged to memory budgets in advance, since the peer may send as
//! many bytes as the windows allow.
//!
//! The tunnels of one connection share a part of the free budget: with few connections each has large windows, with
//! many connections small ones. A connection's charged window grows with its number of tunnels, and with the rate at
//! which bytes arrive within a part of the budget: windows limit the rate on a long path, and small ones cost time on a
//! short one.

use ambit_hbone::{DialError, Permit, Settings, pool::ConnectionReservation};
use ambit_model::FailureReason;

use crate::memory::{
    BudgetExhausted, ChargePurpose, ConnectionMemory, MemoryAccount, MemoryPermit,
};

/// Minimum number of window bytes that the tunnels of one connection share.
const MIN_SHARED_BYTES: usize = 64 << 10;
/// Divisor for the receive windows of downstream connections. The caller's free budget divided by it bounds the bytes
/// that the tunnels of one connection share; all windows of the connection together have less than four times as many.
/// Connections to endpoints get a smaller part, since they are numerous and stay open for further tunnels.
const DOWNSTREAM_WINDOW_DIVISOR: usize = 768;
const UPSTREAM_WINDOW_DIVISOR: usize = 3072;
/// Maximum number of window bytes that the tunnels of one connection share after it has grown. All windows of such a
/// connection together have five times as many.
const MAX_GROWN_BYTES: u32 = 4 << 20;
/// Minimum receive window of one tunnel, in bytes.
const MIN_WINDOW_BYTES: u32 = 16 << 10;
/// Maximum number of bytes of one tunnel that wait to be sent.
const MAX_SEND_BUFFER_BYTES: usize = 32 << 10;
/// Bytes charged for the state of a tunnel, in addition to its receive window and send buffer.
const TUNNEL_STATE_BYTES: usize = 16 << 10;

/// Bytes charged to the caller for one tunnel, without the receive window.
pub(crate) const TUNNEL_COST_BYTES: usize = TUNNEL_STATE_BYTES + MAX_SEND_BUFFER_BYTES;

/// Returns the HTTP/2 settings of a new downstream connection, with windows by the caller's free budget.
pub(crate) fn downstream_settings(configured: &Settings, memory: &ConnectionMemory) -> Settings {
    scaled_settings(configured, memory.window_bytes(DOWNSTREAM_WINDOW_DIVISOR))
}

/// Returns the HTTP/2 settings of a connection whose tunnels share this many window bytes.
fn scaled_settings(configured: &Settings, shared: usize) -> Settings {
    let shared = u32::try_from(shared.max(MIN_SHARED_BYTES)).unwrap_or(u32::MAX);
    let shared = configured.connection_window.min(shared);
    Settings {
        connection_window: shared,
        stream_window: configured.stream_window.min(shared),
        max_connection_window: configured.connection_window.min(MAX_GROWN_BYTES),
        max_stream_window: configured.stream_window.min(MAX_GROWN_BYTES),
        min_stream_window: MIN_WINDOW_BYTES,
        max_frame_bytes: configured.max_frame_bytes.min(shared),
        max_send_buffer_bytes: MAX_SEND_BUFFER_BYTES,
        ..configured.clone()
    }
}

/// Memory charge for the receive windows of one connection with tunnels, without those of its tunnels.
#[derive(Debug)]
pub(crate) struct ConnectionWindows {
    initial: MemoryPermit,
    growth: MemoryPermit,
}

impl ConnectionWindows {
    /// Returns the memory account that the windows are charged to.
    pub(crate) fn account(&self) -> &MemoryAccount {
        self.initial.account()
    }
}

impl Permit for ConnectionWindows {
    fn extend_to_larger_windows(&mut self, bytes: usize) -> bool {
        !self.account().is_mostly_charged() && self.growth.grow(bytes).is_ok()
    }
}

/// Memory charge for the receive windows of the tunnels of one downstream HBONE connection.
#[derive(Debug)]
pub(crate) struct ReceiveWindows {
    permit: MemoryPermit,
    /// Bytes by which each tunnel enlarges the charged window.
    bytes_per_tunnel: usize,
    /// Highest number of concurrent tunnels so far, for which memory is charged.
    peak_tunnels: usize,
}

impl ReceiveWindows {
    /// Charges the windows of a connection that has no tunnels yet. Returns the permit of the connection as well.
    ///
    /// # Errors
    /// When a budget has no room.
    pub(crate) fn charge_connection(
        settings: &Settings,
        memory: &ConnectionMemory,
    ) -> Result<(Self, ConnectionWindows), BudgetExhausted> {
        let connection = ConnectionWindows {
            initial: memory.charge_tunnel(settings.server_connection_window_bytes())?,
            growth: memory.growth_permit(),
        };
        let windows = Self {
            permit: memory.connections_account().empty_permit(),
            bytes_per_tunnel: settings.min_stream_window_bytes(),
            peak_tunnels: 0,
        };
        Ok((windows, connection))
    }

    /// Charges one more tunnel, if the number of concurrent tunnels exceeds its previous maximum: the window of the
    /// connection grows with the number of tunnels, and does not shrink when they end.
    ///
    /// # Errors
    /// When a budget has no room.
    pub(crate) fn grow(
        &mut self,
        open: usize,
        memory: &ConnectionMemory,
    ) -> Result<(), BudgetExhausted> {
        if open > self.peak_tunnels {
            memory.grow(
                ChargePurpose::Connection,
                &mut self.permit,
                self.bytes_per_tunnel,
            )?;
            self.peak_tunnels = open;
        }
        Ok(())
    }
}

/// Memory charges of a tunnel to an endpoint: of the tunnel itself, and of the connection that the pool opens for it, if it
/// opens one. Both are charged to the caller for whom they are opened; tunnels of other callers on the same connection are
/// charged to those callers.
#[derive(Debug)]
pub(crate) struct UpstreamWindows<'a> {
    memory: &'a ConnectionMemory,
    configured: &'a Settings,
    tunnel: Option<MemoryPermit>,
}

impl<'a> UpstreamWindows<'a> {
    /// Charges a tunnel, if the budget has room for a connection with minimal windows as well. The connection is charged
    /// when the pool opens it: a thousand tunnels that open at the same instant share a few.
    ///
    /// # Errors
    /// When the budget has no room, which metrics do not count.
    pub(crate) fn charge_tunnel(
        configured: &'a Settings,
        memory: &'a ConnectionMemory,
    ) -> Result<Self, BudgetExhausted> {
        let smallest = scaled_settings(configured, MIN_SHARED_BYTES);
        let tunnel = memory
            .charge_upstream_tunnel(TUNNEL_COST_BYTES + smallest.min_stream_window_bytes())?;
        memory.check_upstream_room(smallest.client_connection_window_bytes())?;
        Ok(Self {
            memory,
            configured,
            tunnel: Some(tunnel),
        })
    }

    /// Takes the memory permit of the tunnel, to be held as long as the tunnel is open.
    pub(crate) fn take_tunnel_permit(&mut self) -> Option<MemoryPermit> {
        self.tunnel.take()
    }

    /// Charges a new connection and returns its settings. If the budget has no room for usual windows, the connection gets
    /// minimal ones, so that tunnels that wait for it do not fail.
    ///
    /// # Errors
    /// When the budget has no room for these either; metrics count the failure.
    pub(crate) fn reserve_connection(&self) -> Result<Option<ConnectionReservation>, DialError> {
        let smallest = scaled_settings(self.configured, MIN_SHARED_BYTES);
        let charged = self
            .memory
            .charge_upstream_tunnel(smallest.client_connection_window_bytes());
        let mut permit = charged.map_err(|exhausted| {
            self.memory.count_upstream_refusal(exhausted);
            DialError::Prepare {
                text: "no room for a connection",
                reason: FailureReason::Connect,
                source: Box::new(exhausted),
            }
        })?;
        let shared = self.memory.window_bytes(UPSTREAM_WINDOW_DIVISOR);
        let settings = scaled_settings(self.configured, shared);
        let more = settings
            .client_connection_window_bytes()
            .saturating_sub(smallest.client_connection_window_bytes());
        let settings = permit.grow(more).map_or(smallest, |()| settings);
        Ok(Some(ConnectionReservation {
            settings: settings.into(),
            permit: Box::new(ConnectionWindows {
                initial: permit,
                growth: self.memory.growth_permit(),
            }),
        }))
    }
}
