//! Records of WasmPlugins at waypoints, and the objects' status conditions.

use ambit_k8s_api::Kind;
use ambit_model::{ExtensionPhase, NamespacedHostname, WaypointExtension};

use super::{
    routes_and_conditions::{grant, waypoint_condition},
    *,
};

const GATEWAY_TARGET: &str = "{group: gateway.networking.k8s.io, kind: Gateway, name: wp}";

fn plugin(target: &str, spec: &str) -> String {
    format!(
        "apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {{name: tag, namespace: shop}}\nspec: {{targetRefs: [{target}], {spec}}}\n"
    )
}

fn mesh_with_spec(spec: &str) -> TestMesh {
    TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &plugin(GATEWAY_TARGET, spec),
    ]))
}

fn published_plugin(mesh: &TestMesh) -> &WaypointExtension {
    &mesh.waypoint_extensions["shop/wp runs shop/tag"]
}

#[test]
fn a_plugin_goes_to_the_waypoints_of_its_targets() {
    for (target, for_gateway, services) in [
        (GATEWAY_TARGET, true, 0),
        ("{kind: Service, name: cart}", false, 1),
    ] {
        let mut mesh = TestMesh::from_yaml(&join_documents(&[
            CART_SERVICE,
            CART_POD,
            &plugin(target, "url: r.example/tag"),
        ]));
        assert!(mesh.waypoint_extensions.is_empty());
        assert!(waypoint_condition(&mesh, Kind::WasmPlugin, "shop", "tag").starts_with("false"));
        mesh.apply(&gateway("wp", ""));
        let extension = published_plugin(&mesh);
        assert_eq!(
            (extension.for_gateway, extension.services.len()),
            (for_gateway, services),
            "{target}"
        );
        assert_eq!(
            waypoint_condition(&mesh, Kind::WasmPlugin, "shop", "tag"),
            "true Accepted"
        );
        mesh.delete(Kind::WasmPlugin, "shop", "tag");
        assert!(mesh.waypoint_extensions.is_empty());
    }
    let mesh = TestMesh::from_yaml(&plugin("", "url: r.example/tag"));
    assert_eq!(
        waypoint_condition(&mesh, Kind::WasmPlugin, "shop", "tag"),
        "false NoTargets"
    );
}

#[test]
fn plugin_record_is_complete() {
    let mesh = mesh_with_spec(
        "url: 'oci://r.example/tag:1', sha256: 'ABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCD', phase: AUTHN, priority: -3, \
         pluginName: root, pluginConfig: {b: [1], a: x}, failStrategy: FAIL_OPEN, imagePullPolicy: Always, \
         vmConfig: {env: [{name: A, value: b}]}, match: [{mode: SERVER, ports: [{number: 80}]}, {mode: CLIENT, ports: [{number: 81}]}]",
    );
    let extension = published_plugin(&mesh);
    assert_eq!(
        (extension.phase, extension.priority),
        (ExtensionPhase::Authn, -3)
    );
    assert_eq!(
        (extension.url.as_str(), extension.sha256.len()),
        ("oci://r.example/tag:1", 64)
    );
    assert!(extension.sha256.starts_with("abc") && extension.fail_open && extension.always_pull);
    assert_eq!(
        (
            extension.plugin_name.as_str(),
            extension.configuration.as_str()
        ),
        ("root", "{\"a\":\"x\",\"b\":[1]}")
    );
    assert_eq!(
        (extension.environment["A"].as_str(), &extension.ports[..]),
        ("b", &[80][..])
    );
    assert!(extension.unsupported.is_none());
    assert!(
        mesh.problems()[0].contains("CLIENT matches nothing"),
        "{:?}",
        mesh.problems()
    );
    let defaults = mesh_with_spec("url: r.example/tag");
    let extension = super::plugins::published_plugin(&defaults);
    assert_eq!(
        (extension.url.as_str(), extension.phase),
        ("oci://r.example/tag", ExtensionPhase::Unspecified)
    );
    // The tag is that which others are put under.
    assert!(!extension.fail_open && extension.always_pull && extension.ports.is_empty());
    assert!(
        mesh_with_spec("url: r.example/tag, match: [{mode: CLIENT}]")
            .waypoint_extensions
            .is_empty()
    );
}

