//! Time from which a waypoint binds objects: before or after it has been ready.

use ambit_k8s_api::Kind;

use super::{
    attachment::{namespace, pod_labelled, service_labelled, service_waypoint, waypoint},
    *,
};

const CART_HOST: &str = "shop/cart.shop.svc.cluster.local";
const FOR_ALL: &str = ", labels: {istio.io/waypoint-for: all}";
const USE_A: &str = "istio.io/use-waypoint: a";
const USE_B: &str = "istio.io/use-waypoint: b";

/// Builds a mesh with attachment by labels only, whose waypoints bind objects once they have been ready.
fn mesh(objects: &[&str]) -> TestMesh {
    mesh_with_settings(
        WaypointAttachment::LabelsOnly,
        WaypointBinding::WhenReady,
        objects,
    )
}

fn mesh_with_settings(
    waypoint_attachment: WaypointAttachment,
    waypoint_binding: WaypointBinding,
    objects: &[&str],
) -> TestMesh {
    let mut mesh = TestMesh::with_config(MeshConfig {
        waypoint_attachment,
        waypoint_binding,
        ..MeshConfig::default()
    });
    mesh.apply(&join_documents(objects));
    mesh
}

/// Returns a Gateway with a UID whose waypoint serves services and workloads.
fn gateway_for_all(name: &str, uid: &str) -> String {
    gateway(name, &format!("{FOR_ALL}, uid: {uid}"))
}

fn with_introduced_condition(gateway: &str, is_true: &str) -> String {
    format!(
        "{gateway}status: {{conditions: [{{type: ambit.io/Introduced, status: \"{is_true}\"}}]}}\n"
    )
}

/// Returns a pod of a waypoint in `shop`.
fn waypoint_pod(gateway: &str, is_ready: bool) -> String {
    let ready = format!(
        "type: Ready, status: \"{}\"",
        if is_ready { "True" } else { "False" }
    );
    cart_pod(&[
        ("name: cart-1", &format!("name: {gateway}-pod")),
        (
            "{app: cart}",
            &format!("{{gateway.networking.k8s.io/gateway-name: {gateway}}}"),
        ),
        (
            "serviceAccountName: cart",
            &format!("serviceAccountName: {gateway}"),
        ),
        (
            "10.1.2.3",
            if gateway == "a" {
                "10.1.9.1"
            } else {
                "10.1.9.2"
            },
        ),
        (
            "fd00::3",
            if gateway == "a" {
                "fd00::91"
            } else {
                "fd00::92"
            },
        ),
        ("type: Ready, status: \"True\"", &ready),
    ])
}

fn policy(kind: &str, target: &str) -> String {
    let (version, spec) = match kind {
        "AuthorizationPolicy" => ("security.istio.io/v1", "action: DENY, rules: [{}]"),
        "RequestAuthentication" => (
            "security.istio.io/v1",
            "jwtRules: [{issuer: a, jwks: '{\"keys\":[]}'}]",
        ),
        "RateLimit" => ("ambit.io/v1alpha1", "local: [{requests: 10, per: 1s}]"),
        _ => (
            "extensions.istio.io/v1alpha1",
            "url: 'oci://example.com/plugin'",
        ),
    };
    format!(
        "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: p, namespace: shop}}\n\
         spec: {{targetRefs: [{target}], {spec}}}\n"
    )
}

fn destination_rule(traffic_policy: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: p, namespace: shop}}\n\
         spec: {{host: cart, trafficPolicy: {traffic_policy}}}\n"
    )
}

fn backend_tls() -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {{name: p, namespace: shop}}\n\
         spec: {{targetRefs: [{SERVICE_TARGET}], validation: {{hostname: cart, wellKnownCACertificates: System}}}}\n"
    )
}

const SERVICE_TARGET: &str = "{group: '', kind: Service, name: cart}";
const GATEWAY_TARGET: &str = "{group: gateway.networking.k8s.io, kind: Gateway, name: a}";

/// Returns the names of the waypoints that the pod and its Service have.
fn bound_status(mesh: &TestMesh) -> (String, String) {
    let short = |name: Option<String>| {
        let name = name.unwrap_or_default();
        let own = name.strip_suffix(".shop.svc.cluster.local");
        let own = own.and_then(|own| own.strip_prefix("shop/"));
        own.map_or_else(|| name.clone(), str::to_owned)
    };
    (
        short(waypoint(mesh.pod("cart-1"))),
        short(service_waypoint(mesh)),
    )
}

