//! Open streams, for debug pages and Istio's tools.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use ambit_caller_auth::Caller;
use parking_lot::Mutex;

use crate::{node::NodeInfo, session::SubscriptionStatus};

/// Open streams by their number.
pub type Sessions = Arc<Mutex<BTreeMap<u64, SessionStatus>>>;

/// State of one stream.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// Node metadata, once the client has identified itself.
    pub node: Option<NodeInfo>,
    /// Caller that the token has authenticated.
    pub caller: Caller,
    /// Address of the peer.
    pub peer: String,
    /// Time of the connection.
    pub since: SystemTime,
    /// Subscriptions of the client.
    pub subscriptions: Vec<SubscriptionStatus>,
}
