//! Flow events: what node proxies and waypoints stream of connections and requests while somebody reads, one JSON object
//! a line, and the filters of readers. Ambit's own contract: nobody else writes or reads it.

#![forbid(unsafe_code)]

mod event;
mod filter;

pub use event::{
    Event, Flow, Peer, Refusal, Reporter, ReporterKind, RequestSummary, ServiceName, StreamItem,
    Transport,
};
pub use filter::{Filter, FilterError, Party};
