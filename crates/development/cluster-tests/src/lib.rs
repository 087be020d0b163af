//! A real Kubernetes for tests, with Ambit in it: one cluster for all tests of a run, a namespace of its
//! own for each.
//!
//! Every method panics with the condition it waited for and the state of the cluster: this crate is for
//! tests only. `AMBIT_TEST_SLOT=0` makes the tests use the cluster that `cargo xtask cluster up` started,
//! with the images it has, and leave it up. Two processes of tests run side by side with the values 0 and 1 of
//! `AMBIT_TEST_PLACE`: each has a cluster that its tests share.
#![forbid(unsafe_code)]
#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking"
)]

mod load;
mod mesh;
mod network_policies;
mod primary_cni;
mod process;
mod space;
mod uninstall;
mod waypoint;
mod wire;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub use ambit_cluster::{Boot, Cluster, IpFamily, Node, Options, Places, PrimaryCni, Slot};
pub use ambit_lab::{Ending, Expected, FlowKind, FlowReport};
pub use ambit_testkit::{binary, target};
pub use load::{Failure, Load, Outcome};
pub use mesh::{Access, MESH_NAMESPACE, Mesh, Part, VALUES};
pub use network_policies::{PolicyEngine, assert_network_policies_hold};
pub use primary_cni::{Probes, assert_at_home, delay_loopback, plugins};
pub use process::Process;
pub use space::{Space, address, is_captured, is_ready, restarts};
pub use uninstall::assert_uninstalls;
pub use waypoint::{Waypoint, condition};
pub use wire::{Wire, assert_nothing_in_plaintext, assert_only_tls, only_tls};

/// Timeout of every operation on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(180);

/// The repository's `build` directory.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../build")
}

/// Waits until `condition` holds.
#[track_caller]
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    ambit_testkit::until_within(TIMEOUT, what, condition);
}

/// Checks that `condition` holds all the time.
#[track_caller]
pub fn throughout(what: &str, time: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        assert!(condition(), "not all the time: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Runs a command that must succeed; returns its output.
#[track_caller]
pub(crate) fn succeed(command: &mut std::process::Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?} ({}): {}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}
