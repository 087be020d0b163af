//! Server of delta xDS.
//!
//! [`resource`] lists the served resource types; [`encoded_record`] has one record as bytes; [`store`] has every record
//! once; [`scope`] decides which records a client sees; [`session`] is the state machine of one client, without IO;
//! [`batch`] has responses that clients share; [`service`] runs sessions over gRPC; [`node`] decides which callers may
//! open a session; `unknown_types` responds to clients of later versions; [`skew`] finds waypoints of earlier versions;
//! [`debug`] responds to Istio's tools, from the table of open streams.

#![forbid(unsafe_code)]

mod admission;
pub mod batch;
pub mod debug;
pub mod encoded_record;
mod metrics;
pub mod node;
pub mod resource;
pub mod scope;
pub mod service;
pub mod session;
pub mod sessions;
pub mod skew;
pub mod store;
mod unknown_types;
mod wire_format;

pub use admission::StreamAdmission;
pub use batch::Push;
pub use debug::DebugService;
pub use metrics::XdsMetrics;
pub use resource::ResourceType;
pub use service::{DeltaDiscovery, DiscoveryServer};
pub use session::{Session, SessionError};
pub use sessions::{SessionStatus, SessionTable};
pub use store::Store;
