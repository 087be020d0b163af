//! Tests of NetworkPolicies by an engine beside a primary CNI that has none.

use ambit_cluster_tests::{Mesh, PolicyEngine, assert_network_policies_enforced};

#[test]
fn network_policies_hold_for_captured_pods() {
    assert_network_policies_enforced(&Mesh::shared(), PolicyEngine::TestEngine);
}
