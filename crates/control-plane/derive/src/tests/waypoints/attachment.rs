//! Order in which labels and Gateways attach pods and services to waypoints.

use ambit_k8s_api::Kind;

use super::*;

const WP: &str = "shop/wp.shop.svc.cluster.local";
const CART_HOST: &str = "shop/cart.shop.svc.cluster.local";

pub(super) fn waypoint(of: &Workload) -> Option<String> {
    let own = of
        .endpoint_waypoint
        .as_ref()
        .map(|one| one.waypoint.clone());
    assert_eq!(own, of.waypoint, "both say the same");
    own.map(|address| address.destination.to_string())
}

pub(super) fn service_waypoint(mesh: &TestMesh) -> Option<String> {
    let address = mesh.service(CART_HOST).waypoint.as_ref();
    address.map(|address| address.destination.to_string())
}

#[test]
fn a_gateway_takes_the_pods_and_services_of_its_namespace() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, CART_SERVICE]));
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

pub(super) fn with_labels(yaml: &str, labels: &str) -> String {
    yaml.replacen("namespace: shop", &format!("namespace: shop, {labels}"), 1)
}

pub(super) fn namespace(labels: &str) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{{labels}}}}}\n")
}

pub(super) fn pod_labelled(labels: &str) -> String {
    cart_pod(&[("{app: cart}", &format!("{{app: cart, {labels}}}"))])
}

pub(super) fn service_labelled(labels: &str) -> String {
    with_labels(CART_SERVICE, &format!("labels: {{{labels}}}"))
}

const FOR_CART: &str = ", annotations: {istio.io/for-service-account: cart}";
const FOR_ALL: &str = ", labels: {istio.io/waypoint-for: all}";
const FOR_WORKLOADS: &str = ", labels: {istio.io/waypoint-for: workload}";
const FOR_SERVICES: &str = ", labels: {istio.io/waypoint-for: service}";
const FOR_NOTHING: &str = ", labels: {istio.io/waypoint-for: none}";
const USE_WP: &str = "istio.io/use-waypoint: wp";
const USE_NONE: &str = "istio.io/use-waypoint: none";
const USE_WP_OF_OTHER_NAMESPACE: &str =
    "istio.io/use-waypoint: wp, istio.io/use-waypoint-namespace: bank";

/// Row of a table: description, objects, expected waypoint of the pod, and of the service. Waypoints of `shop` are
/// given by name, others by their full host.
type AttachmentCase<'a> = (&'a str, Vec<String>, &'a str, &'a str);

fn check_attachments(attachment: WaypointAttachment, rows: Vec<AttachmentCase<'_>>) {
    let short = |name: Option<String>| {
        let name = name.unwrap_or_default();
        let own = name.strip_suffix(".shop.svc.cluster.local");
        own.and_then(|own| own.strip_prefix("shop/"))
            .map_or_else(|| name.clone(), str::to_owned)
    };
    for (what, objects, pod, service) in rows {
        let mut mesh = TestMesh::with_config(MeshConfig {
            waypoint_attachment: attachment,
            ..MeshConfig::default()
        });
        let mut kinds: Vec<&str> = objects.iter().map(String::as_str).collect();
        if !objects.iter().any(|one| one.contains("kind: Pod")) {
            kinds.push(CART_POD);
        }
        if !objects.iter().any(|one| one.contains("kind: Service\n")) {
            kinds.push(CART_SERVICE);
        }
        mesh.apply(&join_documents(&kinds));
        let found = (
            short(waypoint(mesh.pod("cart-1"))),
            short(service_waypoint(&mesh)),
        );
        assert_eq!(
            (found.0.as_str(), found.1.as_str()),
            (pod, service),
            "{what}"
        );
    }
}

