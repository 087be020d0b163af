//! Flow events: the events of connections and requests that node proxies and waypoints stream to readers, one JSON
//! object a line, and the filters of readers. Ambit's own contract, without other implementations.

#![forbid(unsafe_code)]

mod event;
mod filter;

pub use event::{
    Event, Flow, Peer, Refusal, Reporter, ReporterKind, RequestSummary, ServiceName, StreamItem,
    Transport,
};
pub use filter::{Filter, FilterError, Party};
