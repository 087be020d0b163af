//! Host names that ServiceEntries may declare, and the namespaces that they are visible in.

use ambit_k8s_api::Kind;
use ambit_model::Visibility;

use super::*;

fn service_entry(namespace: &str, hosts: &str, more: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: e, namespace: {namespace}}}\n\
         spec: {{hosts: [{hosts}], resolution: STATIC, ports: [{{number: 80, name: http}}], \
         endpoints: [{{address: 192.0.2.1}}], addresses: [240.240.9.1]{more}}}\n"
    )
}

fn namespace(name: &str) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n")
}

/// Returns the ConfigMap with `defaultServiceExportTo`.
fn export_setting(export_to: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\n\
         data: {{mesh: 'defaultServiceExportTo: {export_to}'}}\n"
    )
}

const EXPORT_TO_ALL: &str = "[\"*\"]";

fn visibility(mesh: &TestMesh, name: &str) -> Option<Visibility> {
    mesh.services.get(name).map(|service| service.visibility)
}

/// Returns the notes on the ServiceEntry `e` of a namespace.
fn entry_notes(mesh: &TestMesh, namespace: &str) -> String {
    let key = ObjectKey::new(Kind::ServiceEntry, namespace, "e");
    let problems = mesh.index.problems_of(&key).into_iter();
    problems
        .map(|one| format!("{}: {}\n", one.field, one.message))
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedVisibility {
    Refused,
    Own,
    Public,
}

/// Hosts with their expected visibility in an entry of a tenant, if `defaultServiceExportTo` is `["*"]`.
const HOSTS: &[(&str, ExpectedVisibility)] = &[
    ("web.store.svc.cluster.local", ExpectedVisibility::Refused),
    ("WEB.Store.SVC.cluster.LOCAL", ExpectedVisibility::Refused),
    (
        "absent.store.svc.cluster.local",
        ExpectedVisibility::Refused,
    ),
    ("web.absent.svc.cluster.local", ExpectedVisibility::Refused),
    (
        "db-0.db.store.svc.cluster.local",
        ExpectedVisibility::Refused,
    ),
    ("web.store.svc", ExpectedVisibility::Refused),
    ("absent.absent.svc", ExpectedVisibility::Refused),
    ("web.store", ExpectedVisibility::Refused),
    ("Web.STORE", ExpectedVisibility::Refused),
    ("absent.store", ExpectedVisibility::Refused),
    ("\"*.store\"", ExpectedVisibility::Refused),
    ("db-0.db.store", ExpectedVisibility::Refused),
    ("\"*.db.store\"", ExpectedVisibility::Refused),
    ("db-0.db.tenant", ExpectedVisibility::Public),
    ("\"*.store.svc\"", ExpectedVisibility::Refused),
    ("\"*.svc\"", ExpectedVisibility::Refused),
    ("\"*.svc.cluster.local\"", ExpectedVisibility::Refused),
    ("\"*.cluster.local\"", ExpectedVisibility::Refused),
    ("\"*.local\"", ExpectedVisibility::Refused),
    ("cluster.local", ExpectedVisibility::Refused),
    ("web", ExpectedVisibility::Own),
    ("web.tenant.svc.cluster.local", ExpectedVisibility::Public),
    ("web.tenant.svc", ExpectedVisibility::Public),
    ("web.tenant", ExpectedVisibility::Public),
    ("\"*.tenant\"", ExpectedVisibility::Public),
    ("web.absent", ExpectedVisibility::Public),
    ("\"*.absent\"", ExpectedVisibility::Public),
    ("\"*.com\"", ExpectedVisibility::Public),
    ("api.example.com", ExpectedVisibility::Public),
];

#[test]
fn reserved_names_are_refused_for_each_namespace_and_setting() {
    for setting_text in [
        None,
        Some(EXPORT_TO_ALL),
        Some("[\".\"]"),
        Some("[\"~\", \".\"]"),
    ] {
        for (host, expected) in HOSTS {
            for of in ["tenant", "istio-system"] {
                let mut text = join_documents(&[
                    &namespace("store"),
                    &namespace("tenant"),
                    &service_entry(of, &format!("{host}, other.example"), ", exportTo: [\"*\"]"),
                ]);
                if let Some(setting_text) = setting_text {
                    text = join_documents(&[&text, &export_setting(setting_text)]);
                }
                let mesh = TestMesh::from_yaml(&text);
                let name = host.trim_matches('"').to_ascii_lowercase();
                let found = visibility(&mesh, &format!("{of}/{name}"));
                let is_root = of == "istio-system";
                let wanted = match expected {
                    _ if is_root => Some(Visibility::Public),
                    ExpectedVisibility::Refused => None,
                    ExpectedVisibility::Public if setting_text == Some(EXPORT_TO_ALL) => {
                        Some(Visibility::Public)
                    }
                    ExpectedVisibility::Own | ExpectedVisibility::Public => {
                        Some(Visibility::Namespace)
                    }
                };
                let what = format!("{host} of {of}, {setting_text:?}");
                assert_eq!(found, wanted, "{what}");
                // The entry's other hosts go on.
                let other = visibility(&mesh, &format!("{of}/other.example"));
                assert!(other.is_some(), "{what}");
                let text = entry_notes(&mesh, of);
                let is_noted = text.contains(&format!("spec.hosts: {name} is reserved"));
                assert_eq!(is_noted, wanted.is_none(), "{what}: {text}");
                // Its endpoint is one of what is published alone.
                let services: Vec<_> = mesh
                    .workloads
                    .values()
                    .flat_map(|one| one.services.keys())
                    .collect();
                let is_there = services.iter().any(|service| *service.hostname == *name);
                assert_eq!(is_there, wanted.is_some(), "{what}");
            }
        }
    }
}

#[test]
fn hosts_with_a_trailing_dot_or_of_no_name_are_refused_as_written() {
    for host in [
        "web.store.",
        "web.store.svc.cluster.local.",
        "\"*\"",
        "\"*.\"",
        "\"*.*.store\"",
        "\"w*.store\"",
    ] {
        let key = ObjectKey::new(Kind::ServiceEntry, "tenant", "e");
        let mesh = TestMesh::from_yaml(&join_documents(&[
            &namespace("store"),
            &service_entry("tenant", host, ""),
        ]));
        assert!(mesh.services.is_empty(), "{host}");
        let problems = mesh.index.problems_of(&key);
        assert_eq!(problems[0].field, "spec.hosts[0]", "{host}");
    }
}

#[test]
fn a_name_is_reserved_while_its_namespace_exists() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        &export_setting(EXPORT_TO_ALL),
        &service_entry("tenant", "web.store, \"*.store\"", ""),
    ]));
    let published = |mesh: &TestMesh| {
        let names = ["tenant/web.store", "tenant/*.store"];
        names.map(|name| visibility(mesh, name).is_some())
    };
    assert_eq!(published(&mesh), [true; 2]);
    assert_eq!(mesh.workloads.len(), 1);
    mesh.apply(&namespace("store"));
    assert_eq!(published(&mesh), [false; 2]);
    assert!(mesh.workloads.is_empty());
    assert!(entry_notes(&mesh, "tenant").contains("*.store is reserved"));
    mesh.delete(Kind::Namespace, "", "store");
    assert_eq!(published(&mesh), [true; 2]);
    assert_eq!(entry_notes(&mesh, "tenant"), "");
    // Manifests may leave out the namespace.
    let service = CART_SERVICE.replace("namespace: shop", "namespace: store");
    mesh.apply(&service);
    assert_eq!(published(&mesh), [false; 2]);
    mesh.delete(Kind::Service, "store", "cart");
    assert_eq!(published(&mesh), [true; 2]);
}

