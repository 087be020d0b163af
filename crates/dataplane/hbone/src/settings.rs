//! The limits of HTTP/2 connections, both roles.

use std::time::Duration;

/// HTTP/2 limits and timers. The defaults are those of the other implementations of HBONE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes a peer may send on one stream before we have consumed them, while few streams are open.
    pub stream_window: u32,
    /// Bytes that the streams of a connection share: the more are open, the smaller the window of each, down to
    /// `min_stream_window`. The window of the connection is larger, so that stalled streams never starve their
    /// siblings.
    pub connection_window: u32,
    /// Smallest window of a stream, however many are open. The window of the connection grows by as much with each
    /// stream that is open beside others.
    pub min_stream_window: u32,
    /// Maximum frame size that is accepted, 16 KiB to 16 MiB.
    pub frame_size: u32,
    /// Bytes of a stream that may wait in HTTP/2 to be written.
    pub send_buffer: usize,
    /// Maximum streams of a client connection (the peer may allow fewer).
    pub max_streams: usize,
    /// Maximum concurrent streams of a peer.
    pub max_peer_streams: u32,
    /// Maximum header list size in a request.
    pub max_request_headers: u32,
    /// Maximum header list size in a response.
    pub max_response_headers: u32,
    /// Interval of PINGs on a connection.
    pub ping_interval: Duration,
    /// PING timeout after which the connection is closed.
    pub ping_timeout: Duration,
    /// Time limit for setting up TLS and HTTP/2, each.
    pub handshake_timeout: Duration,
    /// Time limit for connecting TCP.
    pub connect_timeout: Duration,
    /// A pooled connection that served no new tunnel for this long is closed.
    pub idle_release: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stream_window: 4 << 20,
            connection_window: 16 << 20,
            min_stream_window: 128 << 10,
            frame_size: 1 << 20,
            send_buffer: 400 << 10,
            max_streams: 100,
            max_peer_streams: 200,
            max_request_headers: 16 << 10,
            max_response_headers: 16 << 10,
            ping_interval: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(20),
            handshake_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            idle_release: Duration::from_secs(300),
        }
    }
}
