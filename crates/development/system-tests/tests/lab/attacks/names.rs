//! Tests that a ServiceEntry of one namespace does not define names of another namespace's Services, and in other
//! namespaces no names at all unless the mesh's administrator allows it.

use ambit_system_tests::{CLIENT_AND_SERVER, LAB_TOOL, Mesh, built_binary, wait_until};

/// Address of the attacker's ServiceEntry.
const ATTACKER_ADDRESS: &str = "240.240.66.1";

/// MeshConfig that makes ServiceEntries visible to all namespaces, as in Istio.
const VISIBLE_TO_ALL: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'defaultServiceExportTo: [\"*\"]'}
";

const STORE: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: store}
";

/// Returns an attacker's ServiceEntries with every form of `shop/server`'s name, with wildcards that include the name,
/// and with names in a namespace that does not exist yet.
fn claiming_entries(endpoint: &str) -> String {
    let claim = |name: &str, export: &str| {
        format!(
            "
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: legacy}}
spec:
  hosts:
  - {name}.marker.example
  - server.shop
  - SERVER.shop.svc
  - server.shop.svc.cluster.local
  - late.shop
  - '*.shop'
  - '*.svc'
  - '*.shop.svc.cluster.local'
  - '*.svc.cluster.local'
  - '*.cluster.local'
  - '*.local'
  - server
  - web.store
  - '*.store'
  addresses: [{ATTACKER_ADDRESS}]
  resolution: STATIC
  ports: [{{number: 80, name: http, targetPort: 8080}}]
  endpoints: [{{address: {endpoint}}}]
{export}"
        )
    };
    claim("silent", "") + &claim("loud", "  exportTo: ['*']\n")
}

fn resolve(mesh: &Mesh, name: &str) -> String {
    let tool = built_binary(LAB_TOOL);
    let tool = tool.to_str().expect("a path in UTF-8");
    let command = [tool, "resolve", name];
    let output = mesh.client().output("shop/client", &command).unwrap();
    output.stdout + &output.stderr
}

fn resolves_to_attacker(mesh: &Mesh, name: &str) -> bool {
    resolve(mesh, name).contains(ATTACKER_ADDRESS)
}

/// Asserts that the names of `shop/server` resolve to its address, also along a pod's search list, and that names of
/// missing Services do not resolve.
#[track_caller]
fn assert_names_resolve_to_their_owners(mesh: &Mesh, vip: &str) {
    for name in [
        "server",
        "server.shop",
        "server.shop.svc",
        "server.shop.svc.cluster.local",
        "server.shop.svc.cluster.local.",
        "SERVER.Shop",
        "server.shop.shop.svc.cluster.local",
        "server.shop.svc.cluster.local.shop.svc.cluster.local",
    ] {
        let answer = resolve(mesh, name);
        assert!(
            answer.contains(vip) && !answer.contains(ATTACKER_ADDRESS),
            "{name}: {answer}"
        );
    }
    for name in [
        "late.shop",
        "late.shop.svc",
        "late.shop.svc.cluster.local",
        "late.shop.shop.svc.cluster.local",
    ] {
        assert!(!resolves_to_attacker(mesh, name), "{name}");
    }
    let answer = mesh.get("shop/client", "http://server.shop/");
    assert!(answer.ok().contains("plain-marker"), "{answer:?}");
}

#[test]
fn names_stay_with_their_namespaces() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    mesh.wait_for_get("shop/client", "http://server.shop/", true);
    let answer = resolve(&mesh, "server.shop");
    let mut words = answer.split_whitespace();
    let vip = words.find(|word| word.parse::<std::net::IpAddr>().is_ok());
    let vip = vip.expect("the Service's address").to_owned();

    // By default an entry is visible only in its own namespace, whatever its `exportTo`.
    mesh.apply(
        "claims",
        &claiming_entries(&mesh.ip("legacy/server").to_string()),
    );
    mesh.apply("marker", &last_entry());
    wait_until("the mesh has the objects", || {
        resolve(&mesh, "own.marker.example").contains("240.240.66.9")
    });
    for name in [
        "silent.marker.example",
        "loud.marker.example",
        "web.store",
        "any.store",
        "server",
    ] {
        assert!(!resolves_to_attacker(&mesh, name), "{name}");
    }
    assert_names_resolve_to_their_owners(&mesh, &vip);

    // The administrator allows names that are not reserved.
    mesh.apply("settings", VISIBLE_TO_ALL);
    for name in [
        "silent.marker.example",
        "loud.marker.example",
        "web.store",
        "any.store",
    ] {
        wait_until(&format!("{name} is seen by all"), || {
            resolves_to_attacker(&mesh, name)
        });
    }
    assert_names_resolve_to_their_owners(&mesh, &vip);

    // A namespace owns its names from its creation.
    mesh.apply("store", STORE);
    for name in ["web.store", "any.store", "web.store.shop.svc.cluster.local"] {
        wait_until(&format!("{name} is reserved"), || {
            !resolves_to_attacker(&mesh, name)
        });
    }
    assert!(resolves_to_attacker(&mesh, "loud.marker.example"));
    assert_names_resolve_to_their_owners(&mesh, &vip);
    mesh.remove("store");
    wait_until("the name is free again", || {
        resolves_to_attacker(&mesh, "web.store")
    });

    mesh.remove("settings");
    wait_until("entries are their namespaces' again", || {
        !resolves_to_attacker(&mesh, "loud.marker.example")
    });
    assert_names_resolve_to_their_owners(&mesh, &vip);
}

/// Returns a ServiceEntry of the client's own namespace. Once its name resolves, the mesh has processed the attacker's
/// entries too.
fn last_entry() -> String {
    "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: own, namespace: shop}
spec:
  hosts: [own.marker.example]
  addresses: [240.240.66.9]
  resolution: STATIC
  ports: [{number: 80, name: http}]
  endpoints: [{address: 192.0.2.1}]
"
    .to_owned()
}
