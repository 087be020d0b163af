//! Records of RequestAuthentications at waypoints, and the objects' conditions.

use ambit_k8s_api::Kind;
use ambit_model::JwtKeys;

use super::{routes_and_conditions::grant, *};
use crate::{KeyFormat, KeySetState, KeySource, condition::ConditionInput};

const RECORD_NAME: &str = "shop/wp by shop/ra";
const KEYS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

fn request_authentication(spec: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: ra, namespace: shop}}\nspec: {{{spec}}}\n"
    )
}

const AT_GATEWAY: &str =
    "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: wp}]";

fn mesh_with_spec(spec: &str) -> TestMesh {
    TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &request_authentication(spec),
    ]))
}

fn mesh_with_rules(rules: &str) -> TestMesh {
    mesh_with_spec(&format!("{AT_GATEWAY}, jwtRules: [{rules}]"))
}

fn condition(mesh: &TestMesh) -> String {
    let key = ObjectKey::new(Kind::RequestAuthentication, "shop", "ra");
    let [of_object] = crate::conditions(Kind::RequestAuthentication) else {
        panic!("one condition");
    };
    assert_eq!(of_object.name, "WaypointAccepted");
    let problems = mesh.index.problems_of(&key);
    let subject = ConditionInput {
        problems: &problems,
        is_in_force: false,
        is_attached: true,
        derived_status: mesh.index.derived_status(&key),
    };
    let condition = (of_object.build)(&subject).unwrap();
    format!(
        "{} {}: {}",
        condition.is_true, condition.reason, condition.message
    )
}

#[test]
fn every_field_of_a_rule_reaches_the_waypoints_that_it_is_for() {
    let mesh = mesh_with_rules(&format!(
        "{{issuer: 'https://i', audiences: [a, b], jwks: '{KEYS}', fromHeaders: [{{name: X-Jwt, prefix: 'JWT '}}], \
         fromParams: [p], fromCookies: [c], outputPayloadToHeader: X-Payload, forwardOriginalToken: true, \
         outputClaimToHeaders: [{{header: X-Sub, claim: sub}}], spaceDelimitedClaims: [roles], timeout: 3s}}"
    ));
    assert_eq!(mesh.problems(), [] as [String; 0]);
    let record = &mesh.waypoint_authentications[RECORD_NAME];
    assert!(record.for_gateway && record.services.is_empty() && record.not_understood.is_none());
    let [rule] = &record.rules[..] else {
        panic!("one rule")
    };
    assert_eq!(rule.issuer, "https://i");
    assert_eq!(rule.audiences, ["a", "b"]);
    assert_eq!(rule.keys, JwtKeys::Known(KEYS.into()));
    assert_eq!(rule.headers, [("x-jwt".into(), "JWT ".into())]);
    assert_eq!(
        (&rule.params[..], &rule.cookies[..]),
        (&["p".into()][..], &["c".into()][..])
    );
    assert_eq!(rule.payload_header.as_deref(), Some("x-payload"));
    assert_eq!(rule.claim_headers, [("x-sub".into(), "sub".into())]);
    assert!(rule.forward_token);
    assert_eq!(rule.words, ["roles"]);
    assert_eq!(condition(&mesh), "true Accepted: enforced by shop/wp");
}

