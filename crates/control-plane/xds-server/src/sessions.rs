//! Table of open streams, for debug pages and Istio's tools.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use ambit_caller_auth::Caller;
use parking_lot::Mutex;

use crate::{node::NodeInfo, session::SubscriptionStatus};

/// Table of open streams, by a stream number that is unique in this process.
pub type SessionTable = Arc<Mutex<BTreeMap<u64, SessionStatus>>>;

/// State of one stream.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// Node metadata, once the client has identified itself.
    pub node: Option<NodeInfo>,
    /// Caller that the token authenticated.
    pub caller: Caller,
    /// Source address of the connection.
    pub peer_address: String,
    /// Time at which the stream was opened.
    pub opened_at: SystemTime,
    /// Subscriptions of the client.
    pub subscriptions: Vec<SubscriptionStatus>,
}