#[test]
fn account_precedes_namespace_and_age_precedes_name() {
    let gw = gateway;
    let old = ", creationTimestamp: \"2025-01-01T00:00:00Z\"";
    let new = ", creationTimestamp: \"2026-01-01T00:00:00Z\"";
    let both = |one: &str, other: &str| format!("{one}{other}");
    let other_account = ", annotations: {istio.io/for-service-account: web}";
    check_attachments(
        WaypointAttachment::LabelsAndGateways,
        vec![
            ("nothing", vec![], "", ""),
            ("the namespace's", vec![gw("wp", "")], "wp", "wp"),
            ("the account's", vec![gw("wp", ""), gw("sa", FOR_CART)], "sa", ""),
            ("only the account's", vec![gw("sa", FOR_CART)], "sa", ""),
            ("of another account", vec![gw("sa", other_account)], "", ""),
            ("the older", vec![gw("a", new), gw("b", old)], "b", "b"),
            ("the first by name", vec![gw("b", ""), gw("a", "")], "a", "a"),
            (
                "two of one account",
                vec![gw("a", &both(FOR_CART, new)), gw("b", &both(FOR_CART, old))],
                "b",
                "",
            ),
            ("for workloads", vec![gw("wp", FOR_WORKLOADS)], "wp", ""),
            ("for services", vec![gw("wp", FOR_SERVICES)], "", "wp"),
            ("for nothing", vec![gw("wp", FOR_NOTHING)], "", ""),
            (
                "one for each",
                vec![gw("a", FOR_WORKLOADS), gw("b", FOR_SERVICES)],
                "a",
                "b",
            ),
            (
                "of another class, which has no address",
                vec![gw("wp", "").replace("istio-waypoint", "istio")],
                "",
                "",
            ),
            (
                "of a class of the controller",
                vec![
                    gw("wp", "").replace("istio-waypoint", "mine"),
                    "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: mine}\nspec: {controllerName: istio.io/mesh-controller}\n".to_owned(),
                ],
                "wp",
                "wp",
            ),
            (
                "a pod that chooses another",
                vec![gw("wp", ""), gw("own", FOR_ALL), pod_labelled("istio.io/use-waypoint: own")],
                "own",
                "",
            ),
            (
                "a pod that opts out",
                vec![gw("wp", ""), pod_labelled(USE_NONE)],
                "",
                "",
            ),
            (
                "a service that opts out",
                vec![gw("wp", ""), service_labelled(USE_NONE)],
                "wp",
                "",
            ),
            (
                "a pod in the node's network",
                vec![gw("wp", ""), cart_pod(&[("nodeName: n1", "nodeName: n1\n  hostNetwork: true")])],
                "",
                "wp",
            ),
            (
                "a waypoint's own pod",
                vec![
                    gw("wp", ""),
                    pod_labelled("gateway.networking.k8s.io/gateway-name: wp")
                        .replace("serviceAccountName: cart", "serviceAccountName: wp"),
                ],
                "",
                "wp",
            ),
            (
                "a pod that says it is a waypoint's",
                vec![gw("wp", ""), pod_labelled("gateway.networking.k8s.io/gateway-name: wp")],
                "wp",
                "wp",
            ),
            (
                "a service without pods of its own",
                vec![gw("wp", ""), CART_SERVICE.replace("  selector: {app: cart}\n", "")],
                "wp",
                "",
            ),
        ],
    );
}

#[test]
fn object_labels_precede_namespaces_and_gateways() {
    let gw = gateway;
    let rows = || {
        vec![
            (
                "the namespace's, for services",
                vec![gw("wp", ""), namespace(USE_WP)],
                "",
                "wp",
            ),
            (
                "the namespace's, for all",
                vec![gw("wp", FOR_ALL), namespace(USE_WP)],
                "wp",
                "wp",
            ),
            (
                "the namespace's, for workloads",
                vec![gw("wp", FOR_WORKLOADS), namespace(USE_WP)],
                "wp",
                "",
            ),
            (
                "the namespace opts out",
                vec![gw("wp", FOR_ALL), namespace(USE_NONE)],
                "",
                "",
            ),
            (
                "the pod asks for one that is for services",
                vec![
                    gw("wp", FOR_SERVICES),
                    namespace(USE_NONE),
                    pod_labelled(USE_WP),
                ],
                "",
                "",
            ),
            (
                "the service opts out",
                vec![
                    gw("wp", FOR_ALL),
                    namespace(USE_WP),
                    service_labelled(USE_NONE),
                ],
                "wp",
                "",
            ),
            (
                "a namespace label alone means nothing",
                vec![
                    gw("wp", FOR_NOTHING),
                    namespace("istio.io/use-waypoint-namespace: bank"),
                ],
                "",
                "",
            ),
        ]
    };
    check_attachments(WaypointAttachment::LabelsAndGateways, rows());
    check_attachments(WaypointAttachment::LabelsOnly, rows());
    check_attachments(
        WaypointAttachment::LabelsOnly,
        vec![
            (
                "Gateways alone",
                vec![gw("wp", ""), gw("sa", FOR_CART)],
                "",
                "",
            ),
            (
                "a pod's own",
                vec![gw("wp", FOR_ALL), pod_labelled(USE_WP)],
                "wp",
                "",
            ),
        ],
    );
}