#[track_caller]
fn assert_bound(mesh: &TestMesh, expected: &str) {
    assert_eq!(
        bound_status(mesh),
        (expected.to_owned(), expected.to_owned())
    );
}

fn waypoint_condition(mesh: &TestMesh) -> crate::condition::ConditionContent {
    let key = ObjectKey::new(Kind::Service, "shop", "cart");
    mesh.index
        .derived_status(&key)
        .unwrap()
        .condition
        .clone()
        .unwrap()
}

fn introduced_condition(mesh: &TestMesh, gateway: &str) -> (bool, &'static str) {
    let key = ObjectKey::new(Kind::Gateway, "shop", gateway);
    let derived_status = mesh.index.derived_status(&key).unwrap();
    let condition = derived_status.introduced_condition.clone().unwrap();
    (condition.is_true, condition.reason)
}

#[test]
fn waypoint_binds_from_its_first_readiness_on() {
    let (pod, service) = (pod_labelled(USE_A), service_labelled(USE_A));
    for objects in [
        [namespace(USE_A), CART_POD.into(), CART_SERVICE.into()],
        [namespace(""), pod, service],
    ] {
        let objects: Vec<_> = objects.iter().map(String::as_str).collect();
        let mut mesh = mesh(&[
            &join_documents(&objects),
            &gateway_for_all("a", "u1"),
            &waypoint_pod("a", false),
        ]);
        assert_bound(&mesh, "");
        assert_eq!(introduced_condition(&mesh, "a"), (false, "Waiting"));
        let state = waypoint_condition(&mesh);
        assert_eq!((state.is_true, state.reason), (false, "Waiting"));
        assert_eq!(
            state.message,
            "the waypoint shop/a has not been ready yet; traffic goes to pods directly until it is"
        );
        // It knows what it serves before anything is sent to it.
        let record = format!("shop/a {CART_HOST}");
        assert!(
            mesh.waypoint_services.contains_key(&record),
            "{:?}",
            mesh.waypoint_services
        );
        mesh.apply(&waypoint_pod("a", true));
        assert_bound(&mesh, "a");
        assert_eq!(introduced_condition(&mesh, "a"), (true, "Introduced"));
        assert_eq!(waypoint_condition(&mesh).reason, "WaypointAccepted");
        mesh.apply(&waypoint_pod("a", false));
        assert_bound(&mesh, "a");
        assert_eq!(waypoint_condition(&mesh).reason, "NoReadyWaypoint");
        mesh.delete(Kind::Pod, "shop", "a-pod");
        assert_bound(&mesh, "a");
        // Another writer of the status changes it.
        mesh.apply(&with_introduced_condition(
            &gateway_for_all("a", "u1"),
            "False",
        ));
        assert_bound(&mesh, "a");
        assert_eq!(introduced_condition(&mesh, "a"), (true, "Introduced"));
    }
}

/// Returns the layer 4 policy `callers`, and its waypoint copy as `ambit waypoint apply --migrate-policies` writes it.
fn migrated_policies(target: &str) -> [String; 2] {
    let copy = policy("AuthorizationPolicy", target).replace(
        "{name: p, ",
        "{name: p, annotations: {ambit.io/migrated-from: callers}, ",
    );
    let original = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
                    metadata: {name: callers, namespace: shop}\nspec: {action: DENY, rules: [{}]}\n";
    [copy, original.to_owned()]
}

#[test]
fn copies_of_policies_that_pods_enforce_do_not_make_the_binding_strict() {
    for target in [SERVICE_TARGET, GATEWAY_TARGET] {
        let [copy, original] = migrated_policies(target);
        let meshed = |policies: &[&str]| {
            let waypoint = gateway_for_all("a", "u1");
            let objects = [&namespace(USE_A), CART_POD, CART_SERVICE, &waypoint];
            mesh(&[&objects, policies].concat())
        };
        let mut both = meshed(&[&copy, &original]);
        assert_bound(&both, "");
        // Nobody enforces it any more.
        both.delete(Kind::AuthorizationPolicy, "shop", "callers");
        assert_bound(&both, "a");

        let dry_run = original.replace(
            "{name: callers, ",
            "{name: callers, annotations: {istio.io/dry-run: \"true\"}, ",
        );
        let attached =
            policy("AuthorizationPolicy", SERVICE_TARGET).replace("name: p", "name: callers");
        let elsewhere = original.replace("namespace: shop", "namespace: store");
        let others = original.replace("[{}]", "[{from: [{source: {namespaces: [a]}}]}]");
        let narrow = original.replace("spec: {", "spec: {selector: {matchLabels: {app: other}}, ");
        for (what, policies) in [
            ("without the original", vec![&copy]),
            ("on trial", vec![&copy, &dry_run]),
            ("not of pods", vec![&copy, &attached]),
            ("of another namespace", vec![&copy, &elsewhere]),
            ("of other rules", vec![&copy, &others]),
            ("of other pods", vec![&copy, &narrow]),
        ] {
            let policies: Vec<_> = policies.into_iter().map(String::as_str).collect();
            assert_eq!(
                bound_status(&meshed(&policies)),
                ("a".to_owned(), "a".to_owned()),
                "{what}"
            );
        }
        let other = policy("RateLimit", target);
        assert_bound(&meshed(&[&copy, &original, &other]), "a");
    }
}

