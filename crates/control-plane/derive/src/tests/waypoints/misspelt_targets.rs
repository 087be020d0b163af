//! Policies with misspelt targets: they refuse all requests to every object that the targets may mean, or their status
//! reports that they have no effect.

use ambit_k8s_api::Kind;

use super::*;

/// Kinds of objects that have `targetRefs`, with the rest of a `spec`.
const OBJECTS: [(Kind, &str, &str); 4] = [
    (
        Kind::AuthorizationPolicy,
        "security.istio.io/v1",
        "action: DENY, rules: [{}]",
    ),
    (
        Kind::RequestAuthentication,
        "security.istio.io/v1",
        "jwtRules: [{issuer: a, jwks: '{\"keys\": []}'}]",
    ),
    (
        Kind::RateLimit,
        "ambit.io/v1alpha1",
        "local: [{requests: 1, per: 1s}]",
    ),
    (
        Kind::WasmPlugin,
        "extensions.istio.io/v1alpha1",
        "url: 'oci://registry.example/module:1'",
    ),
];

const HOST: &str = "shop/cart.shop.svc.cluster.local";

fn mesh((kind, version, spec): (Kind, &str, &str), target: &str) -> TestMesh {
    let object = format!(
        "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: o, namespace: shop}}\nspec: {{targetRefs: [{target}], {spec}}}\n"
    );
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
    ]));
    let value: serde_json::Value = serde_saphyr::from_str(&object).unwrap();
    let key = ObjectKey::read(&value).unwrap();
    match Object::from_value(key.kind, &value) {
        Ok(object) => mesh.index.apply(&object, None, &mut mesh.pods),
        Err(error) => mesh
            .index
            .apply_invalid(&key, &error, &value, &mut mesh.pods),
    }
    mesh.flush();
    mesh
}

/// Returns whether the object's record at the waypoint `shop/wp` refuses all requests, and which services it refuses;
/// `None` without a record.
fn refused_services(mesh: &TestMesh, kind: Kind) -> Option<(bool, Vec<String>)> {
    let (for_gateway, services, is_refusal) = match kind {
        Kind::AuthorizationPolicy => {
            let one = mesh.waypoint_policies.values().next()?;
            (one.for_gateway, &one.services, one.not_understood.is_some())
        }
        Kind::RequestAuthentication => {
            let one = mesh.waypoint_authentications.values().next()?;
            (one.for_gateway, &one.services, one.not_understood.is_some())
        }
        Kind::RateLimit => {
            let one = mesh.waypoint_rate_limits.values().next()?;
            (one.for_gateway, &one.services, one.not_understood.is_some())
        }
        _ => {
            let one = mesh.waypoint_extensions.values().next()?;
            (one.for_gateway, &one.services, one.unsupported.is_some())
        }
    };
    assert!(is_refusal, "{kind} is enforced as if it were written well");
    Some((
        for_gateway,
        services.iter().map(ToString::to_string).collect(),
    ))
}

fn problem(mesh: &TestMesh, kind: Kind) -> String {
    let problems = mesh.index.problems_of(&ObjectKey::new(kind, "shop", "o"));
    let texts = problems
        .iter()
        .map(|one| format!("{}: {}", one.field, one.message));
    texts.collect::<Vec<_>>().join("; ")
}

#[test]
fn a_misspelt_kind_or_group_refuses_all_that_has_the_name() {
    for object in OBJECTS {
        for target in [
            "{kind: service, name: cart}",
            "{kind: SERVICE, name: cart}",
            "{kind: Services, name: cart}",
            "{kind: '', name: cart}",
            "{group: v1, kind: Service, name: cart}",
            "{group: networking.istio.io, kind: Service, name: cart}",
            "{group: networking.istio.io, kind: serviceEntry, name: cart}",
            "{group: gateway.networking.k8s.io, kind: Service, name: cart}",
            "{kind: ServiceEntry, name: cart}",
            "{kind: service, name: cart, namespace: shop}",
        ] {
            let (kind, ..) = object;
            let mesh = mesh(object, target);
            let expected = Some((false, vec![HOST.to_owned()]));
            assert_eq!(refused_services(&mesh, kind), expected, "{kind} {target}");
            let problem = problem(&mesh, kind);
            assert!(problem.starts_with("spec.targetRefs[0]: "), "{problem}");
            assert!(
                problem.ends_with("everything in its scope is refused until it is corrected"),
                "{problem}"
            );
        }
        let (kind, ..) = object;
        for target in [
            "{group: gateway.networking.k8s.io, kind: gateway, name: wp}",
            "{group: gateway.networking.io, kind: Gateway, name: wp}",
            "{kind: Gateway, name: wp}",
        ] {
            let mesh = mesh(object, target);
            assert_eq!(
                refused_services(&mesh, kind),
                Some((true, Vec::new())),
                "{kind} {target}"
            );
        }
    }
}

#[test]
fn a_target_with_an_unknown_field_is_refused_as_well() {
    for object in &OBJECTS[1..] {
        let mesh = mesh(*object, "{kind: Service, name: cart, prot: 80}");
        let expected = Some((false, vec![HOST.to_owned()]));
        assert_eq!(refused_services(&mesh, object.0), expected, "{}", object.0);
    }
    // What node proxies enforce is the whole namespace.
    let mesh = mesh(OBJECTS[0], "{kind: Service, name: cart, prot: 80}");
    assert!(mesh.policies.contains_key("shop/o"));
}

#[test]
fn object_with_dangling_targets_reports_no_effect() {
    for object in OBJECTS {
        let (kind, ..) = object;
        for target in [
            "{kind: service, name: cart, namespace: bank}",
            "{group: gateway.networking.k8s.io, kind: GatewayClass, name: istio-waypoint}",
        ] {
            let mesh = mesh(object, target);
            assert_eq!(refused_services(&mesh, kind), None, "{kind} {target}");
            let problem = problem(&mesh, kind);
            assert!(
                problem.ends_with("; the object has no effect"),
                "{kind} {target}: {problem}"
            );
        }
    }
}
