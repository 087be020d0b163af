//! Property tests: in whatever order objects change, the records are those of the objects that remain.

use ambit_k8s_api::Kind;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Apply(String),
    Delete(Kind, &'static str, String),
    Flush,
}

fn namespaces() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("istio-system")]
}

/// Returns spec and status of a pod manifest.
fn pod(number: u8, variant: u8, account: &str, is_ready: bool, is_running: bool) -> String {
    let phase = if is_running { "Running" } else { "Failed" };
    let ready = if is_ready {
        ", conditions: [{type: Ready, status: \"True\"}]"
    } else {
        ""
    };
    format!(
        "spec: {{nodeName: n{variant}, serviceAccountName: {account}, containers: [{{name: c, ports: [{{name: web, containerPort: 8{variant}}}]}}]}}\nstatus: {{phase: {phase}, podIP: 10.0.{number}.{variant}{ready}}}\n"
    )
}

/// Returns a Gateway manifest; some Gateways are waypoints.
fn gateway(
    (namespace, number): (&str, u8),
    app: &str,
    mode: &str,
    variant: u8,
    flag: bool,
) -> String {
    let serves = [
        "",
        ", istio.io/waypoint-for: all",
        ", istio.io/waypoint-for: workload",
    ][usize::from(variant)];
    let revision = if number == 2 && mode == "STRICT" {
        ", istio.io/rev: other"
    } else {
        ""
    };
    let account = if flag {
        ", annotations: {istio.io/for-service-account: default}"
    } else {
        ""
    };
    let from = match mode {
        "STRICT" => "from: All",
        "UNSET" => "from: Selector, selector: {matchLabels: {app: x}}",
        _ => "from: Same",
    };
    let class = if app == "x" {
        "istio-waypoint"
    } else {
        "class0"
    };
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: gw{number}, namespace: {namespace}, labels: {{a: b{serves}{revision}}}{account}}}\nspec: {{gatewayClassName: {class}, listeners: [{{name: mesh, port: 15008, protocol: HBONE, allowedRoutes: {{namespaces: {{{from}}}}}}}]}}\n"
    )
}

/// Returns the spec of a RateLimit manifest, which is invalid for some arguments.
fn rate_limit(number: u8, mode: &str, variant: u8, flag: bool) -> String {
    let target = if flag {
        format!("{{kind: Service, name: svc{number}}}")
    } else {
        format!("{{kind: Gateway, group: gateway.networking.k8s.io, name: gw{number}}}")
    };
    let per = if mode == "UNSET" { "0s" } else { "1s" };
    let global = format!(
        "global: {{service: {{name: svc{variant}, port: 80}}, domain: d, descriptors: [{{entries: [{{key: k, value: v}}]}}]}}"
    );
    format!("spec: {{targetRefs: [{target}], local: [{{requests: 1, per: {per}}}], {global}}}\n")
}

/// Generates kinds of objects, with the prefix of their objects' names.
fn kinds() -> impl Strategy<Value = (Kind, &'static str)> + Clone {
    prop_oneof![
        Just((Kind::Pod, "pod")),
        Just((Kind::Service, "svc")),
        Just((Kind::ServiceEntry, "se")),
        Just((Kind::WorkloadEntry, "we")),
        Just((Kind::EndpointSlice, "slice")),
        Just((Kind::AuthorizationPolicy, "ap")),
        Just((Kind::PeerAuthentication, "pa")),
        Just((Kind::RequestAuthentication, "ra")),
        Just((Kind::Gateway, "gw")),
        Just((Kind::GatewayClass, "class")),
        Just((Kind::HTTPRoute, "route")),
        Just((Kind::GRPCRoute, "grpc")),
        Just((Kind::TCPRoute, "tcp")),
        Just((Kind::TLSRoute, "tls")),
        Just((Kind::ReferenceGrant, "grant")),
        Just((Kind::Namespace, "ns")),
        Just((Kind::VirtualService, "vs")),
        Just((Kind::DestinationRule, "dr")),
        Just((Kind::HTTPFault, "fault")),
        Just((Kind::BackendTLSPolicy, "btls")),
        Just((Kind::ConfigMap, "roots")),
        Just((Kind::WasmPlugin, "wasm")),
        Just((Kind::RateLimit, "limit")),
    ]
}