#[test]
fn restarted_control_plane_knows_who_has_been_ready() {
    let addresses = "status: {addresses: [{type: IPAddress, value: 10.96.0.7}]}\n";
    for (gateway, expected) in [
        (gateway_for_all("a", "u1"), ""),
        (
            with_introduced_condition(&gateway_for_all("a", "u1"), "False"),
            "",
        ),
        (
            with_introduced_condition(&gateway_for_all("a", "u1"), "True"),
            "a",
        ),
        // As control planes wrote it that knew no such condition.
        (gateway_for_all("a", "u1") + addresses, "a"),
    ] {
        let mesh = mesh(&[&namespace(USE_A), CART_POD, CART_SERVICE, &gateway]);
        assert_bound(&mesh, expected);
    }
}

#[test]
fn recreated_gateway_is_introduced_anew() {
    let mut mesh = mesh(&[
        &namespace(USE_A),
        CART_POD,
        CART_SERVICE,
        &gateway_for_all("a", "u1"),
        &waypoint_pod("a", true),
    ]);
    assert_bound(&mesh, "a");
    mesh.delete(Kind::Pod, "shop", "a-pod");
    mesh.apply(&gateway_for_all("a", "u2"));
    assert_bound(&mesh, "");
    mesh.apply(&waypoint_pod("a", true));
    assert_bound(&mesh, "a");
    mesh.delete(Kind::Gateway, "shop", "a");
    let (pod, service) = bound_status(&mesh);
    assert!(
        pod.contains("missing") && service.contains("missing"),
        "{pod} {service}"
    );
}

#[test]
fn rebound_object_keeps_its_waypoint_until_the_next_is_ready() {
    let waypoints = [
        gateway_for_all("a", "u1"),
        waypoint_pod("a", true),
        gateway_for_all("b", "u2"),
    ];
    let waypoints = join_documents(&waypoints.each_ref().map(String::as_str));
    let both = |label: &str| join_documents(&[&pod_labelled(label), &service_labelled(label)]);
    for (before, after) in [
        (
            join_documents(&[&namespace(USE_A), CART_POD, CART_SERVICE]),
            namespace(USE_B),
        ),
        (join_documents(&[&namespace(""), &both(USE_A)]), both(USE_B)),
        // The label of the object takes precedence over that of the namespace.
        (
            join_documents(&[&namespace(USE_A), CART_POD, CART_SERVICE]),
            both(USE_B),
        ),
    ] {
        // A policy of the Service is enforced where it was.
        for more in ["", &policy("AuthorizationPolicy", SERVICE_TARGET)] {
            let mut mesh = mesh(&[&before, &waypoints]);
            assert_bound(&mesh, "a");
            mesh.apply(more);
            mesh.apply(&after);
            assert_bound(&mesh, "a");
            let state = waypoint_condition(&mesh);
            assert_eq!(state.reason, "Waiting");
            assert!(
                state
                    .message
                    .contains("traffic goes through the waypoint shop/a until")
            );
            if !more.is_empty() {
                let enforced = |gateway: &str| {
                    let mut names = mesh.waypoint_policies.keys();
                    names.any(|name| name.starts_with(&format!("shop/{gateway} ")))
                };
                assert!(
                    enforced("a") && enforced("b"),
                    "{:?}",
                    mesh.waypoint_policies
                );
            }
            mesh.apply(&waypoint_pod("b", true));
            assert_bound(&mesh, "b");
            mesh.delete(Kind::Pod, "shop", "b-pod");
            assert_bound(&mesh, "b");
        }
    }
}

