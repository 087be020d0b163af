//! The answer of an exchange, before its body is on its way.

use hyper::body::Incoming;
use tokio::time::Instant;

use super::{admission::Admission, idle::IdleTimeout, interim::AnsweredEarly};
use crate::message::Body;

/// Body of a response.
pub(super) enum Answer {
    /// Body of the waypoint's own response.
    Own(Body),
    /// The application's, as long as policies admit it, and until a deadline.
    Hops(
        Incoming,
        Admission,
        Option<Instant>,
        (AnsweredEarly, IdleTimeout),
    ),
}
