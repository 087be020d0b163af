//! Relations between objects, which each change updates: references, owners of addresses, the pods of waypoints, and so
//! on.

pub(crate) mod addresses;
pub(crate) mod cluster_addresses;
pub(crate) mod discovery;
pub(crate) mod instances;
pub(crate) mod introductions;
pub(crate) mod key_set_state;
pub(crate) mod references;
pub(crate) mod workload_waypoints;
