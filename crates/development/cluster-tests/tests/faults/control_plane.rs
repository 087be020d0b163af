//! Tests of outages of Kubernetes' control plane and of Ambit's.

use ambit_cluster_tests::{Load, Mesh, Part, Space, assert_only_tls, only_tls, until};

use crate::WORKER;

/// Checks that pods which start during an outage reach the server, by TLS only.
#[track_caller]
fn assert_late_comers_reach_the_server_by_tls_alone(space: &Space<'_>) {
    let late = space.client("late", Some("n1"));
    space.until_captured("late", true);
    space.until_get("late", "http://server/", true);
    let wire = space.mesh().watch(&["GET /"]);
    space.get("late", "http://server/").unwrap();
    let server = space.pods("server").remove(0);
    assert_only_tls(&wire.finish(), &[&server, &late]);
}

#[test]
fn a_node_proxy_that_dies_without_an_api_server_serves_its_pods_again() {
    let mesh = Mesh::alone();
    let space = mesh.space("apiless");
    space.serve_captured();
    let load = Load::start_captured(&space);
    mesh.cluster().stop_api_server().unwrap();
    for node in mesh.cluster().nodes() {
        assert!(node.kill_processes(WORKER).unwrap() > 0);
        until("the proxy is there again", || {
            !node.processes(WORKER).is_empty()
        });
    }
    mesh.cluster().start_api_server().unwrap();
    assert_late_comers_reach_the_server_by_tls_alone(&space);
    // Connections of the proxy that died ended with it.
    load.finish().assert_all_opened();
}

#[test]
fn node_proxy_restarts_from_known_state_without_a_control_plane() {
    let mesh = Mesh::alone();
    let space = mesh.space("orphaned");
    space.serve_captured();
    let load = Load::start_captured(&space);
    let scale = |replicas: u8| {
        let replicas = format!("--replicas={replicas}");
        let control = "deployment/ambit-control";
        mesh.kubectl(&["scale", "--namespace=istio-system", control, &replicas]);
    };
    scale(0);
    mesh.kubectl(&[
        "wait",
        "--namespace=istio-system",
        "--for=delete",
        "pod",
        "--selector=app=istiod",
        "--timeout=90s",
    ]);
    for node in mesh.cluster().nodes() {
        assert!(node.kill_processes(WORKER).unwrap() > 0);
        space.until_get("load", "http://server/", true);
    }
    let outcome = load.finish();
    scale(1);
    mesh.until_installed();
    outcome.assert_all_opened();
    // New objects are published again.
    assert_late_comers_reach_the_server_by_tls_alone(&space);
}

#[test]
fn what_is_stored_may_go_back_in_time() {
    let mesh = Mesh::alone();
    let space = mesh.space("restore");
    space.label(Some("ambient"));
    space.serve("server", Some("n2"));
    space.client("client", Some("n1"));
    space.until_captured("client", true);
    mesh.cluster().snapshot("before").unwrap();
    // These are removed again, after all proxies have received them.
    space.label(None);
    space.until_captured("client", false);
    space.client("forgotten", Some("n1"));
    mesh.cluster().restore("before").unwrap();
    // The pods' annotations are as old as the store. The agents, the control plane and the proxies have
    // learned of it when the path is a tunnel again: without the label it was none.
    let captured = [
        space.pods("client").remove(0),
        space.pods("server").remove(0),
    ];
    until("client and server speak TLS again", || {
        let wire = mesh.watch(&["GET /"]);
        let answered = space.get("client", "http://server/").is_ok();
        let seen = wire.finish();
        answered && only_tls(&seen, &[&captured[0], &captured[1]]).is_ok()
    });
    assert_late_comers_reach_the_server_by_tls_alone(&space);
}

#[test]
fn the_control_plane_is_replaced_without_effect_on_traffic() {
    let mesh = Mesh::alone();
    let space = mesh.space("control");
    space.serve_captured();
    let load = Load::start_captured(&space);
    mesh.restart(Part::Control);
    mesh.restart(Part::Agent);
    assert_late_comers_reach_the_server_by_tls_alone(&space);
    load.finish().assert_flawless();
}
