//! Bodies of responses before they are streamed.

use hyper::body::Incoming;
use tokio::time::Instant;

use super::{
    admit::admission::Admission,
    body::{idle::IdleTimeout, interim::EarlyResponseGuard},
};
use crate::message::Body;

/// Body of a response.
pub(super) enum ResponseBody {
    /// Body of the waypoint's own response.
    Own(Body),
    /// Body of the application's response.
    Application(ApplicationBody),
}

/// Body of an application's response, which ends when policies no longer admit the request.
pub(super) struct ApplicationBody {
    pub(super) incoming: Incoming,
    pub(super) admission: Admission,
    pub(super) deadline: Option<Instant>,
    pub(super) early: EarlyResponseGuard,
    pub(super) idle: IdleTimeout,
}
