//! Pods of waypoints: only pods with both the Gateway's label and the waypoint's service account.

use ambit_k8s_api::Kind;
use ambit_model::WorkloadStatus;

use super::{routes_and_conditions::waypoint_condition, *};
use crate::{
    condition::{ConditionInput, GATEWAY_EFFECTIVE},
    tests::waypoints::attachment::{namespace, waypoint, with_labels},
};

const OWN_HOST: &str = "shop/wp.shop.svc.cluster.local";
pub(super) const GATEWAY_NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name: wp";

/// Returns a ready pod of `shop` with other labels and another service account than `cart-1`.
pub(super) fn pod(name: &str, labels: &str, account: &str, ip: &str) -> String {
    cart_pod(&[
        ("name: cart-1", &format!("name: {name}")),
        ("{app: cart}", &format!("{{{labels}}}")),
        (
            "serviceAccountName: cart",
            &format!("serviceAccountName: {account}"),
        ),
        ("10.1.2.3", ip),
        (
            "fd00::3",
            &format!("fd00::{}", ip.rsplit('.').next().unwrap()),
        ),
    ])
}

/// Returns the waypoint's Service, as the controller generates it.
pub(super) fn waypoint_service() -> String {
    with_labels(
        &CART_SERVICE
            .replace("name: cart", "name: wp")
            .replace("10.96.0.9", "10.96.0.10")
            .replace("{app: cart}", &format!("{{{GATEWAY_NAME_LABEL}}}")),
        "labels: {gateway.istio.io/managed: istio.io-mesh-controller}",
    )
}

pub(super) fn effective_message(mesh: &TestMesh) -> Option<String> {
    let key = ObjectKey::new(Kind::Gateway, "shop", "wp");
    let problems = mesh.index.problems_of(&key);
    let condition = (GATEWAY_EFFECTIVE.build)(&ConditionInput {
        problems: &problems,
        is_in_force: false,
        is_attached: false,
        derived_status: mesh.index.derived_status(&key),
    });
    condition.map(|condition| {
        assert!(!condition.is_true && condition.needs_attention);
        condition.message
    })
}

fn is_waypoint_endpoint(mesh: &TestMesh, pod: &str) -> bool {
    let own = NamespacedHostname::new("shop", "wp.shop.svc.cluster.local");
    mesh.pod(pod).services.contains_key(&own)
}

#[test]
fn a_label_without_the_account_makes_no_pod_a_waypoint() {
    let own = pod("wp-1", GATEWAY_NAME_LABEL, "wp", "10.1.2.9");
    let evil = pod("evil", GATEWAY_NAME_LABEL, "evil", "10.1.2.66");
    let objects = [
        &waypoint_service(),
        &own,
        &evil,
        // By hand, and from outside.
        "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm, namespace: shop}\nspec: {address: 192.0.2.7, serviceAccount: vm, labels: {gateway.networking.k8s.io/gateway-name: wp}}\n",
    ];
    let mut mesh = TestMesh::from_yaml(&join_documents(&objects));
    assert!(
        is_waypoint_endpoint(&mesh, "evil"),
        "without a Gateway it is a Service like others"
    );
    mesh.apply(&gateway("wp", ""));
    assert!(is_waypoint_endpoint(&mesh, "wp-1") && !is_waypoint_endpoint(&mesh, "evil"));
    let vm = &mesh.workloads["c1/networking.istio.io/WorkloadEntry/shop/vm"];
    assert!(vm.services.is_empty());
    assert_eq!(waypoint(mesh.pod("wp-1")), None);
    assert_eq!(
        waypoint(mesh.pod("evil")).as_deref(),
        Some(OWN_HOST),
        "it goes through the waypoint as any pod does"
    );
    let message = effective_message(&mesh).unwrap();
    assert!(
        message.starts_with("Pod evil carries the label"),
        "{message}"
    );
    // It goes, and nothing is left to say.
    mesh.delete(Kind::Pod, "shop", "evil");
    assert_eq!(effective_message(&mesh), None);
    mesh.apply(&evil);
    mesh.delete(Kind::Gateway, "shop", "wp");
    assert!(is_waypoint_endpoint(&mesh, "evil"));
    assert!(mesh.problems().is_empty(), "{:?}", mesh.problems());
}

