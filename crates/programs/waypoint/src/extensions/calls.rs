//! Calls that plugins make.

use ambit_wasm::{Call, CallResponse};

use crate::waypoint::Shard;

/// Makes a call; without an answer the plugin gets an empty one.
pub(super) async fn make(_: &Shard, plugin: &str, call: Call) -> CallResponse {
    tracing::warn!(plugin, upstream = call.upstream, "a plugin's call came to nothing");
    CallResponse::default()
}
