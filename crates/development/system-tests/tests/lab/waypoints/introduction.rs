//! Tests of introducing a waypoint under load: no connection is refused before the waypoint is ready, all pass it from
//! then on, and while it is unavailable they are refused, also after a restart of the control plane.

use std::{net::SocketAddr, sync::atomic::Ordering::Relaxed};

use ambit_system_tests::{
    CLIENT_AND_SERVER, GATEWAY, Mesh, Options, options, wait_until, wait_until_via_waypoint,
};

use crate::waypoints::pod_termination::RequestLoad;

/// Port of the server that is not a port of any Service.
const UNDECLARED_PORT: u16 = 8085;

fn manifests(gateway: &str) -> String {
    let labels = "istio.io/dataplane-mode: ambient";
    let bound = CLIENT_AND_SERVER.replacen(
        labels,
        &format!("{labels}, istio.io/use-waypoint: waypoint"),
        1,
    );
    format!("{bound}\n---{gateway}")
}

fn gateway(more_metadata: &str) -> String {
    GATEWAY.replace(
        "namespace: shop}",
        &format!("namespace: shop, labels: {{istio.io/waypoint-for: all}}{more_metadata}}}"),
    )
}

fn waypoint_pods(mesh: &Mesh) -> usize {
    let pods = mesh.client().status().unwrap().pods;
    pods.iter()
        .filter(|pod| pod.name.starts_with("waypoint-"))
        .count()
}

#[test]
fn waypoint_is_introduced_without_a_refused_connection() {
    let by_default = Options {
        env: Default::default(),
        ..options()
    };
    let mesh = Mesh::up_with(CLIENT_AND_SERVER, by_default);
    mesh.serve_heads("shop/server", UNDECLARED_PORT);
    let pod = mesh.ip("shop/server");
    let addresses = [
        mesh.service_address("server.shop", 80),
        SocketAddr::new(pod, 8080),
        SocketAddr::new(pod, UNDECLARED_PORT),
    ];
    let urls = addresses.map(|address| format!("http://{address}/"));
    for url in &urls {
        mesh.wait_for_get("shop/client", url, true);
    }
    let loads = addresses.map(|address| RequestLoad::new(&mesh, address));
    let loads = &loads;
    let mut waypoint = String::new();
    std::thread::scope(|scope| {
        let _stop = loads.each_ref().map(|load| load.progress.stop_at_end());
        for load in loads {
            for _ in 0..2 {
                scope.spawn(move || load.run());
            }
        }
        loads
            .iter()
            .for_each(|load| load.progress.wait_for_additional(20));
        mesh.apply("manifests", &manifests(&gateway("")));
        wait_until("the waypoint has a pod", || waypoint_pods(&mesh) == 1);
        mesh.wait_for_status("the waypoint is ready", |status| {
            status.pods.iter().all(|pod| pod.ready)
        });
        waypoint = mesh.ip("shop/waypoint").to_string();
        for url in &urls {
            wait_until_via_waypoint(&mesh, &waypoint, "shop/client", url);
        }
        loads
            .iter()
            .for_each(|load| load.progress.wait_for_additional(20));
    });
    for (load, url) in loads.iter().zip(&urls) {
        let failures = load.failures.lock().unwrap().clone();
        assert!(failures.is_empty(), "{url}: {failures:#?}");
        assert_eq!(
            load.broken_requests.load(Relaxed),
            0,
            "{url}: connections were refused"
        );
        let answer = mesh.get("shop/client", url);
        assert!(
            answer.ok().contains(&format!("called by {waypoint}")),
            "{url}: {answer:?}"
        );
    }

    let none = gateway(", annotations: {ambit.io/waypoint-replicas: '0'}");
    mesh.apply("manifests", &manifests(&none));
    wait_until("the waypoint has no pod", || waypoint_pods(&mesh) == 0);
    let refused = || {
        for url in &urls {
            wait_until("connections are refused", || {
                !mesh.get("shop/client", url).succeeded()
            });
            mesh.get("shop/client", url).assert_refused();
        }
    };
    refused();
    mesh.kill("control", None);
    mesh.label("legacy", "ambient");
    // The records of the new control plane have arrived.
    mesh.wait_until_captured("legacy/client", true);
    mesh.wait_until_protocol_known("node-1", "legacy/client", "HBONE");
    refused();
}