#[test]
fn endpoints_that_are_written_by_hand_are_none_of_a_waypoints() {
    let without_selector =
        waypoint_service().replace(&format!("  selector: {{{GATEWAY_NAME_LABEL}}}\n"), "");
    let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, namespace: shop, labels: {kubernetes.io/service-name: wp}}\naddressType: IPv4\nendpoints: [{addresses: [192.0.2.7]}, {addresses: [10.1.2.66], targetRef: {kind: Pod, name: evil, namespace: shop}}]\nports: [{port: 15008}]\n";
    let evil = pod("evil", "app: evil", "evil", "10.1.2.66");
    let mut mesh = TestMesh::from_yaml(&join_documents(&[&without_selector, slice, &evil]));
    let by_hand = |mesh: &TestMesh| {
        mesh.workloads
            .keys()
            .any(|uid| uid.contains("EndpointSlice"))
    };
    assert!(by_hand(&mesh) && is_waypoint_endpoint(&mesh, "evil"));
    mesh.apply(&gateway("wp", ""));
    assert!(!by_hand(&mesh) && !is_waypoint_endpoint(&mesh, "evil"));
    mesh.delete(Kind::Gateway, "shop", "wp");
    assert!(by_hand(&mesh) && is_waypoint_endpoint(&mesh, "evil"));
}

#[test]
fn what_runs_under_a_waypoints_account_is_named_on_its_gateway() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[&waypoint_service(), &gateway("wp", "")]));
    assert_eq!(effective_message(&mesh), None);
    let ghost = |number: u8| {
        let ip = format!("10.1.2.{}", 20 + number);
        pod(&format!("ghost-{number}"), "app: ghost", "wp", &ip)
    };
    mesh.apply(&ghost(1));
    let message = effective_message(&mesh).unwrap();
    assert!(
        message.starts_with("Pod ghost-1 runs under the waypoint's service account wp"),
        "{message}"
    );
    assert!(!is_waypoint_endpoint(&mesh, "ghost-1"));
    assert_eq!(waypoint(mesh.pod("ghost-1")).as_deref(), Some(OWN_HOST));
    let vm = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm, namespace: shop}\nspec: {address: 192.0.2.7, serviceAccount: wp}\n";
    mesh.apply(&join_documents(&[&ghost(2), &ghost(3), vm]));
    let message = effective_message(&mesh).unwrap();
    assert!(
        message.starts_with("Pod ghost-1, Pod ghost-2, Pod ghost-3 and 1 more runs"),
        "{message}"
    );
    for name in ["ghost-1", "ghost-2", "ghost-3"] {
        mesh.delete(Kind::Pod, "shop", name);
    }
    assert!(
        effective_message(&mesh)
            .unwrap()
            .starts_with("WorkloadEntry vm")
    );
    mesh.delete(Kind::WorkloadEntry, "shop", "vm");
    assert_eq!(effective_message(&mesh), None);
    // Another namespace's account of that name is another identity.
    mesh.apply(&ghost(1).replace("namespace: shop", "namespace: bank"));
    assert_eq!(effective_message(&mesh), None);
}

#[test]
fn a_label_of_no_gateway_takes_no_pod_off_its_waypoint() {
    let enrolled = namespace("istio.io/use-waypoint: wp");
    let for_all = gateway("wp", ", labels: {istio.io/waypoint-for: all}");
    let claims = "gateway.networking.k8s.io/gateway-name: gone";
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        &enrolled,
        &for_all,
        &pod("a", claims, "a", "10.1.2.3"),
    ]));
    assert_eq!(waypoint(mesh.pod("a")).as_deref(), Some(OWN_HOST));
    // An ingress gateway's pods are called by clients outside, and stay as they are.
    mesh.apply(&gateway("gone", "").replace("istio-waypoint", "istio"));
    assert_eq!(waypoint(mesh.pod("a")), None);
    mesh.delete(Kind::Gateway, "shop", "gone");
    assert_eq!(waypoint(mesh.pod("a")).as_deref(), Some(OWN_HOST));
}

