//! Records of session persistence at waypoints.

use std::time::Duration;

use ambit_model::HttpSession;

use super::{
    routes_and_conditions::{PARENT, route, routes},
    *,
};

fn mesh_with_session(session: &str) -> TestMesh {
    let spec = format!(
        "{PARENT}, rules: [{{backendRefs: [{{name: cart, port: 80}}]}}, {{backendRefs: [{{name: cart, port: 80}}], sessionPersistence: {session}}}]"
    );
    let route = route("r", "shop", &spec);
    TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &route,
    ]))
}

fn published_session(session: &str) -> HttpSession {
    let mesh = mesh_with_session(session);
    let rules = &routes(&mesh)[0].rules;
    assert_eq!(rules[0].session, None);
    assert_eq!(rules[1].unsupported, None, "{:?}", mesh.problems());
    rules[1].session.clone().unwrap()
}

#[test]
fn session_records_have_their_defaults() {
    let expected = HttpSession {
        name: "ambit-session-shop-r-1".into(),
        ..HttpSession::default()
    };
    assert_eq!(published_session("{}"), expected);
    let all = published_session(
        "{sessionName: id, absoluteTimeout: 1h, idleTimeout: 5m, type: Cookie, cookieConfig: {lifetimeType: Permanent}}",
    );
    let expected = HttpSession {
        name: "id".into(),
        is_header: false,
        is_permanent: true,
        absolute_timeout: Some(Duration::from_secs(3600)),
        idle_timeout: Some(Duration::from_secs(300)),
    };
    assert_eq!(all, expected);
    let header = published_session("{sessionName: X-Session, type: Header}");
    assert!(header.is_header && header.name == "x-session");
    assert_eq!(
        published_session("{type: Header}").name,
        "x-ambit-session-shop-r-1"
    );
}

#[test]
fn sessions_of_grpc_routes_have_records() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
    ]));
    let spec = format!(
        "{PARENT}, rules: [{{backendRefs: [{{name: cart, port: 80}}], sessionPersistence: {{}}}}]"
    );
    mesh.apply(&format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\nmetadata: {{name: g, namespace: shop}}\nspec: {{{spec}}}\n"
    ));
    let session = routes(&mesh)[0].rules[0].session.clone().unwrap();
    assert_eq!(session.name, "ambit-session-shop-g-0");
}

#[test]
fn what_of_a_session_cannot_be_done_is_named() {
    for (session, field) in [
        ("{type: IP}", "sessionPersistence.type"),
        ("{other: 1}", "sessionPersistence.other"),
        (
            "{cookieConfig: {lifetimeType: Long}}",
            "sessionPersistence.cookieConfig.lifetimeType",
        ),
        ("{sessionName: 'a b'}", "sessionPersistence.sessionName"),
        (
            "{type: Header, sessionName: Host}",
            "sessionPersistence.sessionName",
        ),
        ("{idleTimeout: 1d}", "sessionPersistence.idleTimeout"),
        (
            "{cookieConfig: {lifetimeType: Permanent}}",
            "sessionPersistence.absoluteTimeout",
        ),
    ] {
        let mesh = mesh_with_session(session);
        let problems = mesh.problems().join("\n");
        assert!(problems.contains(field), "{session}: {problems}");
        let rules = &routes(&mesh)[0].rules;
        assert!(
            rules.iter().any(|rule| rule.unsupported.is_some()),
            "{session}"
        );
    }
    let ignored = mesh_with_session("{type: Header, cookieConfig: {}}");
    assert!(ignored.problems()[0].contains("has no effect on a header"));
}
