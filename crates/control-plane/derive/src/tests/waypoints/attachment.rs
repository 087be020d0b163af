//! The order in which labels and Gateways attach.

use ambit_k8s_api::Kind;

use super::*;

const WP: &str = "shop/wp.shop.svc.cluster.local";
const CART_HOST: &str = "shop/cart.shop.svc.cluster.local";

fn waypoint(of: &Workload) -> Option<String> {
    let own = of
        .endpoint_waypoint
        .as_ref()
        .map(|one| one.waypoint.clone());
    assert_eq!(own, of.waypoint, "both say the same");
    own.map(|address| address.destination.to_string())
}

fn service_waypoint(mesh: &TestMesh) -> Option<String> {
    let address = mesh.service(CART_HOST).waypoint.as_ref();
    address.map(|address| address.destination.to_string())
}

#[test]
fn a_gateway_takes_the_pods_and_services_of_its_namespace() {
    let mut mesh = TestMesh::of(&all(&[CART, SERVICE]));
    assert_eq!(waypoint(mesh.pod("cart-1")), None);
    let changed = mesh.apply(&gateway("wp", ""));
    assert_eq!(
        changed,
        [
            "c1//Pod/shop/cart-1",
            CART_HOST,
            "gateway shop/wp",
            "shop/wp shop/cart.shop.svc.cluster.local"
        ]
    );
    assert_eq!(waypoint(mesh.pod("cart-1")).as_deref(), Some(WP));
    assert_eq!(service_waypoint(&mesh).as_deref(), Some(WP));
    let own = mesh.pod("cart-1").endpoint_waypoint.clone().unwrap();
    assert!(own.enforce && own.for_services);
    assert_eq!(
        own.identities[0].to_string(),
        "spiffe://cluster.local/ns/shop/sa/wp"
    );
    mesh.delete(Kind::Gateway, "shop", "wp");
    assert_eq!(waypoint(mesh.pod("cart-1")), None);
    assert_eq!(service_waypoint(&mesh), None);
    assert!(mesh.waypoint_services.is_empty() && mesh.waypoint_gateways.is_empty());
}