#[test]
fn workload_waypoints_enforce_nothing_where_istios_meaning_is_set() {
    for (setting, enforces) in [
        (WorkloadWaypoints::AllClients, true),
        (WorkloadWaypoints::CapturedClients, false),
    ] {
        let mut mesh = TestMesh::with_config(MeshConfig {
            waypoint_attachment: WaypointAttachment::LabelsOnly,
            workload_waypoints: setting,
            ..MeshConfig::default()
        });
        mesh.apply(&join_documents(&[
            &gateway("wp", FOR_ALL),
            &pod_labelled(USE_WP),
        ]));
        let pod = mesh.pod("cart-1");
        let dialled = pod.waypoint.as_ref().unwrap().destination.to_string();
        assert_eq!(dialled, WP, "who dials the pod's address goes through it");
        let enforced = pod.endpoint_waypoint.as_ref().map(|one| one.enforce);
        assert_eq!(enforced, enforces.then_some(true));
    }
}

#[test]
fn waypoints_of_other_namespaces_serve_whom_they_allow() {
    let gw = gateway;
    let bank = |from: &str| {
        gw("wp", FOR_ALL)
            .replace("namespace: shop", "namespace: bank")
            .replace(
                "protocol: HBONE",
                &format!("protocol: HBONE, allowedRoutes: {{namespaces: {{{from}}}}}"),
            )
    };
    let selector = "from: Selector, selector: {matchLabels: {team: a}}";
    let by_name = "from: Selector, selector: {matchLabels: {kubernetes.io/metadata.name: shop}}";
    let there = "bank/wp.bank.svc.cluster.local";
    let denied = "bank/not-permitted.wp.bank.waypoint.invalid";
    check_attachments(
        WaypointAttachment::LabelsAndGateways,
        vec![
            (
                "elsewhere, same only",
                vec![bank("from: Same"), namespace(USE_WP_OF_OTHER_NAMESPACE)],
                denied,
                denied,
            ),
            (
                "elsewhere, all",
                vec![bank("from: All"), namespace(USE_WP_OF_OTHER_NAMESPACE)],
                there,
                there,
            ),
            (
                "elsewhere, nobody",
                vec![bank("from: None"), namespace(USE_WP_OF_OTHER_NAMESPACE)],
                denied,
                denied,
            ),
            (
                "elsewhere, unknown",
                vec![bank("from: Some"), namespace(USE_WP_OF_OTHER_NAMESPACE)],
                denied,
                denied,
            ),
            (
                "elsewhere, selected",
                vec![
                    bank(selector),
                    namespace(&format!("{USE_WP_OF_OTHER_NAMESPACE}, team: a")),
                ],
                there,
                there,
            ),
            (
                "elsewhere, not selected",
                vec![
                    bank(selector),
                    namespace(&format!("{USE_WP_OF_OTHER_NAMESPACE}, team: b")),
                ],
                denied,
                denied,
            ),
            (
                "elsewhere, by the namespace's name",
                vec![
                    bank(by_name),
                    pod_labelled(USE_WP_OF_OTHER_NAMESPACE),
                    service_labelled(USE_WP_OF_OTHER_NAMESPACE),
                ],
                there,
                there,
            ),
        ],
    );
}

#[test]
fn unresolved_waypoint_fails_closed() {
    let gw = gateway;
    let missing = "shop/missing.wp.shop.waypoint.invalid";
    check_attachments(
        WaypointAttachment::LabelsAndGateways,
        vec![
            (
                "the service names one that is missing, and the namespace one that is there",
                vec![
                    gw("other", ""),
                    namespace("istio.io/use-waypoint: other"),
                    service_labelled(USE_WP),
                ],
                "",
                missing,
            ),
            (
                "a namespace's that is missing",
                vec![namespace(USE_WP)],
                missing,
                missing,
            ),
            (
                "of another class",
                vec![
                    gw("wp", "").replace("istio-waypoint", "istio"),
                    namespace(USE_WP),
                ],
                "shop/no-address.wp.shop.waypoint.invalid",
                "shop/no-address.wp.shop.waypoint.invalid",
            ),
            (
                "a service asks for one that is for workloads",
                vec![
                    gw("wp", FOR_WORKLOADS),
                    namespace(USE_NONE),
                    service_labelled(USE_WP),
                ],
                "",
                "shop/unsupported-type.wp.shop.waypoint.invalid",
            ),
        ],
    );
}

#[test]
fn what_cannot_be_found_may_be_allowed() {
    let mut mesh = TestMesh::with_config(MeshConfig {
        waypoint_missing: WaypointMissing::BypassWaypoint,
        ..MeshConfig::default()
    });
    mesh.apply(&join_documents(&[
        &pod_labelled(USE_WP),
        &service_labelled(USE_WP),
    ]));
    assert_eq!(waypoint(mesh.pod("cart-1")), None);
    assert_eq!(service_waypoint(&mesh), None);
}

