//! Network namespaces as nodes and pods, for the lab and for tests: creates them, connects them, and assigns addresses.
//!
//! Namespaces are anonymous: one exists as long as a descriptor or a process holds it, and is never mounted, so nothing
//! is left when its owner dies. The crate does not depend on the mesh.
#![forbid(unsafe_code)]

mod host;
mod links;
mod namespace;
mod namespaces;

pub use ambit_sys::netns::{Netns, NetnsId};
pub use host::{Host, HostError};
pub use links::{Link, add_bridge, connect_by_veth, connect_to_bridge};
pub use namespace::{LabError, Namespace, NamespaceHolder};
pub use namespaces::{IsolatedPrivileges, Isolation, isolate, new_netns};
