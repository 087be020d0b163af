//! Server of delta xDS.
//!
//! [`resource`] lists the types that are served; [`entry`] is an encoded record; [`store`] has
//! every record once; [`scope`] decides which client sees which; [`session`] is the pure state
//! machine of one client; [`batch`] has responses that clients share; [`service`] runs sessions
//! over gRPC; [`node`] decides which callers may open one; [`later`] answers clients of later
//! versions; [`skew`] finds waypoints of earlier versions, and [`debug`] answers Istio's tools, by
//! [`sessions`].

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
mod wire_form;

pub use admission::Admission;
pub use batch::Push;
pub use debug::DebugService;
pub use metrics::XdsMetrics;
pub use resource::ResourceType;
pub use service::{DeltaDiscovery, DiscoveryServer};
pub use session::{Session, SessionError};
pub use sessions::{SessionStatus, Sessions};
pub use store::Store;