/// Returns the Gateway with the condition `Replaces` that the control plane computed for it.
fn with_replaces_condition(gateway: &str, mesh: &TestMesh, name: &str) -> String {
    let key = ObjectKey::new(Kind::Gateway, "shop", name);
    let derived_status = mesh.index.derived_status(&key).unwrap();
    match &derived_status.replaces_condition {
        None => gateway.to_owned(),
        Some(condition) => format!(
            "{gateway}status: {{conditions: [{{type: ambit.io/Replaces, status: \"True\", message: '{}'}}]}}\n",
            condition.message
        ),
    }
}

#[test]
fn restarted_control_plane_knows_what_rebound_objects_keep() {
    let ready = [&gateway_for_all("a", "u1"), &waypoint_pod("a", true)].map(|one| one.clone());
    let ready = join_documents(&ready.each_ref().map(String::as_str));
    let next = gateway_for_all("b", "u2");
    let both = |label: &str| join_documents(&[&pod_labelled(label), &service_labelled(label)]);
    for (before, after) in [
        (
            join_documents(&[&namespace(USE_A), CART_POD, CART_SERVICE]),
            join_documents(&[&namespace(USE_B), CART_POD, CART_SERVICE]),
        ),
        (
            join_documents(&[&namespace(""), &both(USE_A)]),
            join_documents(&[&namespace(""), &both(USE_B)]),
        ),
    ] {
        let mut before = mesh(&[&before, &ready, &next]);
        assert_eq!(with_replaces_condition(&next, &before, "b"), next);
        before.apply(&after);
        assert_bound(&before, "a");
        let written = with_replaces_condition(&next, &before, "b");

        // Nothing of the label before is known to the one that starts.
        let mut restarted = mesh(&[&after, &ready, &written]);
        assert_bound(&restarted, "a");
        assert_eq!(with_replaces_condition(&next, &restarted, "b"), written);
        // A condition of another Gateway has no effect.
        let other = join_documents(&[
            &gateway_for_all("b", "u2"),
            &written.replace("name: b", "name: c"),
        ]);
        assert_bound(&mesh(&[&after, &ready, &other]), "");

        restarted.apply(&waypoint_pod("b", true));
        assert_bound(&restarted, "b");
        assert_eq!(with_replaces_condition(&next, &restarted, "b"), next);
    }
}

#[test]
fn object_that_awaits_one_after_another_keeps_what_it_had() {
    let mut mesh = mesh(&[
        &namespace(USE_A),
        CART_POD,
        CART_SERVICE,
        &gateway_for_all("a", "u1"),
        &waypoint_pod("a", true),
        &gateway_for_all("b", "u2"),
        &gateway_for_all("c", "u3"),
    ]);
    mesh.apply(&namespace(USE_B));
    mesh.apply(&namespace(&USE_B.replace(": b", ": c")));
    assert_bound(&mesh, "a");
    assert_ne!(with_replaces_condition("", &mesh, "c"), "");
    assert_eq!(with_replaces_condition("", &mesh, "b"), "");
}

#[test]
fn rebound_object_is_refused_when_the_waypoint_that_it_kept_goes() {
    let mut mesh = mesh(&[
        &namespace(USE_A),
        CART_POD,
        CART_SERVICE,
        &gateway_for_all("a", "u1"),
        &waypoint_pod("a", true),
        &gateway_for_all("b", "u2"),
    ]);
    mesh.apply(&namespace(USE_B));
    assert_bound(&mesh, "a");
    mesh.delete(Kind::Gateway, "shop", "a");
    assert_bound(&mesh, "b");
}

#[test]
fn waypoint_with_policies_binds_before_it_is_ready() {
    let kinds = [
        "AuthorizationPolicy",
        "RequestAuthentication",
        "RateLimit",
        "WasmPlugin",
    ];
    let targets = [SERVICE_TARGET, GATEWAY_TARGET];
    let attached = kinds
        .iter()
        .flat_map(|kind| targets.map(|target| policy(kind, target)));
    let in_tls = ["{tls: {mode: SIMPLE}}", "{tls: {mode: MUTUAL}}"].map(destination_rule);
    for policy in attached.chain(in_tls).chain([backend_tls()]) {
        let objects = [
            &namespace(USE_A),
            CART_POD,
            CART_SERVICE,
            &gateway_for_all("a", "u1"),
        ];
        // Before it comes.
        let from_start = mesh(&[&policy, &join_documents(&objects)]);
        assert_bound(&from_start, "a");
        assert!(
            waypoint_condition(&from_start)
                .message
                .ends_with("because policies are attached to it or to its targets")
        );
        // While it waits.
        let mut mesh = mesh(&objects);
        assert_bound(&mesh, "");
        mesh.apply(&policy);
        assert_bound(&mesh, "a");
        assert_eq!(
            introduced_condition(&mesh, "a"),
            (false, "Strict"),
            "{policy}"
        );
        // After.
        mesh.apply(&waypoint_pod("a", true));
        let kind = policy
            .split("kind: ")
            .nth(1)
            .and_then(|rest| rest.lines().next());
        let kind = Kind::ALL.iter().find(|one| Some(one.as_str()) == kind);
        mesh.delete(*kind.unwrap(), "shop", "p");
        mesh.delete(Kind::Pod, "shop", "a-pod");
        assert_bound(&mesh, "a");
    }
}