#[test]
fn it_is_attached_as_policies_are() {
    let rule = format!("jwtRules: [{{issuer: i, jwks: '{KEYS}'}}]");
    let cart = mesh_with_spec(&format!(
        "targetRefs: [{{kind: Service, name: cart}}], {rule}"
    ));
    let record = &cart.waypoint_authentications[RECORD_NAME];
    assert!(!record.for_gateway);
    assert_eq!(
        record.services[0].to_string(),
        "shop/cart.shop.svc.cluster.local"
    );
    let class = request_authentication(&format!(
        "targetRefs: [{{group: gateway.networking.k8s.io, kind: GatewayClass, name: istio-waypoint}}], {rule}"
    ));
    let root = class.replace("namespace: shop", "namespace: istio-system");
    let mesh = TestMesh::from_yaml(&join_documents(&[&gateway("wp", ""), &root]));
    assert!(mesh.waypoint_authentications["shop/wp by istio-system/ra"].for_gateway);
    let elsewhere = mesh_with_spec(&format!(
        "targetRefs: [{{kind: Service, name: gone}}], {rule}"
    ));
    assert!(elsewhere.waypoint_authentications.is_empty());
    assert!(
        condition(&elsewhere).starts_with("false TargetNotFound"),
        "{}",
        condition(&elsewhere)
    );
    // Nobody reads tokens of pods that are not named.
    for loose in [
        rule.clone(),
        format!("selector: {{matchLabels: {{app: a}}}}, {rule}"),
    ] {
        let mesh = mesh_with_spec(&loose);
        assert!(mesh.waypoint_authentications.is_empty());
        assert!(condition(&mesh).starts_with("false NotAttached: there are no targetRefs"));
    }
}

