//! Tests under load of a waypoint that is introduced, and of waypoints all of whose pods end.

use std::collections::BTreeSet;

use ambit_cluster_tests::{Load, Mesh, Waypoint, until};

use super::{ALL_PODS, Covered, PROGRAM, caller};

/// Deletes all pods of the waypoint at once, with their grace period; returns when their replacements are ready.
fn replace_all(waypoint: &Waypoint<'_>) {
    waypoint.replaced(|waypoint| {
        waypoint.kubectl(&["delete", "pods", ALL_PODS, "--wait=false"]);
    });
}

#[test]
fn a_waypoint_is_introduced_without_a_failed_request() {
    let mesh = Mesh::alone();
    let space = mesh.space("introduced");
    space.serve_captured();
    let load = Load::start_captured(&space);
    let waypoint = Waypoint::apply(&space);
    until("requests pass the waypoint", || {
        let response = space.get("load", "http://server/");
        let caller = response.ok().and_then(|response| caller(&response));
        caller.is_some_and(|caller| waypoint.addresses().contains(&caller))
    });
    waypoint.until_condition("ambit.io/Introduced", "True Introduced");
    let outcome = load.finish();
    eprintln!("{outcome}");
    outcome.assert_flawless();
}

#[test]
fn all_pods_of_a_waypoint_deleted_at_once_cost_no_request() {
    let mesh = Mesh::alone();
    let space = mesh.space("deleted");
    let covered = Covered::new(&space);
    let waypoint = &covered.waypoint;
    let nodes = || -> BTreeSet<_> {
        let pods = waypoint.pods().into_iter();
        pods.filter_map(|pod| pod.spec?.node_name).collect()
    };
    assert_eq!(nodes().len(), 2, "the pods are on one node: {:?}", nodes());
    let loads = [("load-1", "n1"), ("load-2", "n2")]
        .map(|(name, node)| Load::start_gently(&space, name, node, "server"));
    replace_all(waypoint);
    waypoint.scale(1);
    replace_all(waypoint);
    for load in loads {
        let outcome = load.finish();
        eprintln!("{outcome}");
        outcome.assert_flawless();
    }
}

#[test]
fn openings_wait_while_all_processes_of_a_waypoint_start_again() {
    let mesh = Mesh::alone();
    let space = mesh.space("restarting");
    let covered = Covered::new(&space);
    let load = Load::start_gently(&space, "load", "n1", "server");
    for node in mesh.cluster().nodes() {
        assert!(node.kill_processes(PROGRAM).unwrap() > 0);
    }
    covered.waypoint.ready(2);
    for url in &covered.urls {
        covered.until_through(&space, url);
    }
    let outcome = load.finish();
    eprintln!("{outcome}");
    outcome.assert_all_opened();
}