#[test]
fn unusable_plugin_fails_by_its_strategy_and_keeps_its_last_form() {
    for (spec, field) in [
        ("phase: AUTHN", "spec.url"),
        ("url: 'ftp://x/y'", "spec.url"),
        ("url: 'file://x'", "spec.url"),
        ("url: x, sha256: abc", "spec.sha256"),
        ("url: x, pluginConfig: [1]", "spec.pluginConfig"),
        ("url: x, priority: 4000000000", "spec.priority"),
        (
            "url: x, vmConfig: {env: [{name: A, valueFrom: HOST}]}",
            "spec.vmConfig.env[0].valueFrom",
        ),
        (
            "url: x, match: [{ports: [{number: 0}]}]",
            "spec.match[0].ports[0].number",
        ),
    ] {
        let mut mesh = mesh_with_spec(spec);
        let problems = mesh.problems().join("\n");
        assert!(problems.contains(field), "{spec}: {problems}");
        let extension = published_plugin(&mesh).clone();
        assert!(
            extension.unsupported.is_some() && extension.for_gateway && !extension.fail_open,
            "{spec}"
        );
        mesh.apply(&plugin(GATEWAY_TARGET, "url: good"));
        mesh.apply(&plugin(GATEWAY_TARGET, spec));
        assert_eq!(
            super::plugins::published_plugin(&mesh).url,
            "oci://good",
            "{spec}"
        );
    }
    let open = mesh_with_spec("url: '', failStrategy: FAIL_OPEN");
    assert!(published_plugin(&open).fail_open);
    let network = mesh_with_spec("url: x, type: NETWORK");
    assert!(published_plugin(&network).unsupported.is_some());
    assert!(network.problems()[0].contains("NETWORK"));
}

fn secret(name: &str, labels: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: shop, labels: {{{labels}}}}}\n{more}\n"
    )
}

const IMAGE_PULL_LABEL: &str = "ambit.io/image-pull: 'true'";
const DOCKER_CREDENTIALS: &str = "type: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: '{\"auths\": {\"r\": {\"auth\": \"c2VjcmV0\"}}}'}";

fn mesh_with_plugin() -> TestMesh {
    let mut mesh = TestMesh::with_config(MeshConfig {
        image_pull_secrets: true,
        ..MeshConfig::default()
    });
    mesh.apply(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &plugin(GATEWAY_TARGET, "url: r/tag, imagePullSecret: creds"),
    ]));
    mesh
}

#[test]
fn a_pull_secret_goes_to_the_waypoints_of_the_plugin_that_names_it() {
    let mut mesh = mesh_with_plugin();
    let missing = "false NoPullSecret";
    let stands = |mesh: &TestMesh| waypoint_condition(mesh, Kind::WasmPlugin, "shop", "tag");
    assert!(published_plugin(&mesh).pull_secret.is_empty());
    assert_eq!(stands(&mesh), missing);
    let key = ObjectKey::new(Kind::WasmPlugin, "shop", "tag");
    let derived_status = mesh.index.derived_status(&key).unwrap();
    let condition = derived_status.condition.as_ref().unwrap().message.as_str();
    assert!(
        condition.contains("there is no Secret shop/creds "),
        "{condition}"
    );
    // Not meant for it, or of another name.
    mesh.apply(&secret("creds", "app: x", DOCKER_CREDENTIALS));
    mesh.apply(&secret("other", IMAGE_PULL_LABEL, DOCKER_CREDENTIALS));
    assert_eq!(stands(&mesh), missing);
    assert!(published_plugin(&mesh).pull_secret.is_empty());
    mesh.apply(&secret("creds", IMAGE_PULL_LABEL, DOCKER_CREDENTIALS));
    assert_eq!(stands(&mesh), "true Accepted");
    assert!(
        published_plugin(&mesh)
            .pull_secret
            .starts_with(b"{\"auths\"")
    );
    // An invalid form leaves the last one in force; the error does not contain its content.
    for (bad, place) in [
        (
            "type: Opaque\nstringData: {.dockerconfigjson: hush}",
            "type",
        ),
        (
            "type: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: '{\"hush'}",
            "data[.dockerconfigjson]",
        ),
        (
            "type: kubernetes.io/dockerconfigjson\nstringData: {other: hush}",
            "is not there",
        ),
    ] {
        mesh.apply(&secret("creds", IMAGE_PULL_LABEL, bad));
        let problems = mesh.problems().join("\n");
        assert!(
            problems.contains(place) && !problems.contains("hush"),
            "{problems}"
        );
        assert!(
            published_plugin(&mesh)
                .pull_secret
                .starts_with(b"{\"auths\"")
        );
    }
    assert!(!format!("{:?} {:?}", published_plugin(&mesh), mesh.index).contains("c2VjcmV0"));
    mesh.delete(Kind::Secret, "shop", "creds");
    assert!(published_plugin(&mesh).pull_secret.is_empty());
    assert_eq!(stands(&mesh), missing);
    mesh.apply(&plugin(
        GATEWAY_TARGET,
        "url: r/tag, imagePullSecret: 'Not/aName'",
    ));
    assert!(
        mesh.problems()
            .join("\n")
            .contains("is no name of a Secret"),
        "{:?}",
        mesh.problems()
    );
}