#[test]
fn service_record_has_readiness_of_its_waypoint() {
    let own = pod("wp-1", GATEWAY_NAME_LABEL, "wp", "10.1.2.9");
    let starting = own.replace("status: \"True\"", "status: \"False\"");
    let bound = with_labels(CART_SERVICE, "labels: {istio.io/use-waypoint: wp}");
    let of_pods = pod(
        "cart-1",
        "app: cart, istio.io/use-waypoint: wp",
        "cart",
        "10.1.2.3",
    );
    let for_all = gateway("wp", ", labels: {istio.io/waypoint-for: all}");
    for (what, attachment, service, cart) in [
        (
            "the Service's label",
            WaypointAttachment::LabelsOnly,
            bound.as_str(),
            CART_POD,
        ),
        (
            "its namespace's Gateway",
            WaypointAttachment::LabelsAndGateways,
            CART_SERVICE,
            CART_POD,
        ),
        (
            "labels of its endpoints",
            WaypointAttachment::LabelsOnly,
            CART_SERVICE,
            &of_pods,
        ),
    ] {
        let mut mesh = TestMesh::with_config(MeshConfig {
            waypoint_attachment: attachment,
            ..MeshConfig::default()
        });
        let service_condition =
            |mesh: &TestMesh| waypoint_condition(mesh, Kind::Service, "shop", "cart");
        mesh.apply(&join_documents(&[
            service,
            cart,
            &for_all,
            &waypoint_service(),
        ]));
        assert_eq!(service_condition(&mesh), "false NoReadyWaypoint", "{what}");
        mesh.apply(&starting);
        assert_eq!(service_condition(&mesh), "false NoReadyWaypoint", "{what}");
        let records = mesh.apply(&own);
        assert_eq!(service_condition(&mesh), "true WaypointAccepted", "{what}");
        // Only the pod itself is news to proxies.
        assert_eq!(records, ["c1//Pod/shop/wp-1"], "{what}");
        // One that only claims it does not count.
        mesh.apply(&pod("evil", GATEWAY_NAME_LABEL, "evil", "10.1.2.66"));
        mesh.delete(Kind::Pod, "shop", "wp-1");
        assert_eq!(service_condition(&mesh), "false NoReadyWaypoint", "{what}");
        mesh.apply(&own);
        assert_eq!(service_condition(&mesh), "true WaypointAccepted", "{what}");
    }
}

#[test]
fn pods_that_leave_and_serve_on_stand_in_until_another_is_ready() {
    let left = |pod: &str| {
        pod.replace(
            "  uid: u1",
            "  uid: u1\n  deletionTimestamp: \"2026-01-01T00:00:00Z\"",
        )
    };
    let unready = |pod: &str| pod.replace("status: \"True\"", "status: \"False\"");
    let first = pod("wp-1", GATEWAY_NAME_LABEL, "wp", "10.1.2.9");
    let second = pod("wp-2", GATEWAY_NAME_LABEL, "wp", "10.1.2.10");
    let next = pod("wp-3", GATEWAY_NAME_LABEL, "wp", "10.1.2.11");
    let stranger = left(&pod("evil", GATEWAY_NAME_LABEL, "evil", "10.1.2.66"));
    let other = left(&pod("other", "app: other", "other", "10.1.2.67"));
    let objects = join_documents(&[
        &waypoint_service(),
        &gateway("wp", ""),
        &first,
        &second,
        &stranger,
        &other,
    ]);
    let mut mesh = TestMesh::from_yaml(&objects);
    let healthy = |mesh: &TestMesh| {
        let pods = ["wp-1", "wp-2", "evil", "other"];
        pods.map(|pod| mesh.pod(pod).status == WorkloadStatus::Healthy)
    };
    assert_eq!(healthy(&mesh), [true, true, false, false]);
    mesh.apply(&left(&first));
    assert_eq!(healthy(&mesh), [false, true, false, false]);
    mesh.apply(&left(&second));
    assert_eq!(healthy(&mesh), [true, true, false, false]);
    // One that reports that it is not ready has ended; one that starts is none yet.
    mesh.apply(&unready(&left(&first)));
    mesh.apply(&unready(&next));
    assert_eq!(healthy(&mesh), [false, true, false, false]);
    mesh.apply(&next);
    assert_eq!(healthy(&mesh), [false, false, false, false]);
    // Without its Gateway it is a pod like others.
    mesh.apply(&unready(&next));
    assert_eq!(healthy(&mesh), [false, true, false, false]);
    mesh.delete(Kind::Gateway, "shop", "wp");
    assert_eq!(healthy(&mesh), [false, false, false, false]);
}
