//! Limits and timers of HBONE connections, on the client and server side.

use std::time::Duration;

/// HTTP/2 limits and timers. The defaults are those of other HBONE implementations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Receive window of a stream while few streams are open, in bytes.
    pub stream_window: u32,
    /// Receive-window budget of a connection, in bytes, which its streams share: the more streams are open, the smaller
    /// the window of each, down to `min_stream_window`. The announced connection window is larger, so that stalled
    /// streams never starve others.
    pub connection_window: u32,
    /// Maximum receive window of a stream in bytes, to which `stream_window` grows while bytes arrive faster than it allows
    /// on a long path. Windows grow only on connections with a permit.
    pub max_stream_window: u32,
    /// Maximum receive-window budget in bytes, to which `connection_window` grows likewise.
    pub max_connection_window: u32,
    /// Minimum receive window of a stream in bytes, however many streams are open. Each further stream grows the
    /// connection window by this amount.
    pub min_stream_window: u32,
    /// Maximum size of a received HTTP/2 frame in bytes, from 16 KiB to 16 MiB.
    pub max_frame_bytes: u32,
    /// Maximum bytes of one stream in HTTP/2's send queue.
    pub max_send_buffer_bytes: usize,
    /// Maximum streams on a client connection (the peer may allow fewer).
    pub max_streams: usize,
    /// Maximum concurrent streams that a client may open on a server connection.
    pub max_peer_streams: u32,
    /// Maximum header list size of a request, in bytes.
    pub max_request_header_bytes: u32,
    /// Maximum header list size of a response, in bytes.
    pub max_response_header_bytes: u32,
    /// Interval of PINGs on a connection.
    pub ping_interval: Duration,
    /// PING timeout after which the connection is closed.
    pub ping_timeout: Duration,
    /// Timeout of the TLS handshake and of the HTTP/2 handshake, each.
    pub handshake_timeout: Duration,
    /// Timeout for establishing the TCP connection.
    pub connect_timeout: Duration,
    /// Idle timeout of a pooled connection: when no tunnel was opened on it for this time, it leaves the pool, and
    /// closes with its last tunnel.
    pub idle_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stream_window: 4 << 20,
            connection_window: 16 << 20,
            max_stream_window: 4 << 20,
            max_connection_window: 16 << 20,
            min_stream_window: 128 << 10,
            max_frame_bytes: 1 << 20,
            max_send_buffer_bytes: 400 << 10,
            max_streams: 100,
            max_peer_streams: 200,
            max_request_header_bytes: 16 << 10,
            max_response_header_bytes: 16 << 10,
            ping_interval: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(20),
            handshake_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(300),
        }
    }
}