#[test]
fn secrets_are_nobodys_business_unless_that_is_wanted() {
    let mut mesh = mesh_with_spec("url: r/tag, imagePullSecret: creds");
    mesh.apply(&secret("creds", IMAGE_PULL_LABEL, DOCKER_CREDENTIALS));
    assert!(published_plugin(&mesh).pull_secret.is_empty());
    let problems = mesh.problems().join("\n");
    assert!(problems.contains("pilot.imagePullSecrets"), "{problems}");
}

#[test]
fn a_plugin_may_call_what_grants_of_other_namespaces_name() {
    let mut mesh = mesh_with_spec("url: r.example/tag");
    let callees = |mesh: &TestMesh| {
        let callees = published_plugin(mesh).callees.iter();
        callees.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(callees(&mesh).is_empty());
    let from = |kind: &str, group: &str, namespace: &str| {
        format!("{{group: {group}, kind: {kind}, namespace: {namespace}}}")
    };
    let plugin = from("WasmPlugin", "extensions.istio.io", "shop");
    for (of, to) in [
        (
            from("WasmPlugin", "extensions.istio.io", "other"),
            "Service",
        ),
        (
            from("WasmPlugin", "gateway.networking.k8s.io", "shop"),
            "Service",
        ),
        (from("RateLimit", "ambit.io", "shop"), "Service"),
        (
            from("HTTPRoute", "gateway.networking.k8s.io", "shop"),
            "Service",
        ),
        (plugin.clone(), "Secret"),
    ] {
        mesh.apply(&grant("bank", &of, &format!("{{group: '', kind: {to}}}")));
        assert!(callees(&mesh).is_empty(), "{of} {to}");
    }
    mesh.apply(&grant(
        "bank",
        &plugin,
        "{group: '', kind: Service, name: api}",
    ));
    assert_eq!(callees(&mesh), ["bank/api.bank.svc.cluster.local"]);
    mesh.apply(&grant("open", &plugin, "{group: '', kind: Service}"));
    assert_eq!(
        callees(&mesh),
        [
            "bank/api.bank.svc.cluster.local",
            "open/*.open.svc.cluster.local"
        ]
    );
    let name = |host: &str| NamespacedHostname::new("open", host);
    assert!(published_plugin(&mesh).may_call(&name("any.open.svc.cluster.local")));
    mesh.delete(Kind::ReferenceGrant, "open", "g");
    mesh.delete(Kind::ReferenceGrant, "bank", "g");
    assert!(callees(&mesh).is_empty());
    // Only plugins of the root namespace have the callee for every Service.
    let of_root = root_namespace_plugin();
    mesh.apply(&of_root);
    let all = mesh.waypoint_extensions.values();
    let unbound = all.filter(|one| one.callees.iter().any(|callee| callee.namespace == "*"));
    let namespaces: Vec<_> = unbound.map(|one| one.namespace.as_str()).collect();
    assert_eq!(namespaces, ["istio-system"]);
}

/// Returns a plugin of the root namespace that targets the class of all waypoints.
fn root_namespace_plugin() -> String {
    "apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: root, namespace: istio-system}
spec: {url: r.example/tag, targetRefs: [{group: gateway.networking.k8s.io, kind: GatewayClass, name: istio-waypoint}]}
".to_owned()
}

#[test]
fn waypoints_know_the_addresses_of_nodes_and_of_the_api_server() {
    let pod = |name: &str, host: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: any}}\nspec: {{containers: []}}\nstatus: {{hostIP: {host}, hostIPs: [{{ip: {host}}}, {{ip: '2001:db8::7'}}]}}\n"
        )
    };
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
    ]));
    let known = |mesh: &TestMesh| {
        let gateway = mesh.waypoint_gateways.values().next().unwrap();
        let addresses = gateway.cluster_addresses.iter();
        addresses.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(known(&mesh).is_empty());
    mesh.apply(&pod("a", "192.0.2.7"));
    mesh.apply(&pod("b", "192.0.2.7"));
    assert_eq!(known(&mesh), ["192.0.2.7", "2001:db8::7"]);
    mesh.delete(Kind::Pod, "any", "a");
    assert_eq!(known(&mesh).len(), 2);
    mesh.delete(Kind::Pod, "any", "b");
    assert!(known(&mesh).is_empty());
    mesh.apply("apiVersion: v1\nkind: Service\nmetadata: {name: kubernetes, namespace: default}\nspec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{port: 443}]}\n");
    mesh.apply("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}\naddressType: IPv4\nendpoints: [{addresses: [192.0.2.1]}]\nports: [{port: 6443}]\n");
    assert_eq!(known(&mesh), ["10.96.0.1", "192.0.2.1"]);
}
