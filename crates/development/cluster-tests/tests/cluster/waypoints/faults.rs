//! Tests of waypoints that are unavailable, killed or deleted, and of an unavailable control plane.

use std::time::{Duration, Instant};

use ambit_cluster_tests::{Component, Load, Mesh, assert_throughout, wait_until};

use super::{ALL_PODS, PROGRAM, WaypointFixture};

#[test]
fn a_waypoint_without_pods_refuses_and_nothing_passes_it_by() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("away");
    let covered = WaypointFixture::new(&space);
    let outside = mesh.test_namespace("outside");
    outside.deploy_client("client", Some("n2"));
    for url in &covered.urls {
        covered.wait_until_via_waypoint(&outside, url);
    }
    let addresses = covered.waypoint.addresses();
    covered.waypoint.scale(0);
    // While its pods end, they may serve, but nothing passes them by.
    for url in &covered.urls {
        if let Ok(answer) = space.get("client", &format!("{url}/while-ending")) {
            let caller = super::reported_source_address(&answer);
            assert!(caller.is_some_and(|caller| addresses.contains(&caller)));
        }
    }
    covered.waypoint.wait_until_gone();
    for _ in 0..2 {
        for url in &covered.urls {
            for from in [&space, &outside] {
                let answer = from.get("client", &format!("{url}/while-away"));
                assert!(answer.is_err(), "{url}: {answer:?}");
            }
        }
    }
    let waypoint = &covered.waypoint;
    waypoint.wait_for_condition("Programmed", "False AddressNotUsable");
    waypoint.wait_for_condition("Accepted", "True Accepted");
    waypoint.scale(2);
    for url in &covered.urls {
        covered.wait_until_via_waypoint(&space, url);
        covered.wait_until_via_waypoint(&outside, url);
    }
    waypoint.wait_for_condition("Programmed", "True Programmed");
    assert_eq!(covered.logged_requests("/while-away"), [""; 0]);
}

#[test]
fn a_waypoint_whose_pods_are_killed_or_deleted_serves_again_by_itself() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("killed");
    let covered = WaypointFixture::new(&space);
    let waypoint = &covered.waypoint;
    let again = || {
        waypoint.wait_until_ready(2);
        for url in &covered.urls {
            covered.wait_until_via_waypoint(&space, url);
        }
    };
    // With the other pod there, only what is inside the killed one may fail.
    let load = Load::start_slow(&space, "load", "n1", "server");
    let killed = mesh.cluster().node(1).kill_processes(PROGRAM).unwrap();
    assert!(killed > 0, "no waypoint on the first node");
    again();
    let first = waypoint.pods().remove(0).metadata.name.unwrap();
    waypoint.kubectl(&["delete", "pod", &first, "--grace-period=0", "--force"]);
    again();
    load.finish().assert_all_connections_opened();

    waypoint.wait_until_replaced(|waypoint| {
        waypoint.kubectl(&["delete", "pods", ALL_PODS, "--grace-period=0", "--force"]);
    });
    again();
    let addresses = waypoint.addresses();
    let answer = space.get("client", &format!("{}/", covered.urls[0]));
    let caller = super::reported_source_address(&answer.unwrap());
    assert!(caller.is_some_and(|caller| addresses.contains(&caller)));
}

/// Scales the control plane's Deployment, and waits until it is ready.
fn scale_control(mesh: &Mesh, count: usize) {
    let replicas = format!("--replicas={count}");
    let object = Component::Control.object();
    mesh.kubectl(&["scale", object, &replicas, "--namespace=istio-system"]);
    wait_until(&format!("{count} control planes"), || {
        let pods = mesh.pods_of(Component::Control);
        pods.len() == count && pods.iter().all(ambit_cluster_tests::is_ready)
    });
}

#[test]
fn requests_go_on_while_the_control_plane_is_away() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("alone");
    let covered = WaypointFixture::new(&space);
    let load = Load::start_slow(&space, "load", "n1", "server");
    scale_control(&mesh, 0);
    for url in &covered.urls {
        covered.wait_until_via_waypoint(&space, url);
    }
    scale_control(&mesh, 1);
    load.finish().assert_no_failures();
}

/// Maximum time from a ready control plane until waypoint pods that started during its outage respond.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Duration of the control plane's outage: long enough for the backoff of certificate requests to grow to minutes.
const OUTAGE: Duration = Duration::from_secs(60);

#[test]
fn what_started_without_a_control_plane_serves_soon_after_its_return() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("outage");
    let covered = WaypointFixture::new(&space);
    scale_control(&mesh, 0);
    covered
        .waypoint
        .kubectl(&["delete", "pods", ALL_PODS, "--grace-period=0", "--force"]);
    let is_away = || mesh.pods_of(Component::Control).is_empty();
    assert_throughout("there is no control plane", OUTAGE, is_away);
    assert_eq!(
        restarts(&covered),
        0,
        "kubelet restarted a waypoint that waits"
    );
    scale_control(&mesh, 1);
    let back = Instant::now();
    for url in &covered.urls {
        covered.wait_until_via_waypoint(&space, url);
    }
    let elapsed = back.elapsed();
    eprintln!("served {elapsed:.1?} after the control plane was ready");
    assert!(elapsed < RECOVERY_TIMEOUT, "{elapsed:?}");
    assert_eq!(restarts(&covered), 0);
}

fn restarts(covered: &WaypointFixture<'_>) -> i32 {
    let pods = covered.waypoint.pods();
    pods.iter().map(ambit_cluster_tests::restarts).sum()
}
