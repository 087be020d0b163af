//! Records of Ambit's own kinds at waypoints, and the status conditions of their objects and of routes that name them.

use ambit_k8s_api::Kind;
use ambit_model::{
    DestinationSubset, FaultStatus, HttpFault, HttpFilter, HttpRouteRule, RequestFraction,
};

use super::*;
use crate::condition::ConditionInput;

const SERVICE_RECORD_NAME: &str = "shop/wp shop/cart.shop.svc.cluster.local";
const DESTINATION_RECORD_NAME: &str = "shop/wp to shop/cart.shop.svc.cluster.local";

fn route(kind: Kind, rules: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: r, namespace: shop}}\n\
         spec: {{parentRefs: [{{group: '', kind: Service, name: cart}}], rules: [{rules}]}}\n"
    )
}

fn fault(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: ambit.io/v1alpha1\nkind: HTTPFault\nmetadata: {{name: {name}, namespace: shop}}\nspec: {spec}\n"
    )
}

const FAULT_FILTER_RULE: &str =
    "filters: [{type: ExtensionRef, extensionRef: {group: ambit.io, kind: HTTPFault, name: f}}]";

fn mesh(objects: &[&str]) -> TestMesh {
    let gateway = gateway("wp", "");
    TestMesh::from_yaml(&join_documents(
        &[&[CART_SERVICE, CART_POD, &gateway], objects].concat(),
    ))
}

fn rule(mesh: &TestMesh) -> &HttpRouteRule {
    &mesh.waypoint_services[SERVICE_RECORD_NAME].routes[0].rules[0]
}

fn abort_filter(status: u16) -> HttpFilter {
    let all = RequestFraction {
        numerator: 100,
        denominator: 100,
    };
    HttpFilter::Fault(HttpFault {
        delay: None,
        abort: Some((FaultStatus::Http(status), all)),
    })
}

/// Returns the status conditions of a route, by type.
fn route_conditions(mesh: &TestMesh, kind: Kind) -> Vec<String> {
    let derived_status = mesh
        .index
        .derived_status(&ObjectKey::new(kind, "shop", "r"));
    let parts = derived_status.unwrap().entries.clone();
    let conditions = parts.iter().flat_map(|part| &part.conditions);
    conditions
        .map(|(name, condition)| format!("{name}={} {}", condition.is_true, condition.reason))
        .collect()
}

/// Returns the status condition of an object of Ambit's own kinds.
fn own_condition(mesh: &TestMesh, kind: Kind, name: &str) -> String {
    let key = ObjectKey::new(kind, "shop", name);
    let [of_kind] = crate::conditions(kind) else {
        panic!("one condition");
    };
    let problems = mesh.index.problems_of(&key);
    let subject = ConditionInput {
        problems: &problems,
        is_in_force: false,
        is_attached: false,
        derived_status: mesh.index.derived_status(&key),
    };
    let condition = (of_kind.build)(&subject).unwrap();
    format!(
        "{} {}: {}",
        condition.is_true, condition.reason, condition.message
    )
}

#[test]
fn fault_follows_its_object() {
    let names_it = route(
        Kind::HTTPRoute,
        &format!("{{{FAULT_FILTER_RULE}, backendRefs: [{{name: cart, port: 80}}]}}"),
    );
    let mut mesh = mesh(&[&names_it]);
    let text = "there is no HTTPFault shop/f that can be used";
    assert_eq!(rule(&mesh).unsupported.as_deref(), Some(text));
    let conditions = route_conditions(&mesh, Kind::HTTPRoute);
    assert_eq!(
        conditions[..2],
        [
            "Accepted=true Accepted",
            "ResolvedRefs=false FilterNotFound"
        ]
    );
    mesh.apply(&fault("f", "{abort: {httpStatus: 503}}"));
    assert_eq!(rule(&mesh).unsupported, None);
    assert_eq!(rule(&mesh).filters, [abort_filter(503)]);
    assert_eq!(
        route_conditions(&mesh, Kind::HTTPRoute)[1],
        "ResolvedRefs=true ResolvedRefs"
    );
    assert_eq!(
        own_condition(&mesh, Kind::HTTPFault, "f"),
        "true Used: named by HTTPRoute shop/r"
    );
    // What cannot be used leaves the last good state.
    mesh.apply(&fault("f", "{abort: {httpStatus: 99}}"));
    assert_eq!(rule(&mesh).filters, [abort_filter(503)]);
    let text_of_condition = own_condition(&mesh, Kind::HTTPFault, "f");
    assert!(
        text_of_condition.starts_with("false Invalid: spec.abort.httpStatus: 99"),
        "{text_of_condition}"
    );
    mesh.apply(&fault("f", "{abort: {httpStatus: 418}}"));
    assert_eq!(rule(&mesh).filters, [abort_filter(418)]);
    mesh.delete(Kind::HTTPRoute, "shop", "r");
    assert!(own_condition(&mesh, Kind::HTTPFault, "f").starts_with("false NotReferenced"));
    mesh.apply(&names_it);
    mesh.delete(Kind::HTTPFault, "shop", "f");
    assert_eq!(rule(&mesh).unsupported.as_deref(), Some(text));
}

