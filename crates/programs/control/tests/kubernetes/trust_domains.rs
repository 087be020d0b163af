//! Tests of the trust domains that MeshConfig accepts, in the ConfigMaps that proxies mount in
//! every namespace.

use ambit_testkit::Pki;
use serde_json::{Value, json};

use super::{CONFIG_MAPS, Cluster, wait_for_value};

const CONFIG_MAP_NAME: &str = "ambit-trust-domains";

fn put_mesh_settings(cluster: &Cluster, mesh: &str) {
    let metadata = json!({"name": "istio", "namespace": "istio-system"});
    cluster.server.put(
        CONFIG_MAPS,
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"mesh": mesh}}),
    );
}

/// Returns the ConfigMap of trust domains in a namespace.
fn find_config_map(cluster: &Cluster, namespace: &str) -> Option<Value> {
    let map = cluster
        .server
        .get(CONFIG_MAPS, namespace, CONFIG_MAP_NAME)?;
    serde_json::from_str(map["data"]["trust-domains.json"].as_str()?).ok()
}

#[tokio::test]
async fn accepted_trust_domains_are_distributed_to_every_namespace() {
    let cluster = Cluster::start();
    let replica = cluster.start_replica("a").await;
    let root = replica.read_root();
    wait_for_value("the root", || cluster.root_config_map("shop")).await;
    assert_eq!(find_config_map(&cluster, "shop"), None);
    let (west, further) = (Pki::new().root_pem(), Pki::new().root_pem());
    let certificates = json!([
        {"trustDomains": ["west"], "pem": west},
        {"pem": further},
        // Unavailable, so that its roots are unknown.
        {"trustDomains": ["east"], "spiffeBundleUrl": "https://127.0.0.1:1/bundle"},
        {"trustDomains": ["broken"], "pem": "-----BEGIN CERTIFICATE-----\n"},
    ]);
    let mesh = json!({"trustDomainAliases": ["old"], "caCertificates": certificates});
    put_mesh_settings(&cluster, &mesh.to_string());
    let roots = json!({"west": west, "cluster.local": format!("{further}{root}")});
    let expected = json!({"aliases": ["cluster.local", "old"], "roots": roots});
    for namespace in ["istio-system", "shop"] {
        let is_there = || find_config_map(&cluster, namespace).filter(|copy| *copy == expected);
        wait_for_value(namespace, is_there).await;
    }
    // Proxies verify the server of another CA by the roots in the ConfigMap of this one.
    let both = format!("{root}{further}");
    let is_there = || cluster.root_config_map("shop").filter(|copy| *copy == both);
    wait_for_value("both roots", is_there).await;

    replica.running.stop().await;
    // The next control plane publishes the bundle's last roots.
    let mut map = cluster
        .server
        .get(CONFIG_MAPS, "istio-system", CONFIG_MAP_NAME)
        .unwrap();
    let mut with_east = expected.clone();
    with_east["roots"]["east"] = json!(west);
    map["data"]["trust-domains.json"] = json!(with_east.to_string());
    cluster.server.put(CONFIG_MAPS, map);
    let replica = cluster.start_replica("b").await;
    let is_there = || find_config_map(&cluster, "shop").filter(|copy| *copy == with_east);
    wait_for_value("the last roots", is_there).await;
    put_mesh_settings(&cluster, "{}");
    let is_gone = || find_config_map(&cluster, "shop").is_none().then_some(());
    wait_for_value("no copy", is_gone).await;
    let is_there = || cluster.root_config_map("shop").filter(|copy| *copy == root);
    wait_for_value("its own root", is_there).await;
    replica.running.stop().await;
}
