//! The limits of HTTP/2 connections, both roles.

use std::time::Duration;

/// HTTP/2 limits and timers. The defaults are what the other implementations of HBONE use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes a peer may send on one stream before we have consumed them.
    pub stream_window: u32,
    /// The same for all streams of a connection. Several times the stream's, or one stalled stream
    /// starves its siblings.
    pub connection_window: u32,
    /// Largest frame we take, 16 KiB to 16 MiB.
    pub frame_size: u32,
    /// Bytes that may wait in HTTP/2 to be written, a stream.
    pub send_buffer: usize,
    /// Streams a client connection carries at most (the peer may allow fewer).
    pub max_streams: usize,
    /// Streams a peer may open towards us at once.
    pub max_peer_streams: u32,
    /// Longest header list a peer may send us in a request.
    pub max_request_headers: u32,
    /// Longest header list a peer may send us in a response.
    pub max_response_headers: u32,
    /// A connection is asked for a sign of life this often.
    pub ping_interval: Duration,
    /// And given up without one after this.
    pub ping_timeout: Duration,
    /// TLS and HTTP/2 must be set up within this, each.
    pub handshake_timeout: Duration,
    /// TCP must be connected within this.
    pub connect_timeout: Duration,
    /// A pooled connection that served no new tunnel for this long is closed.
    pub idle_release: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stream_window: 4 << 20,
            connection_window: 16 << 20,
            frame_size: 1 << 20,
            send_buffer: 400 << 10,
            max_streams: 100,
            max_peer_streams: 200,
            max_request_headers: 64 << 10,
            max_response_headers: 16 << 10,
            ping_interval: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(20),
            handshake_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            idle_release: Duration::from_secs(300),
        }
    }
}