#[test]
fn pods_and_workload_entries_leave_a_name_that_becomes_reserved() {
    let selecting = service_entry(
        "shop",
        "web.store",
        ", workloadSelector: {labels: {app: cart}}",
    )
    .replace("endpoints: [{address: 192.0.2.1}], ", "");
    let vm = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm, namespace: shop, labels: {app: cart}}\nspec: {address: 192.0.2.9}\n";
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, vm, &selecting]));
    let serving = |mesh: &TestMesh| {
        let all = mesh.workloads.values();
        all.filter(|one| !one.services.is_empty()).count()
    };
    assert_eq!(serving(&mesh), 2);
    mesh.apply(&namespace("store"));
    assert_eq!(serving(&mesh), 0);
    mesh.delete(Kind::Namespace, "", "store");
    assert_eq!(serving(&mesh), 2);
}

#[test]
fn administrator_sets_visibility_of_entries() {
    let own = Some(Visibility::Namespace);
    let public = Some(Visibility::Public);
    // Of the setting: what becomes of entries that say nothing, "*", "." and "~", of a tenant and of the root
    // namespace.
    type Row = [Option<Visibility>; 4];
    let cases: &[(&str, Row, Row)] = &[
        ("null", [own, own, own, None], [public, public, own, None]),
        ("[]", [own, own, own, None], [public, public, own, None]),
        (
            "[\"*\"]",
            [public, public, own, None],
            [public, public, own, None],
        ),
        ("[\".\"]", [own, own, own, None], [own, public, own, None]),
        ("[\"~\"]", [None, own, own, None], [None, public, own, None]),
        ("[store]", [own, own, own, None], [own, public, own, None]),
        (
            "[store, \"*\"]",
            [public, public, own, None],
            [public, public, own, None],
        ),
    ];
    let mut mesh = TestMesh::empty();
    for (setting_text, tenants, roots) in cases {
        // The setting changes while the entries stay.
        mesh.apply(&export_setting(setting_text));
        let requested = [
            "",
            ", exportTo: [\"*\"]",
            ", exportTo: [.]",
            ", exportTo: [\"~\"]",
        ];
        for (of, expected) in [("tenant", tenants), ("istio-system", roots)] {
            for (requested, expected) in requested.iter().zip(expected) {
                mesh.apply(&service_entry(of, "api.example.com", requested));
                let name = format!("{of}/api.example.com");
                let what = format!("{of} with {requested:?}, {setting_text}");
                assert_eq!(visibility(&mesh, &name), *expected, "{what}");
                let canonical = mesh.services.get(&name).is_some_and(|one| one.canonical);
                assert!(!canonical || *expected == public, "{what}");
                let is_noted = entry_notes(&mesh, of).contains("spec.exportTo");
                let is_less = requested.contains('*') && *expected != public;
                assert_eq!(is_noted, is_less, "{what}: {}", entry_notes(&mesh, of));
            }
            mesh.delete(Kind::ServiceEntry, of, "e");
        }
    }
    // Entries follow the setting.
    mesh.apply(&export_setting(EXPORT_TO_ALL));
    mesh.apply(&service_entry("tenant", "api.example.com", ""));
    assert_eq!(visibility(&mesh, "tenant/api.example.com"), public);
    // One that cannot be read leaves the last in force.
    mesh.apply(&export_setting("all"));
    assert_eq!(visibility(&mesh, "tenant/api.example.com"), public);
    mesh.apply(&export_setting("[\".\"]"));
    assert_eq!(visibility(&mesh, "tenant/api.example.com"), own);
    mesh.apply(&export_setting(EXPORT_TO_ALL));
    mesh.delete(Kind::ConfigMap, "istio-system", "istio");
    assert_eq!(visibility(&mesh, "tenant/api.example.com"), own);
}

#[test]
fn lists_of_single_namespaces_are_shown_to_the_own_one() {
    for (export, expected) in [
        ("[tenant]", Some(Visibility::Namespace)),
        ("[., shop]", Some(Visibility::Namespace)),
        ("[shop]", None),
    ] {
        let of = service_entry(
            "tenant",
            "api.example.com",
            &format!(", exportTo: {export}"),
        );
        let mesh = TestMesh::from_yaml(&join_documents(&[&export_setting(EXPORT_TO_ALL), &of]));
        assert_eq!(
            visibility(&mesh, "tenant/api.example.com"),
            expected,
            "{export}"
        );
        assert_eq!(mesh.workloads.is_empty(), expected.is_none(), "{export}");
    }
}
