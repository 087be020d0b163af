//! Tests of the mesh's own metrics, scraped from within the mesh.

use ambit_cluster_tests::{Mesh, address, assert_only_tls};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};

#[test]
fn node_proxies_are_scraped_through_tunnels() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("metrics");
    space.label(Some("ambient"));
    let client = space.deploy_client("client", Some("n1"));
    space.wait_until_captured("client", true);
    let wire = mesh.capture_traffic(&[]);
    let pods: Api<Pod> = Api::namespaced(mesh.client(), "istio-system");
    let proxies = ListParams::default().labels("app=ztunnel");
    let proxies = mesh.wait_for(pods.list(&proxies)).unwrap().items;
    assert_eq!(proxies.len(), 2);
    for proxy in &proxies {
        let url = format!("http://{}:15020/metrics", address(proxy));
        space.wait_for_get("client", &url, true);
        let answer = space.get("client", &url).unwrap();
        assert!(answer.contains("istio_build"), "{answer}");
    }
    let reports = wire.finish();
    for proxy in &proxies {
        assert_only_tls(&reports, &[&client, proxy]);
    }
}
