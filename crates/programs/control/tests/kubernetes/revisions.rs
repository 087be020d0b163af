//! Tests of control planes of two revisions on one cluster.

use super::*;

const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";

impl Cluster {
    /// Sets the revision label of the Gateway.
    fn move_gateway(&self, name: &str, revision: &str) {
        let mut gateway = self.server.get(GATEWAYS, "shop", name).unwrap();
        gateway["metadata"]["labels"] = json!({"istio.io/rev": revision});
        self.server.put(GATEWAYS, gateway);
    }

    /// Returns the image of a waypoint's Deployment, and the address of the control plane that its pods use.
    fn deployed_image_and_address(&self, name: &str) -> Option<(String, String)> {
        let deployment = self.server.get(DEPLOYMENTS, "shop", name)?;
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let mut env = container["env"].as_array()?.iter();
        let address = env.find(|one| one["name"] == "XDS_ADDRESS")?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some((text(&container["image"])?, text(&address["value"])?))
    }

    async fn wait_until_deployed_by(&self, service: &str, image: &str) {
        let address = format!("https://{service}.istio-system.svc:15012");
        let expected = (image.to_owned(), address);
        wait_for_value(image, || {
            self.deployed_image_and_address("way")
                .filter(|found| *found == expected)
        })
        .await;
    }

    fn lease_holder(&self, lease: &str) -> Option<String> {
        let lease = self.server.get(LEASES, "istio-system", lease)?;
        lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
    }
}

#[tokio::test]
async fn gateway_moves_between_control_planes_and_keeps_its_objects() {
    let cluster = Cluster::with_gateways();
    cluster.put_gateway("way");
    let first = ["--waypoints", r#"{"image": "w:1"}"#];
    let first = cluster.start_replica_with("one", &first).await;
    let second = ["--revision", "canary", "--waypoints", r#"{"image": "w:2"}"#];
    let second = cluster.start_replica_with("two", &second).await;
    cluster.wait_until_deployed_by("istiod", "w:1").await;
    cluster.move_gateway("way", "canary");
    cluster.wait_until_deployed_by("istiod-canary", "w:2").await;
    cluster.move_gateway("way", "default");
    cluster.wait_until_deployed_by("istiod", "w:1").await;
    cluster.server.put(
        SERVICES,
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {
            "name": "istiod-revision-tag-stable", "namespace": "istio-system", "labels": {
                "app": "istiod", "app.kubernetes.io/part-of": "ambit", "istio.io/rev": "canary",
                "istio.io/tag": "stable"}},
            "spec": {"clusterIP": "10.96.0.77", "ports": [{"port": 15012}]}}),
    );
    cluster.move_gateway("way", "stable");
    cluster.wait_until_deployed_by("istiod-canary", "w:2").await;
    // Only the owner restores the Deployment.
    cluster.server.delete(DISRUPTION_BUDGETS, "shop", "way");
    wait_for_value("the budget", || {
        cluster.server.get(DISRUPTION_BUDGETS, "shop", "way")
    })
    .await;
    cluster.wait_until_deployed_by("istiod-canary", "w:2").await;
    let requests = cluster.server.requests();
    let deleted: Vec<_> = requests
        .iter()
        .filter(|one| one.method == "DELETE")
        .collect();
    assert!(deleted.is_empty(), "{deleted:?}");
    first.running.stop().await;
    second.running.stop().await;
}

#[tokio::test]
async fn one_revision_at_a_time_writes_shared_objects() {
    let cluster = Cluster::start();
    let first = cluster.start_replica("one").await;
    let second = cluster
        .start_replica_with("two", &["--revision", "canary"])
        .await;
    assert_eq!(first.read_root(), second.read_root());
    for (lease, holder) in [
        ("ambit-control-leader", "one"),
        ("ambit-control-leader-canary", "two"),
    ] {
        wait_for_value(lease, || {
            cluster.lease_holder(lease).filter(|found| found == holder)
        })
        .await;
    }
    let leader = wait_for_value("the mesh's leader", || {
        cluster.lease_holder("ambit-mesh-leader")
    })
    .await;
    let (leader, other, successor) = match leader.as_str() {
        "one" => (first, second, "two"),
        _ => (second, first, "one"),
    };
    wait_for_value("the root", || cluster.root_config_map("shop")).await;
    leader.running.stop().await;
    cluster.put_namespace("new");
    wait_for_value("the root", || cluster.root_config_map("new")).await;
    let holder = cluster.lease_holder("ambit-mesh-leader");
    assert_eq!(holder.as_deref(), Some(successor));
    other.running.stop().await;
}

#[tokio::test]
async fn gateway_in_an_undiscovered_namespace_gets_no_waypoint() {
    let cluster = Cluster::with_gateways();
    let settings = |selectors: Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "istio", "namespace": "istio-system"},
            "data": {"mesh": json!({"discoverySelectors": selectors}).to_string()}})
    };
    let of_mesh = settings(json!([{"matchLabels": {"mesh": "yes"}}]));
    cluster.server.put(CONFIG_MAPS, of_mesh);
    cluster.put_gateway("way");
    let replica = cluster
        .start_replica_with("one", &["--waypoints", r#"{"image": "w:1"}"#])
        .await;
    wait_for_value("the class", || {
        cluster.server.get(GATEWAY_CLASSES, "", "istio-waypoint")
    })
    .await;
    // A Gateway of a discovered namespace is handled after all that are due.
    let mut seen = cluster.server.get(GATEWAYS, "shop", "way").unwrap();
    seen["metadata"] = json!({"name": "seen", "namespace": "istio-system", "generation": 1});
    cluster.server.put(GATEWAYS, seen);
    wait_for_value("a waypoint", || {
        let server = &cluster.server;
        server.get(DEPLOYMENTS, "istio-system", "seen")
    })
    .await;
    assert_eq!(cluster.server.get(DEPLOYMENTS, "shop", "way"), None);
    cluster.server.put(CONFIG_MAPS, settings(json!([])));
    cluster.wait_until_deployed_by("istiod", "w:1").await;
    replica.running.stop().await;
}