#[test]
fn a_backend_has_faults_of_its_own_and_grpc_routes_have_them_too() {
    let own = route(
        Kind::GRPCRoute,
        &format!(
            "{{backendRefs: [{{name: cart, port: 80, {FAULT_FILTER_RULE}}}, {{name: cart, port: 80}}]}}"
        ),
    );
    let mut mesh = mesh(&[&own]);
    // Its share alone is answered with an error.
    let [faulty, other] = rule(&mesh).backends.as_slice() else {
        panic!("two backends")
    };
    assert!(
        faulty
            .service
            .as_ref()
            .unwrap_err()
            .contains("HTTPFault shop/f")
    );
    assert!(other.service.is_ok());
    assert_eq!(
        route_conditions(&mesh, Kind::GRPCRoute)[1],
        "ResolvedRefs=false FilterNotFound"
    );
    mesh.apply(&fault("f", "{abort: {httpStatus: 503}}"));
    let [faulty, other] = rule(&mesh).backends.as_slice() else {
        panic!("two backends")
    };
    assert_eq!(faulty.filters, [abort_filter(503)]);
    assert!(other.filters.is_empty() && faulty.service.is_ok());
}

#[test]
fn filters_that_contradict_a_fault_are_refused() {
    for rules in [
        format!("{{{FAULT_FILTER_RULE}}}").replace(
            "}}]",
            "}}, {type: RequestRedirect, requestRedirect: {scheme: https}}]",
        ),
        format!("{{{FAULT_FILTER_RULE}}}").replace(
            "}}]",
            "}}, {type: ExtensionRef, extensionRef: {group: ambit.io, kind: HTTPFault, name: g}}]",
        ),
    ] {
        let mesh = mesh(&[
            &route(Kind::HTTPRoute, &rules),
            &fault("f", "{abort: {httpStatus: 503}}"),
        ]);
        assert!(rule(&mesh).unsupported.is_some(), "{rules}");
        assert_eq!(
            route_conditions(&mesh, Kind::HTTPRoute)[0],
            "Accepted=false IncompatibleFilters",
            "{rules}"
        );
    }
}

fn subset_rule(text: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: d, namespace: shop}}\nspec: {{host: cart, {text}}}\n"
    )
}

fn versioned_pod(name: &str, version: &str) -> String {
    let ip = name.len();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: cart, version: {version}}}}}\n\
         spec: {{nodeName: n1}}\nstatus: {{podIP: 10.0.7.{ip}, phase: Running}}\n"
    )
}

const RULE_TO_SUBSET_V1: &str =
    "{backendRefs: [{group: ambit.io, kind: Subset, name: cart.v1, port: 80}]}";

fn subset<'a>(mesh: &'a TestMesh, name: &str) -> Option<&'a DestinationSubset> {
    mesh.waypoint_destinations
        .get(DESTINATION_RECORD_NAME)?
        .subsets
        .get(name)
}

fn subset_pods(mesh: &TestMesh, name: &str) -> Vec<String> {
    let subset = subset(mesh, name).unwrap();
    let names = subset.workloads.iter();
    names
        .map(|uid| uid.rsplit('/').next().unwrap().to_owned())
        .collect()
}