#[test]
fn what_is_refused_is_enforced_with_nobody_let_through() {
    let mesh = TestMesh::from_yaml(&pod_labelled(USE_WP));
    let own = mesh.pod("cart-1").endpoint_waypoint.clone().unwrap();
    assert!(own.enforce && own.identities.is_empty());
}

#[test]
fn a_waypoint_does_not_go_through_itself() {
    let of_wp = with_labels(
        &CART_SERVICE.replace("name: cart", "name: wp"),
        "labels: {gateway.istio.io/managed: istio.io-mesh-controller}",
    );
    let mesh = TestMesh::from_yaml(&join_documents(&[
        &of_wp,
        &gateway("wp", FOR_ALL),
        &namespace(USE_WP),
    ]));
    assert_eq!(mesh.service(WP).waypoint, None);
    let managed = of_wp
        .replace("name: wp", "name: x")
        .replace("mesh-controller", "eastwest-controller");
    let mesh = TestMesh::from_yaml(&join_documents(&[
        &managed,
        &gateway("wp", FOR_ALL),
        &namespace(USE_WP),
    ]));
    assert_eq!(mesh.service("shop/x.shop.svc.cluster.local").waypoint, None);
}

#[test]
fn changes_reach_what_they_concern() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        CART_POD,
        CART_SERVICE,
        &gateway("wp", ""),
    ]));
    let second = CART_POD
        .replace("cart-1", "cart-2")
        .replace("10.1.2.3", "10.1.2.4");
    let opting_out = second.replace("{app: cart}", &format!("{{app: cart, {USE_NONE}}}"));
    mesh.apply(&opting_out);
    assert_eq!(service_waypoint(&mesh), None, "it depends on the endpoint");
    assert!(
        mesh.waypoint_services
            .contains_key(&format!("shop/wp {CART_HOST}"))
    );
    mesh.apply(&second);
    assert_eq!(service_waypoint(&mesh).as_deref(), Some(WP));
    mesh.apply(&gateway("sa", FOR_CART));
    assert_eq!(service_waypoint(&mesh), None);
    let names: Vec<_> = mesh.waypoint_services.keys().cloned().collect();
    assert_eq!(names, [format!("shop/sa {CART_HOST}")]);
    mesh.apply(&namespace(USE_NONE));
    assert_eq!(waypoint(mesh.pod("cart-1")), None);
    assert!(mesh.waypoint_services.is_empty());
    mesh.delete(Kind::Namespace, "", "shop");
    assert_eq!(
        waypoint(mesh.pod("cart-1")).as_deref(),
        Some("shop/sa.shop.svc.cluster.local")
    );
}

#[test]
fn a_gateway_with_the_name_of_an_application_is_nobodys_identity() {
    // Pods of the account `cart` are the application's.
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, &gateway("cart", "")]));
    assert!(mesh.waypoint_gateways.contains_key("gateway shop/cart"));
    mesh.apply(CART_SERVICE);
    assert!(mesh.waypoint_gateways.is_empty() && mesh.waypoint_services.is_empty());
    let own = mesh.pod("cart-1").endpoint_waypoint.clone().unwrap();
    assert!(own.enforce && own.identities.is_empty());
    assert_eq!(
        own.waypoint.destination.to_string(),
        "shop/name-taken.cart.shop.waypoint.invalid"
    );
    mesh.delete(Kind::Service, "shop", "cart");
    assert!(mesh.waypoint_gateways.contains_key("gateway shop/cart"));
    // Every pod that names no account has this one.
    assert!(
        TestMesh::from_yaml(&gateway("default", ""))
            .waypoint_gateways
            .is_empty()
    );
}

const CANARY_METADATA: &str = "labels: {istio.io/use-waypoint: wp, istio.io/use-waypoint-canary: wq}, annotations: {istio.io/use-waypoint-canary-weight: '10'}";

/// Returns the service's waypoints with their weights, whether the canary receives the service, and the condition
/// `WaypointBound`.
fn canary_state(mesh: &TestMesh) -> (Vec<(String, u32)>, bool, String) {
    let name = "shop/cart.shop.svc.cluster.local";
    let weighted = mesh.services[name].weighted_waypoints.iter();
    let weighted = weighted.map(|one| (one.destination.destination.to_string(), one.weight));
    let is_published = mesh
        .waypoint_services
        .contains_key(&format!("shop/wq {name}"));
    let key = ObjectKey::new(Kind::Service, "shop", "cart");
    let condition = mesh.index.derived_status(&key).unwrap().condition.clone();
    let condition = condition.unwrap();
    let condition = format!(
        "{} {} {}",
        condition.is_true, condition.reason, condition.message
    );
    (weighted.collect(), is_published, condition)
}

