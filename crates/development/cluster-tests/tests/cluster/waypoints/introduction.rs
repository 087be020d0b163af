//! Tests under load of a waypoint that is introduced, and of waypoints all of whose pods end.

use std::collections::BTreeSet;

use ambit_cluster_tests::{Load, Mesh, Waypoint, wait_until};

use super::{ALL_PODS, PROGRAM, WaypointFixture, reported_source_address};

/// Deletes all pods of the waypoint at once, with their grace period; returns when their replacements are ready.
fn replace_all(waypoint: &Waypoint<'_>) {
    waypoint.wait_until_replaced(|waypoint| {
        waypoint.kubectl(&["delete", "pods", ALL_PODS, "--wait=false"]);
    });
}

#[test]
fn a_waypoint_is_introduced_without_a_failed_request() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("introduced");
    space.deploy_captured_server();
    let load = Load::start_captured(&space);
    let waypoint = Waypoint::apply(&space);
    wait_until("requests pass the waypoint", || {
        let response = space.get("load", "http://server/");
        let caller = response
            .ok()
            .and_then(|response| reported_source_address(&response));
        caller.is_some_and(|caller| waypoint.addresses().contains(&caller))
    });
    waypoint.wait_for_condition("ambit.io/Introduced", "True Introduced");
    let outcome = load.finish();
    eprintln!("{outcome}");
    outcome.assert_no_failures();
}

#[test]
fn all_pods_of_a_waypoint_deleted_at_once_cost_no_request() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("deleted");
    let covered = WaypointFixture::new(&space);
    let waypoint = &covered.waypoint;
    let nodes = || -> BTreeSet<_> {
        let pods = waypoint.pods().into_iter();
        pods.filter_map(|pod| pod.spec?.node_name).collect()
    };
    assert_eq!(nodes().len(), 2, "the pods are on one node: {:?}", nodes());
    let loads = [("load-1", "n1"), ("load-2", "n2")]
        .map(|(name, node)| Load::start_slow(&space, name, node, "server"));
    replace_all(waypoint);
    waypoint.scale(1);
    replace_all(waypoint);
    for load in loads {
        let outcome = load.finish();
        eprintln!("{outcome}");
        outcome.assert_no_failures();
    }
}

#[test]
fn openings_wait_while_all_processes_of_a_waypoint_start_again() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("restarting");
    let covered = WaypointFixture::new(&space);
    let load = Load::start_slow(&space, "load", "n1", "server");
    for node in mesh.cluster().nodes() {
        assert!(node.kill_processes(PROGRAM).unwrap() > 0);
    }
    covered.waypoint.wait_until_ready(2);
    for url in &covered.urls {
        covered.wait_until_via_waypoint(&space, url);
    }
    let outcome = load.finish();
    eprintln!("{outcome}");
    outcome.assert_all_connections_opened();
}