#[test]
fn policies_that_concern_others_or_refuse_nothing_bind_nothing() {
    for policy in [
        destination_rule("{loadBalancer: {simple: RANDOM}}"),
        destination_rule("{tls: {mode: SIMPLE}}").replace("host: cart", "host: other.bank"),
        policy("AuthorizationPolicy", "{group: '', kind: Service, name: other}")
            .replace("namespace: shop", "namespace: bank"),
        policy("AuthorizationPolicy", &GATEWAY_TARGET.replace("name: a", "name: c")),
        "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: t, namespace: shop}\n\
         spec: {targetRefs: [{group: '', kind: Service, name: cart}], accessLogging: [{disabled: true}]}\n"
            .to_owned(),
    ] {
        let mesh = mesh(&[&namespace(USE_A), CART_POD, CART_SERVICE, &gateway_for_all("a", "u1"), &policy]);
        assert_bound(&mesh, "");
    }
}

#[test]
fn strict_setting_binds_at_once() {
    let objects = [
        &namespace(USE_A),
        CART_POD,
        CART_SERVICE,
        &gateway_for_all("a", "u1"),
    ];
    let mesh = mesh_with_settings(
        WaypointAttachment::LabelsOnly,
        WaypointBinding::Strict,
        &objects,
    );
    assert_bound(&mesh, "a");
    assert_eq!(introduced_condition(&mesh, "a"), (false, "Strict"));
    assert!(
        waypoint_condition(&mesh)
            .message
            .ends_with("because of meshConfig.waypointBinding")
    );
}

#[test]
fn waypoints_of_others_and_such_as_do_not_exist_bind_at_once() {
    let address = "status: {addresses: [{type: IPAddress, value: 10.96.0.7}]}\n";
    let foreign = gateway_for_all("a", "u1").replace("istio-waypoint", "other");
    let manual = gateway_for_all("a", "u1").replace(
        "istio-waypoint,",
        "istio-waypoint, addresses: [{value: 10.96.0.7}],",
    );
    for (gateway, expected) in [
        (String::new(), "shop/missing.a.shop.waypoint.invalid"),
        (foreign.clone(), "shop/no-address.a.shop.waypoint.invalid"),
        (foreign + address, "/10.96.0.7"),
        (manual, "a"),
    ] {
        let mesh = mesh(&[&namespace(USE_A), CART_POD, CART_SERVICE, &gateway]);
        assert_bound(&mesh, expected);
    }
}

#[test]
fn gateway_that_takes_by_itself_waits_and_leaves_the_place_to_others() {
    let seed = |objects: &[&str]| {
        mesh_with_settings(
            WaypointAttachment::LabelsAndGateways,
            WaypointBinding::WhenReady,
            objects,
        )
    };
    let mut mesh = seed(&[CART_POD, CART_SERVICE, &gateway("a", "")]);
    assert_bound(&mesh, "");
    assert_eq!(waypoint_condition(&mesh).reason, "Waiting");
    mesh.apply(&waypoint_pod("a", true));
    assert_bound(&mesh, "a");
    // That of the pod's account, which would come first.
    mesh.apply(&gateway(
        "b",
        ", annotations: {istio.io/for-service-account: cart}",
    ));
    assert_bound(&mesh, "a");
    mesh.apply(&waypoint_pod("b", true));
    assert_eq!(bound_status(&mesh), ("b".to_owned(), String::new()));
}

#[test]
fn waypoint_that_never_serves_such_objects_leaves_them_alone() {
    let for_services = gateway("a", ", labels: {istio.io/waypoint-for: service}");
    let mut mesh = mesh(&[&namespace(USE_A), CART_POD, CART_SERVICE, &for_services]);
    assert_bound(&mesh, "");
    mesh.apply(&waypoint_pod("a", true));
    assert_eq!(bound_status(&mesh), (String::new(), "a".to_owned()));
}
