//! Kubernetes clusters with Ambit for tests: one cluster for all tests of a run, and a namespace for each test.
//!
//! Every method panics with the condition it waited for and the state of the cluster: this crate is for tests only.
//! `AMBIT_TEST_SLOT=0` makes the tests use the cluster that `cargo xtask cluster up` started, with the images it has,
//! and keep it running. Two processes of tests run side by side with the values 0 and 1 of `AMBIT_TEST_PLACE`: each has
//! a cluster that its tests share.
#![forbid(unsafe_code)]
#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking"
)]

mod exec;
mod load;
mod mesh;
mod network_policies;
mod pod;
mod primary_cni;
mod process;
mod space;
mod traffic_capture;
mod uninstall;
mod wait;
mod waypoint;

pub use ambit_cluster::{
    Cluster, ClusterPaths, IpFamily, Node, NodeBoot, Options, PrimaryCni, Slot,
};
pub use ambit_lab::{ExpectedOutcome, FlowKind, FlowReport, GetOutcome};
pub use ambit_testkit::{built_binary, target_directory};
pub use load::{Failure, Load, LoadOutcome};
pub use mesh::{Access, Component, MESH_NAMESPACE, Mesh, VALUES, sources};
pub use network_policies::{PolicyEngine, assert_network_policies_enforced};
pub use pod::{address, is_captured, is_ready, restarts};
pub use primary_cni::{ProbeTreatment, assert_mesh_works, cni_plugin_types, delay_loopback};
pub use process::Process;
pub use space::TestNamespace;
pub use traffic_capture::{
    TrafficCapture, assert_nothing_in_plaintext, assert_only_tls, check_only_tls,
};
pub use uninstall::assert_uninstalls;
pub use wait::{TIMEOUT, assert_throughout, wait_until};
pub use waypoint::{Waypoint, condition};
