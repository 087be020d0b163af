//! Delta xDS, the server's side.
//!
//! [`store`] holds every record once, encoded; [`session`] is the pure state machine of one client;
//! [`batch`] is what many clients are told, made once; [`service`] carries sessions over gRPC; [`node`] says who may open one.

mod admission;
pub mod batch;
pub mod node;
pub mod service;
pub mod session;
pub mod store;
mod wire_form;

pub use admission::Admission;
pub use service::{Discovery, DiscoveryServer, SessionStatus, Sessions};
pub use session::{Push, Refused, ResourceType, Session};
pub use store::Store;