fn waypoint_pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}-1, namespace: shop, uid: {name}, labels: \
         {{gateway.networking.k8s.io/gateway-name: {name}}}}}\nspec: {{nodeName: n1, serviceAccountName: {name}, \
         containers: []}}\nstatus: {{phase: Running, podIP: 10.0.9.{}, podIPs: [{{ip: 10.0.9.{}}}], conditions: \
         [{{type: Ready, status: 'True'}}]}}\n",
        name.as_bytes()[1],
        name.as_bytes()[1]
    )
}

#[test]
fn a_canary_has_its_share_of_connections_and_is_ignored_where_it_cannot() {
    let bound = CART_SERVICE.replacen(
        "namespace: shop",
        &format!("namespace: shop, {CANARY_METADATA}"),
        1,
    );
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        &bound,
        CART_POD,
        &gateway("wp", ""),
        &waypoint_pod("wp"),
        &gateway("wq", ""),
    ]));
    let (weighted, is_published, condition) = canary_state(&mesh);
    assert!(weighted.is_empty() && !is_published, "{weighted:?}");
    assert!(
        condition.starts_with("true WaypointAccepted")
            && condition.contains("no pod of it is ready"),
        "{condition}"
    );
    mesh.apply(&waypoint_pod("wq"));
    let (weighted, is_published, condition) = canary_state(&mesh);
    let names = ["wp", "wq"].map(|one| format!("shop/{one}.shop.svc.cluster.local"));
    let [first, second] = names;
    assert_eq!(weighted, [(first, 90), (second, 10)]);
    assert!(
        is_published && condition.contains("10 % of connections"),
        "{condition}"
    );
    for (change, reason) in [
        ("'101'", "CanaryInvalidWeight"),
        ("'-1'", "CanaryInvalidWeight"),
        ("half", "CanaryInvalidWeight"),
    ] {
        mesh.apply(&bound.replace("'10'", change));
        let (weighted, is_published, condition) = canary_state(&mesh);
        assert!(weighted.is_empty() && !is_published);
        assert!(
            condition.starts_with(&format!("false {reason}")),
            "{condition}"
        );
    }
    mesh.apply(&bound.replace("use-waypoint-canary: wq", "use-waypoint-canary: wp"));
    assert!(
        canary_state(&mesh)
            .2
            .starts_with("false CanarySameAsPrimary")
    );
    mesh.apply(&bound.replace("use-waypoint-canary: wq", "use-waypoint-canary: none-such"));
    let (weighted, _, condition) = canary_state(&mesh);
    assert!(
        weighted.is_empty() && condition.contains("is ignored (missing)"),
        "{condition}"
    );
    // It goes, and the first one has all.
    mesh.apply(&bound);
    assert_eq!(canary_state(&mesh).0.len(), 2);
    mesh.delete(Kind::Gateway, "shop", "wq");
    assert!(canary_state(&mesh).0.is_empty());
    mesh.apply(&gateway("wq", ""));
    assert_eq!(canary_state(&mesh).0.len(), 2);
    // Where the first one cannot be resolved, the second does not take its place.
    mesh.delete(Kind::Gateway, "shop", "wp");
    assert!(canary_state(&mesh).0.is_empty());
}

#[test]
fn namespace_label_sets_canary_and_ingress_use() {
    let of_namespace = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, {}}}\n",
        CANARY_METADATA.replace(
            "labels: {",
            "labels: {istio.io/ingress-use-waypoint: 'true', "
        )
    );
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &waypoint_pod("wp"),
        &gateway("wq", ""),
        &waypoint_pod("wq"),
        &of_namespace,
    ]));
    assert_eq!(canary_state(&mesh).0.len(), 2);
    assert!(
        canary_state(&mesh)
            .2
            .contains("ingress traffic is sent through it")
    );
    mesh.apply(&of_namespace.replace("'10'", "'20'"));
    assert_eq!(canary_state(&mesh).0[1].1, 20);
    let own = CART_SERVICE.replacen(
        "namespace: shop",
        "namespace: shop, labels: {istio.io/use-waypoint: wp, istio.io/ingress-use-waypoint: 'false'}",
        1,
    );
    mesh.apply(&own);
    let (weighted, _, condition) = canary_state(&mesh);
    assert!(
        weighted.is_empty(),
        "the level that names the first decides"
    );
    assert!(!condition.contains("ingress"), "{condition}");
}
