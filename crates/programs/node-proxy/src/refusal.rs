//! Rejects captured connections that cannot be served: accepts, and then resets them.
//!
//! Without the mesh, a client sees while connecting whether a port is open, and only afterwards
//! whether the server accepts the client. A denial by policy is of the latter kind: the client's
//! `connect` succeeds, for every policy and on both sides; reading or writing fails.

use std::time::Duration;

use tokio::{net::TcpStream, time::timeout};

/// Delay of the reset for a silent client: long enough for its `connect` to return.
const RESET_DELAY: Duration = Duration::from_millis(100);

/// Resets an application's connection once the application's `connect` has certainly returned: after the first byte
/// that it sends, or after [`RESET_DELAY`].
pub(crate) async fn reset_after_delay(stream: TcpStream) {
    // An earlier reset may be faster than the application's thread, whose `connect` would fail
    // then.
    let _silent = timeout(RESET_DELAY, stream.peek(&mut [0])).await;
    drop(stream);
}
