//! The mesh on a real Kubernetes while components of it, or of the cluster, are killed, replaced or unavailable. The
//! tests run one at a time, each with exclusive use of the cluster.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests"
)]

/// Command line of the node proxy's processes on a node: two supervisors, and one worker.
const PROXY: &str = "/ambit-node-proxy";
/// Command line of the node proxy's worker, which carries the connections.
const WORKER: &str = "/ambit-node-proxy worker";

mod agents;
mod chaos;
mod control_plane;
mod dashboard;
mod harness;
mod joining;
mod nodes;
mod outages;
mod restart_backoff;
mod revisions;
mod upgrades;