#[test]
fn a_subset_holds_the_pods_with_its_labels_as_they_are_now() {
    let rule_of = subset_rule("subsets: [{name: v1, labels: {version: v1}}]");
    let to_v1 = route(Kind::HTTPRoute, RULE_TO_SUBSET_V1);
    let mut mesh = mesh(&[
        &to_v1,
        &versioned_pod("a", "v1"),
        &versioned_pod("bb", "v2"),
    ]);
    assert!(
        rule(&mesh).backends[0]
            .service
            .as_ref()
            .unwrap_err()
            .contains("the subset v1")
    );
    assert_eq!(
        route_conditions(&mesh, Kind::HTTPRoute)[1],
        "ResolvedRefs=false BackendNotFound"
    );
    mesh.apply(&rule_of);
    assert_eq!(
        route_conditions(&mesh, Kind::HTTPRoute)[1],
        "ResolvedRefs=true ResolvedRefs"
    );
    let backend = &rule(&mesh).backends[0];
    assert_eq!(backend.subset.as_deref(), Some("v1"));
    assert!(backend.service.is_ok());
    assert_eq!(subset_pods(&mesh, "v1"), ["a"]);
    mesh.apply(&versioned_pod("bb", "v1"));
    assert_eq!(subset_pods(&mesh, "v1"), ["a", "bb"]);
    mesh.apply(&versioned_pod("ccc", "v1").replace("app: cart", "app: other"));
    assert_eq!(subset_pods(&mesh, "v1"), ["a", "bb"]);
    mesh.delete(Kind::Pod, "shop", "a");
    assert_eq!(subset_pods(&mesh, "v1"), ["bb"]);
    mesh.apply(&subset_rule("subsets: [{name: v2, labels: {version: v2}}]"));
    assert!(subset_pods(&mesh, "v2").is_empty());
    assert_eq!(
        route_conditions(&mesh, Kind::HTTPRoute)[1],
        "ResolvedRefs=false BackendNotFound"
    );
}

#[test]
fn settings_of_a_subset_replace_those_of_its_rule() {
    let pool = |retries: u32| format!("connectionPool: {{http: {{maxRetries: {retries}}}}}");
    let text = format!(
        "trafficPolicy: {{{}, loadBalancer: {{simple: RANDOM}}, portLevelSettings: [{{port: {{number: 80}}, {}}}, {{port: {{number: 81}}, {}}}]}}, \
         subsets: [{{name: plain}}, {{name: own, trafficPolicy: {{{}, portLevelSettings: [{{port: {{number: 81}}, {}}}]}}}}]",
        pool(1),
        pool(2),
        pool(3),
        pool(4),
        pool(5)
    );
    let mesh = mesh(&[&subset_rule(&text)]);
    let retries = |name: &str, port: u16| subset(&mesh, name).unwrap().policy(port).limits.retries;
    let of = |name: &str| [79, 80, 81].map(|port| retries(name, port));
    assert_eq!(of("plain"), [1, 2, 3]);
    assert_eq!(of("own"), [4, 4, 5]);
    // Setting by setting.
    let balancing = &subset(&mesh, "own").unwrap().policy.balancing;
    assert_eq!(*balancing, ambit_model::Balancing::Random);
}

#[test]
fn subsets_that_cannot_be_are_refused_with_their_place() {
    for (text, expected) in [
        ("subsets: [{labels: {a: b}}]", "spec.subsets[0].name"),
        ("subsets: [{name: a}, {name: a}]", "spec.subsets[1].name"),
        (
            "subsets: [{name: a, trafficPolicy: {outlierDetection: {interval: -1s}}}]",
            "spec.subsets[0].trafficPolicy.outlierDetection",
        ),
        (
            "subsets: [{name: a, trafficPolicy: {portLevelSettings: [{port: {number: 0}}]}}]",
            "spec.subsets[0].trafficPolicy.portLevelSettings[0].port.number",
        ),
    ] {
        let mesh = mesh(&[&subset_rule(text)]);
        assert!(
            mesh.problems()[0].contains(expected),
            "{text}: {:?}",
            mesh.problems()
        );
        assert!(
            !mesh
                .waypoint_destinations
                .contains_key(DESTINATION_RECORD_NAME),
            "{text}"
        );
    }
    // A name without a subset; connections and mirrors have none.
    for rules in [
        "{backendRefs: [{group: ambit.io, kind: Subset, name: cart, port: 80}]}",
        "{filters: [{type: RequestMirror, requestMirror: {backendRef: {group: ambit.io, kind: Subset, name: cart.v1, port: 80}}}]}",
    ] {
        let mesh = mesh(&[&route(Kind::HTTPRoute, rules)]);
        assert!(!mesh.problems().is_empty(), "{rules}");
    }
    let tcp = route(Kind::TCPRoute, RULE_TO_SUBSET_V1);
    assert!(mesh(&[&tcp]).problems()[0].contains("Subset is not supported"));
}
