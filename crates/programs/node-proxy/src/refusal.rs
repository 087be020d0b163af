//! How connections end that cannot be served: accepted, and then reset.
//!
//! Without the mesh, whether a port is open shows while a connection is being opened, and what a server makes of a
//! client shows afterwards. Policies are the latter: the client's `connect` succeeds, for every policy and at both
//! ends; reading or writing fails.

use std::time::Duration;

use tokio::{net::TcpStream, time::timeout};

/// Delay of the reset for a silent client: long enough for its `connect` to return.
const ACCEPTED: Duration = Duration::from_millis(100);

/// Resets a connection from an application once its opening is over for the application, too: when it has sent something,
/// or after a moment.
pub(crate) async fn reset(stream: TcpStream) {
    // Without it the reset may be faster than the application's thread, whose `connect` would fail then.
    let _silent = timeout(ACCEPTED, stream.peek(&mut [0])).await;
    drop(stream);
}
