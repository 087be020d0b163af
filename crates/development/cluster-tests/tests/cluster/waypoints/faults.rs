//! Waypoints that are away, killed, deleted; and a control plane that is away.

use ambit_cluster_tests::{Load, Mesh, Part, until};

use super::{Covered, PROGRAM};

#[test]
fn a_waypoint_without_pods_refuses_and_nothing_passes_it_by() {
    let mesh = Mesh::shared();
    let space = mesh.space("away");
    let covered = Covered::new(&space);
    let outside = mesh.space("outside");
    outside.client("client", Some("n2"));
    for url in &covered.urls {
        covered.until_through(&outside, url);
    }
    let addresses = covered.waypoint.addresses();
    covered.waypoint.scale(0);
    // While its pods end, they may serve, but nothing passes them by.
    for url in &covered.urls {
        if let Ok(answer) = space.get("client", &format!("{url}/while-ending")) {
            let caller = super::caller(&answer);
            assert!(caller.is_some_and(|caller| addresses.contains(&caller)));
        }
    }
    covered.waypoint.until_gone();
    for _ in 0..2 {
        for url in &covered.urls {
            for from in [&space, &outside] {
                let answer = from.get("client", &format!("{url}/while-away"));
                assert!(answer.is_err(), "{url}: {answer:?}");
            }
        }
    }
    let waypoint = &covered.waypoint;
    waypoint.until_condition("Programmed", "False AddressNotUsable");
    waypoint.until_condition("Accepted", "True Accepted");
    waypoint.scale(2);
    for url in &covered.urls {
        covered.until_through(&space, url);
        covered.until_through(&outside, url);
    }
    waypoint.until_condition("Programmed", "True Programmed");
    assert_eq!(covered.seen("/while-away"), [""; 0]);
}

#[test]
fn a_waypoint_whose_pods_are_killed_or_deleted_serves_again_by_itself() {
    let mesh = Mesh::alone();
    let space = mesh.space("killed");
    let covered = Covered::new(&space);
    let waypoint = &covered.waypoint;
    let again = || {
        waypoint.ready(2);
        for url in &covered.urls {
            covered.until_through(&space, url);
        }
    };
    // With the other pod there, only what is inside the killed one may fail.
    let load = Load::start_gently(&space, "load", "n1", "server");
    let killed = mesh.cluster().node(1).kill_processes(PROGRAM).unwrap();
    assert!(killed > 0, "no waypoint on the first node");
    again();
    let first = waypoint.pods().remove(0).metadata.name.unwrap();
    waypoint.kubectl(&["delete", "pod", &first, "--grace-period=0", "--force"]);
    again();
    load.finish().assert_all_opened();

    waypoint.replaced(|waypoint| {
        let all = "--selector=gateway.networking.k8s.io/gateway-name=waypoint";
        waypoint.kubectl(&["delete", "pods", all, "--grace-period=0", "--force"]);
    });
    again();
    let addresses = waypoint.addresses();
    let answer = space.get("client", &format!("{}/", covered.urls[0]));
    let caller = super::caller(&answer.unwrap());
    assert!(caller.is_some_and(|caller| addresses.contains(&caller)));
}

#[test]
fn requests_go_on_while_the_control_plane_is_away() {
    let mesh = Mesh::alone();
    let space = mesh.space("alone");
    let covered = Covered::new(&space);
    let load = Load::start_gently(&space, "load", "n1", "server");
    let scale = |count: usize| {
        let replicas = format!("--replicas={count}");
        let object = Part::Control.object();
        mesh.kubectl(&["scale", object, &replicas, "--namespace=istio-system"]);
        until(&format!("{count} control planes"), || {
            let pods = mesh.pods_of(Part::Control);
            pods.len() == count && pods.iter().all(ambit_cluster_tests::is_ready)
        });
    };
    scale(0);
    for url in &covered.urls {
        covered.until_through(&space, url);
    }
    scale(1);
    load.finish().assert_flawless();
}