#[test]
fn unusable_record_keeps_the_last_good_one_or_denies() {
    let good = format!("{{issuer: i, jwks: '{KEYS}'}}");
    for (rule, expected) in [
        ("{issuer: ''}", "issuer: is empty"),
        (
            "{issuer: i}",
            "the issuer's discovery document cannot be fetched",
        ),
        (
            "{issuer: i, jwksUri: 'ftp://x/'}",
            "does not begin with https:// or http://",
        ),
        ("{issuer: i, jwksUri: 'http://u:p@x/'}", "has a user in it"),
        ("{issuer: i, jwks: 'x'}", "the key set is no JSON"),
        (
            "{issuer: i, jwks: '{}', jwksUri: 'https://x/'}",
            "together with jwksUri",
        ),
        (
            "{issuer: i, jwksUri: 'https://x/', fromHeaders: [{name: 'a b'}]}",
            "no header's name",
        ),
        (
            "{issuer: i, jwksUri: 'https://x/', fromParams: ['']}",
            "fromParams[0]: is empty",
        ),
        (
            "{issuer: i, jwksUri: 'https://x/', outputPayloadToHeader: Host}",
            "has a meaning of its own",
        ),
        (
            "{issuer: i, jwksUri: 'https://x/', outputClaimToHeaders: [{header: a}]}",
            "claim: is empty",
        ),
        (
            "{issuer: i, jwksUri: 'https://x/', timeout: soon}",
            "timeout",
        ),
    ] {
        let mut mesh = mesh_with_rules(rule);
        assert!(
            mesh.problems()[0].contains(expected),
            "{:?}",
            mesh.problems()
        );
        let record = &mesh.waypoint_authentications[RECORD_NAME];
        assert!(
            record.not_understood.is_some() && record.for_gateway,
            "{rule}"
        );
        assert!(condition(&mesh).starts_with("false Invalid"));
        mesh.apply(&request_authentication(&format!(
            "{AT_GATEWAY}, jwtRules: [{good}]"
        )));
        let before = mesh.waypoint_authentications[RECORD_NAME].clone();
        assert!(before.not_understood.is_none());
        mesh.apply(&request_authentication(&format!(
            "{AT_GATEWAY}, jwtRules: [{rule}]"
        )));
        assert_eq!(mesh.waypoint_authentications[RECORD_NAME], before, "{rule}");
    }
    let noted = mesh_with_rules(r#"{issuer: i, jwks: '{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}'}"#);
    assert!(
        condition(&noted).contains("no token of this issuer is valid"),
        "{}",
        condition(&noted)
    );
}

#[test]
fn keys_are_fetched_by_address_or_issuer_and_published() {
    let mut mesh = mesh_with_rules(
        "{issuer: 'https://i', jwksUri: 'https://i/keys'}, {issuer: 'https://j', timeout: 2m}",
    );
    let sources: Vec<KeySource> = mesh.index.view().key_sources().into_iter().collect();
    let [by_address, by_issuer] = &sources[..] else {
        panic!("{sources:?}")
    };
    assert_eq!(
        (by_address.url.as_str(), by_address.format),
        ("https://i/keys", KeyFormat::KeySet)
    );
    assert_eq!(by_address.timeout.as_secs(), 5);
    assert_eq!(
        (by_issuer.url.as_str(), by_issuer.format),
        ("https://j", KeyFormat::Issuer)
    );
    assert_eq!(by_issuer.timeout.as_secs(), 30);
    let keys = |mesh: &TestMesh, rule: usize| {
        mesh.waypoint_authentications[RECORD_NAME].rules[rule]
            .keys
            .clone()
    };
    assert_eq!(
        (keys(&mesh, 0), keys(&mesh, 1)),
        (JwtKeys::Pending, JwtKeys::Pending)
    );
    let had = |keys: Option<&str>, last_error: Option<&str>| KeySetState {
        keys: keys.map(Into::into),
        last_error: last_error.map(Into::into),
    };
    mesh.index.set_keys(by_address, had(Some(KEYS), None));
    mesh.index.set_keys(by_issuer, had(None, Some("no answer")));
    assert_eq!(mesh.flush(), [RECORD_NAME]);
    assert_eq!(keys(&mesh, 0), JwtKeys::Known(KEYS.into()));
    assert_eq!(keys(&mesh, 1), JwtKeys::Unavailable("no answer".into()));
    assert!(
        condition(&mesh).contains(
            "spec.jwtRules[1]: the keys of https://j cannot be had (no answer): no token of this issuer is valid"
        ),
        "{}",
        condition(&mesh)
    );
    // The last key set stays, and the condition reports the problem.
    mesh.index
        .set_keys(by_address, had(Some(KEYS), Some("503")));
    assert_eq!(mesh.flush(), [] as [&str; 0]);
    assert!(condition(&mesh).contains("those that were had last stay in force"));
    mesh.index
        .set_keys(by_address, had(Some(KEYS), Some("503")));
    assert_eq!(mesh.flush(), [] as [&str; 0]);
    mesh.delete(Kind::RequestAuthentication, "shop", "ra");
    assert!(mesh.index.view().key_sources().is_empty());
}

#[test]
fn keys_of_tenants_come_from_others_only_by_a_grant() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, CART_SERVICE]));
    let owner = |mesh: &TestMesh, namespace: &str, ip: &str| {
        let may = mesh
            .index
            .view()
            .may_fetch_keys(namespace, ip.parse().unwrap());
        may.err().map(|owner| owner.to_string())
    };
    let (vip, pod) = ("10.96.0.9", "10.1.2.3");
    for (namespace, ip, expected) in [
        ("tenant", vip, Some("Service shop/cart")),
        ("tenant", pod, Some("Pod shop/cart-1")),
        ("tenant", "fd00::3", Some("Pod shop/cart-1")),
        ("tenant", "192.0.2.1", None),
        ("shop", vip, None),
        ("shop", pod, None),
    ] {
        assert_eq!(
            owner(&mesh, namespace, ip).as_deref(),
            expected,
            "{namespace} {ip}"
        );
    }
    let from = |kind: &str, namespace: &str| {
        format!("{{group: security.istio.io, kind: {kind}, namespace: {namespace}}}")
    };
    for (from, to, is_granted) in [
        (from("RequestAuthentication", "tenant"), "cart", true),
        (from("RequestAuthentication", "tenant"), "other", false),
        (from("RequestAuthentication", "bank"), "cart", false),
        (from("AuthorizationPolicy", "tenant"), "cart", false),
    ] {
        let to = format!("{{group: '', kind: Service, name: {to}}}");
        mesh.apply(&grant("shop", &from, &to));
        for ip in [vip, pod] {
            assert_eq!(
                owner(&mesh, "tenant", ip).is_none(),
                is_granted,
                "{from} {to} {ip}"
            );
        }
        mesh.delete(Kind::ReferenceGrant, "shop", "g");
    }
    let namespaces = |mesh: &TestMesh| {
        let sources = mesh.index.view().key_sources().into_iter();
        sources.map(|source| source.namespace).collect::<Vec<_>>()
    };
    let rule = "{issuer: 'https://i', jwksUri: 'https://i/keys'}";
    assert_eq!(namespaces(&mesh_with_rules(rule)), [Some("shop".into())]);
}
