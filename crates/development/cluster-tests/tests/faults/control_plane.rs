//! Tests of outages of Kubernetes' control plane and of Ambit's.

use ambit_cluster_tests::{
    Component, Load, Mesh, TestNamespace, assert_only_tls, check_only_tls, wait_until,
};

use crate::WORKER;

/// Checks that pods which start during an outage reach the server, by TLS only.
#[track_caller]
fn assert_new_pods_use_tls(space: &TestNamespace<'_>) {
    let late = space.deploy_client("late", Some("n1"));
    space.wait_until_captured("late", true);
    space.wait_for_get("late", "http://server/", true);
    let wire = space.mesh().capture_traffic(&["GET /"]);
    space.get("late", "http://server/").unwrap();
    let server = space.pods("server").remove(0);
    assert_only_tls(&wire.finish(), &[&server, &late]);
}

#[test]
fn a_node_proxy_that_dies_without_an_api_server_serves_its_pods_again() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("apiless");
    space.deploy_captured_server();
    let load = Load::start_captured(&space);
    mesh.cluster().stop_api_server().unwrap();
    for node in mesh.cluster().nodes() {
        assert!(node.kill_processes(WORKER).unwrap() > 0);
        wait_until("the proxy is there again", || {
            !node.processes(WORKER).is_empty()
        });
    }
    mesh.cluster().start_api_server().unwrap();
    assert_new_pods_use_tls(&space);
    // Connections of the proxy that died ended with it.
    load.finish().assert_all_connections_opened();
}

#[test]
fn node_proxy_restarts_from_known_state_without_a_control_plane() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("orphaned");
    space.deploy_captured_server();
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
        space.wait_for_get("load", "http://server/", true);
    }
    let outcome = load.finish();
    scale(1);
    mesh.wait_until_installed();
    outcome.assert_all_connections_opened();
    // New objects are published again.
    assert_new_pods_use_tls(&space);
}

#[test]
fn what_is_stored_may_go_back_in_time() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("restore");
    space.label(Some("ambient"));
    space.deploy_server("server", Some("n2"));
    space.deploy_client("client", Some("n1"));
    space.wait_until_captured("client", true);
    mesh.cluster().snapshot("before").unwrap();
    // These are removed again, after all proxies have received them.
    space.label(None);
    space.wait_until_captured("client", false);
    space.deploy_client("forgotten", Some("n1"));
    mesh.cluster().restore("before").unwrap();
    // The pods' annotations are as old as the store. The agents, the control plane and the proxies have
    // learned of it when the path is a tunnel again: without the label it was none.
    let captured = [
        space.pods("client").remove(0),
        space.pods("server").remove(0),
    ];
    wait_until("client and server speak TLS again", || {
        let wire = mesh.capture_traffic(&["GET /"]);
        let answered = space.get("client", "http://server/").is_ok();
        let seen = wire.finish();
        answered && check_only_tls(&seen, &[&captured[0], &captured[1]]).is_ok()
    });
    assert_new_pods_use_tls(&space);
}

#[test]
fn the_control_plane_is_replaced_without_effect_on_traffic() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("control");
    space.deploy_captured_server();
    let load = Load::start_captured(&space);
    mesh.restart(Component::Control);
    mesh.restart(Component::Agent);
    assert_new_pods_use_tls(&space);
    load.finish().assert_no_failures();
}