fn backend_tls(number: u8, variant: u8, app: &str, mode: &str, flag: bool) -> String {
    let target = if flag {
        format!("{{group: networking.istio.io, kind: ServiceEntry, name: se{variant}}}")
    } else {
        format!("{{group: '', kind: Service, name: svc{variant}, sectionName: http}}")
    };
    let roots = if mode == "UNSET" {
        "wellKnownCACertificates: System".to_owned()
    } else {
        format!("caCertificateRefs: [{{group: '', kind: ConfigMap, name: roots{number}}}]")
    };
    format!("spec: {{targetRefs: [{target}], validation: {{hostname: {app}.example, {roots}}}}}\n")
}

#[expect(clippy::too_many_lines, reason = "a table is as long as it is")]
fn step() -> impl Strategy<Value = Step> {
    let app = prop_oneof![Just("x"), Just("y")];
    let mode = prop_oneof![Just("STRICT"), Just("PERMISSIVE"), Just("UNSET")];
    let kinds = kinds();
    let apply = (kinds.clone(), namespaces(), 0..3_u8, app, mode, 0..3_u8, any::<bool>()).prop_map(
        |((kind, prefix), namespace, number, app, mode, variant, flag)| {
            let waypoint = match (mode, variant) {
                ("UNSET", _) => String::new(),
                ("STRICT", 0) => ", istio.io/use-waypoint: none".to_owned(),
                ("STRICT", _) => format!(", istio.io/use-waypoint: gw{variant}, istio.io/use-waypoint-namespace: a"),
                _ => format!(", istio.io/use-waypoint: gw{variant}"),
            };
            let head_with = |version: &str, more: &str| {
                format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {prefix}{number}, namespace: {namespace}, uid: u{variant}, labels: {{app: {app}, kubernetes.io/service-name: svc{variant}{waypoint}{more}}}}}\n")
            };
            let head = |version: &str| head_with(version, "");
            let selector = if flag { "selector: {matchLabels: {app: x}}, " } else { "" };
            Step::Apply(match kind {
                Kind::Pod => {
                    let of_gateway = if number == 0 { format!(", gateway.networking.k8s.io/gateway-name: gw{variant}") } else { String::new() };
                    let account = if app == "x" { format!("gw{variant}") } else { "default".to_owned() };
                    head_with("v1", &of_gateway) + &pod(number, variant, &account, mode == "STRICT", flag)
                }
                Kind::Service => head("v1") + &format!(
                    "spec: {{clusterIP: 10.96.0.{variant}, {} ports: [{{port: 80, targetPort: web}}]}}\n",
                    if flag { format!("selector: {{app: {app}}},") } else { String::new() }
                ),
                Kind::ServiceEntry => head("networking.istio.io/v1") + &format!(
                    "spec: {{hosts: [h{variant}.com, svc{variant}.a.svc.cluster.local, svc{variant}.b], addresses: [10.96.0.{variant}, 10.0.{variant}.0/24], ports: [{{number: 80, name: web}}], resolution: DNS{}{}}}\n",
                    match mode {
                        "STRICT" => ", exportTo: [.]",
                        "UNSET" => ", exportTo: ['*']",
                        _ => "",
                    },
                    if flag { format!(", workloadSelector: {{labels: {{app: {app}}}}}") } else { String::new() }
                ),
                Kind::WorkloadEntry => head("networking.istio.io/v1") + &format!("spec: {{address: 192.0.2.{variant}, labels: {{app: {app}}}}}\n"),
                Kind::EndpointSlice => head("discovery.k8s.io/v1") + &format!(
                    "addressType: IPv4\nendpoints: [{{addresses: [192.0.2.{variant}]}}, {{addresses: [10.0.0.1], targetRef: {{kind: Pod, name: pod{variant}, namespace: {namespace}}}}}]\nports: [{{port: 9{variant}}}]\n"
                ),
                Kind::Namespace => {
                    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{app: {app}{waypoint}{}}}}}\n", if flag { ", istio.io/rev: other" } else { "" })
                }
                Kind::Gateway => gateway((namespace, number), app, mode, variant, flag),
                Kind::VirtualService => {
                    let host = ["svc0", "svc1.a.svc.cluster.local", "h2.com"][usize::from(number)];
                    let matches = match mode {
                        "STRICT" => "match: [{sourceNamespace: a}, {port: 80}], ",
                        "UNSET" => "match: [{uri: {prefix: /a}}], rewrite: {uri: /b}, ",
                        _ => "",
                    };
                    let gateways = if flag { "" } else { ", gateways: [edge, mesh]" };
                    head("networking.istio.io/v1") + &format!("spec: {{hosts: [{host}]{gateways}, http: [{{{matches}route: [{{destination: {{host: svc{variant}, subset: v1}}}}, {{destination: {{host: h{variant}.com}}}}]}}]}}\n")
                }
                Kind::DestinationRule => {
                    let host = ["svc0.a.svc.cluster.local", "'*.cluster.local'", "svc1", "h2.com"][usize::from(number) + usize::from(flag)];
                    let exported = if mode == "STRICT" { "exportTo: [.], " } else { "" };
                    let subsets = if flag { ", subsets: [{name: v1, labels: {app: x}}]" } else { "" };
                    let tls = if app == "x" { "tls: {mode: SIMPLE}, " } else { "" };
                    head("networking.istio.io/v1") + &format!("spec: {{{exported}host: {host}{subsets}, trafficPolicy: {{{tls}connectionPool: {{http: {{maxRetries: {}}}}}}}}}\n", i32::from(variant) - i32::from(mode == "UNSET"))
                }
                Kind::BackendTLSPolicy => head("gateway.networking.k8s.io/v1") + &backend_tls(number, variant, app, mode, flag),
                Kind::ConfigMap if is_mesh_config(namespace, number) => {
                    let export = if flag { "['*']" } else { "['.']" };
                    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: {namespace}}}\ndata: {{mesh: \"defaultServiceExportTo: {export}\"}}\n")
                }
                Kind::ConfigMap => head("v1") + &format!("data: {{{}: '-----BEGIN CERTIFICATE-----{variant}'}}\n", if flag { "ca.crt" } else { "other" }),
                Kind::HTTPFault => {
                    let status = if mode == "UNSET" { 1 } else { 500 + i32::from(variant) };
                    head("ambit.io/v1alpha1") + &format!("spec: {{abort: {{httpStatus: {status}}}}}\n")
                }
                Kind::GatewayClass => format!(
                    "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {{name: class{number}}}\nspec: {{controllerName: {}}}\n",
                    if flag { "istio.io/mesh-controller" } else { "example.com/other" }
                ),
                Kind::HTTPRoute | Kind::GRPCRoute | Kind::TCPRoute | Kind::TLSRoute => {
                    let (group, of, parent) = if flag { ("\"\"", "Service", "svc") } else { ("networking.istio.io", "ServiceEntry", "se") };
                    let (backend, subset) = if app == "x" { ("group: ambit.io, kind: Subset, ", ".v1") } else { ("", "") };
                    let filters = match (kind, mode) {
                        (Kind::HTTPRoute | Kind::GRPCRoute, "STRICT") => format!("filters: [{{type: ExtensionRef, extensionRef: {{group: ambit.io, kind: HTTPFault, name: fault{variant}}}}}], "),
                        _ => String::new(),
                    };
                    format!("apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {prefix}{number}, namespace: {namespace}}}\nspec: {{parentRefs: [{{group: {group}, kind: {of}, name: {parent}{variant}, namespace: a}}], rules: [{{{filters}backendRefs: [{{{backend}name: svc{number}{subset}, namespace: a, port: 80}}]}}]}}\n")
                }
                Kind::ReferenceGrant => {
                    let name = if flag { format!(", name: svc{variant}") } else { String::new() };
                    format!("apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {{name: grant{number}, namespace: {namespace}}}\nspec: {{from: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: b}}], to: [{{group: '', kind: Service{name}}}]}}\n")
                }
                Kind::WasmPlugin => {
                    let target = if flag { format!("{{kind: Service, name: svc{number}}}") } else { format!("{{kind: Gateway, group: gateway.networking.k8s.io, name: gw{number}}}") };
                    let url = if mode == "UNSET" { "ftp://x" } else { "oci://x" };
                    head("extensions.istio.io/v1alpha1") + &format!("spec: {{targetRefs: [{target}], url: '{url}', priority: {variant}}}\n")
                }
                Kind::RateLimit => head("ambit.io/v1alpha1") + &rate_limit(number, mode, variant, flag),
                Kind::AuthorizationPolicy if mode == "PERMISSIVE" => {
                    let target = match variant {
                        0 => format!("{{kind: Service, name: svc{number}}}"),
                        1 => format!("{{kind: ServiceEntry, group: networking.istio.io, name: se{number}}}"),
                        _ => format!("{{kind: Gateway, group: gateway.networking.k8s.io, name: gw{number}}}"),
                    };
                    head("security.istio.io/v1") + &format!("spec: {{targetRefs: [{target}], rules: [{{}}]}}\n")
                }
                Kind::AuthorizationPolicy => {
                    let port = if mode == "UNSET" { "http".to_owned() } else { format!("8{variant}") };
                    let from = if variant == 0 { "from: [{source: {namespaces: [a]}}], " } else { "" };
                    head("security.istio.io/v1") + &format!("spec: {{{selector}rules: [{{{from}to: [{{operation: {{ports: [\"{port}\"]}}}}]}}]}}\n")
                }
                Kind::RequestAuthentication => {
                    let target = if flag { format!("kind: Service, name: svc{variant}") } else { "group: gateway.networking.k8s.io, kind: Gateway, name: gw0".to_owned() };
                    head("security.istio.io/v1") + &format!("spec: {{targetRefs: [{{{target}}}], jwtRules: [{{issuer: i{variant}, jwksUri: \"http://{app}/\"}}]}}\n")
                }
                _ => {
                    let ports = if flag { format!(", portLevelMtls: {{8{variant}: {{mode: STRICT}}}}") } else { String::new() };
                    head("security.istio.io/v1") + &format!("spec: {{{selector}mtls: {{mode: {mode}}}{ports}}}\n")
                }
            })
        },
    );
    prop_oneof![6 => apply, 2 => delete(kinds), 1 => Just(Step::Flush)]
}

