//! Bodies of responses before they are streamed to the client.

use hyper::body::Incoming;
use tokio::time::Instant;

use super::{
    admit::admission::Admission,
    body::{idle::IdleTimeout, interim::EarlyResponseGuard},
};
use crate::message::Body;

/// Body of a response, generated here or streamed from the application.
pub(super) enum ResponseBody {
    /// Body that the waypoint itself, a plugin or an authorization provider has generated.
    Generated(Body),
    /// Body that an application streams.
    Streamed(ApplicationBody),
}

/// Body of an application's response, which is terminated when changed policies deny the request.
pub(super) struct ApplicationBody {
    pub(super) incoming: Incoming,
    pub(super) admission: Admission,
    pub(super) deadline: Option<Instant>,
    pub(super) early_response: EarlyResponseGuard,
    pub(super) idle_timeout: IdleTimeout,
}