/// Whether the generated ConfigMap is the MeshConfig.
fn is_mesh_config(namespace: &str, number: u8) -> bool {
    namespace == "istio-system" && number == 0
}

fn delete(kinds: impl Strategy<Value = (Kind, &'static str)>) -> impl Strategy<Value = Step> {
    (kinds, namespaces(), 0..3_u8).prop_map(|((kind, prefix), namespace, number)| {
        let name = match kind {
            Kind::Namespace => namespace.to_owned(),
            Kind::ConfigMap if is_mesh_config(namespace, number) => "istio".to_owned(),
            _ => format!("{prefix}{number}"),
        };
        Step::Delete(kind, namespace, name)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn incremental_and_fresh_agree(steps in prop::collection::vec(step(), 1..60)) {
        let mut mesh = TestMesh::empty();
        // Of every object the last usable text, else the last one.
        let mut left: BTreeMap<ObjectKey, Object> = BTreeMap::new();
        let mut usable = std::collections::BTreeSet::new();
        for step in &steps {
            match step {
                Step::Apply(yaml) => {
                    let object = parse_objects(yaml).remove(0);
                    mesh.index.apply(&object, None, &mut mesh.pods);
                    let key = object.key();
                    let refused = mesh.index.problems().any(|problem| {
                        problem.object == key && problem.severity == crate::problem::Severity::Error
                    });
                    if !refused {
                        usable.insert(key.clone());
                    }
                    if !refused || !usable.contains(&key) {
                        left.insert(key, object);
                    }
                }
                Step::Delete(kind, namespace, name) => {
                    let key = ObjectKey::new(*kind, *namespace, name.as_str());
                    mesh.index.delete(&key, &mut mesh.pods);
                    left.remove(&key);
                    usable.remove(&key);
                }
                Step::Flush => drop(mesh.flush()),
            }
        }
        mesh.flush();
        let mut fresh = TestMesh::empty();
        for object in left.values() {
            fresh.index.apply(object, None, &mut fresh.pods);
        }
        fresh.flush();
        prop_assert_eq!(&mesh.workloads, &fresh.workloads);
        prop_assert_eq!(&mesh.services, &fresh.services);
        prop_assert_eq!(&mesh.policies, &fresh.policies);
        prop_assert_eq!(&mesh.waypoint_gateways, &fresh.waypoint_gateways);
        prop_assert_eq!(&mesh.waypoint_services, &fresh.waypoint_services);
        prop_assert_eq!(&mesh.waypoint_policies, &fresh.waypoint_policies);
        prop_assert_eq!(&mesh.waypoint_destinations, &fresh.waypoint_destinations);
        prop_assert_eq!(&mesh.waypoint_telemetry, &fresh.waypoint_telemetry);
        prop_assert_eq!(&mesh.waypoint_rate_limits, &fresh.waypoint_rate_limits);
        prop_assert_eq!(&mesh.waypoint_extensions, &fresh.waypoint_extensions);
        for key in left.keys() {
            // A waypoint that was ready once stays introduced, which a fresh index does not know.
            let derived_status = |index: &Index| {
                let mut derived_status = index.derived_status(key)?.clone();
                derived_status.introduced_condition = None;
                Some(derived_status)
            };
            prop_assert_eq!(derived_status(&mesh.index), derived_status(&fresh.index), "{}", key);
            let (found, expected) = (mesh.index.problems_of(key), fresh.index.problems_of(key));
            let is_error = |problem: &Problem| problem.severity == crate::problem::Severity::Error;
            // Records of an object that is refused since are removed.
            if !found.iter().any(is_error) {
                prop_assert_eq!(found, expected, "{}", key);
            }
        }
    }
}
