//! Tests of enrolment, policies, probes, upgrade and uninstallation on other platforms.

use ambit_cluster_tests::{
    Load, Mesh, Part, PolicyEngine, Probes, assert_at_home, assert_network_policies_hold,
    assert_only_tls, assert_uninstalls, plugins, restarts,
};

#[test]
fn the_mesh_lives_with_calico_and_its_policies() {
    assert_supported(&Platform {
        options: &["--primary-cni=calico", "--ip-family=dual"],
        values: &[],
        chain: &["calico", "portmap", "ambit-cni"],
        engine: PolicyEngine::PrimaryCni,
        objects: "",
    });
}

#[test]
fn the_mesh_lives_with_kube_router_and_its_policies() {
    assert_supported(&Platform {
        options: &["--primary-cni=kube-router", "--ip-family=ipv4"],
        values: &[],
        chain: &["bridge", "portmap", "ambit-cni"],
        engine: PolicyEngine::PrimaryCni,
        objects: "",
    });
}

#[test]
fn the_mesh_lives_with_cilium_and_its_policies() {
    assert_supported(&Platform {
        options: &["--primary-cni=cilium", "--ip-family=dual"],
        values: &[],
        chain: &["cilium-cni", "ambit-cni"],
        engine: PolicyEngine::PrimaryCni,
        objects: CILIUM_PROBES,
    });
}

/// Tests the layout of k3s with Flannel, which k3s includes.
#[test]
fn the_mesh_finds_its_directories_in_the_layout_of_k3s() {
    assert_supported(&Platform {
        options: &["--layout=k3s", "--primary-cni=flannel", "--ip-family=dual"],
        values: &["global.platform=k3s"],
        chain: &["flannel", "portmap", "ambit-cni"],
        engine: PolicyEngine::Added,
        objects: "",
    });
}

/// Tests the layout of MicroK8s with Calico, which MicroK8s includes.
#[test]
fn the_mesh_finds_its_directories_in_the_layout_of_microk8s() {
    assert_supported(&Platform {
        options: &[
            "--layout=microk8s",
            "--primary-cni=calico",
            "--ip-family=dual",
        ],
        values: &["global.platform=microk8s"],
        chain: &["calico", "portmap", "ambit-cni"],
        engine: PolicyEngine::PrimaryCni,
        objects: "",
    });
}

/// Policy that users of Cilium apply, according to the book.
const CILIUM_PROBES: &str = include_str!("../../../../../examples/cilium-probes.yaml");

/// Platform under test: how its cluster is started, and the results that the test expects there.
struct Platform<'a> {
    /// Options of `cargo xtask cluster up`.
    options: &'a [&'a str],
    /// Values of Ambit's chart.
    values: &'a [&'a str],
    /// Plugin types in the CNI configuration that the container runtime uses, once Ambit is installed.
    chain: &'a [&'a str],
    /// Implementation that enforces NetworkPolicies.
    engine: PolicyEngine,
    /// Manifests that users of the platform apply besides Ambit.
    objects: &'a str,
}

#[track_caller]
fn assert_supported(platform: &Platform<'_>) {
    let values = [&["cni.mode=chained"], platform.values].concat();
    let mesh = Mesh::own(platform.options, &values);
    for node in mesh.cluster().nodes() {
        assert_eq!(plugins(node), platform.chain);
    }
    mesh.apply(platform.objects);
    assert_joins_running(&mesh);
    drop(assert_at_home(&mesh, Probes::Exempt));
    assert_network_policies_hold(&mesh, platform.engine);
    assert_upgrades(&mesh);
    assert_uninstalls(&mesh, || {
        mesh.ambit(&["uninstall", "--unlabel", "--timeout=90s"]);
    });
}

/// Checks that running pods join the mesh by their namespace's label, without a restart.
#[track_caller]
fn assert_joins_running(mesh: &Mesh) {
    let space = mesh.space("joining");
    let server = space.serve("server", Some("n2"));
    let [far, near] = [("far", "n1"), ("near", "n2")].map(|(name, node)| {
        let client = space.client(name, Some(node));
        space.until_get(name, "http://server/", true);
        client
    });
    space.label(Some("ambient"));
    for app in ["server", "far", "near"] {
        space.until_captured(app, true);
    }
    for app in ["far", "near"] {
        space.until_get(app, "http://server/", true);
    }
    let wire = mesh.watch(&["GET /"]);
    for app in ["far", "near"] {
        space.get(app, "http://server/").unwrap();
    }
    let reports = wire.finish();
    for client in [&far, &near] {
        assert_only_tls(&reports, &[&server, client]);
    }
    for (app, before) in [("server", &server), ("far", &far), ("near", &near)] {
        let now = space.pods(app);
        assert!(
            now.iter()
                .all(|pod| pod.metadata.uid == before.metadata.uid && restarts(pod) == 0),
            "{now:?}"
        );
    }
}

/// Checks that new agents and node proxies take over under load, and that no request fails.
#[track_caller]
fn assert_upgrades(mesh: &Mesh) {
    let space = mesh.space("upgrade");
    space.serve_captured();
    let load = Load::start_captured(&space);
    for part in [Part::Agent, Part::NodeProxy] {
        mesh.restart(part);
        space.until_get("load", "http://server/", true);
    }
    load.finish().assert_flawless();
}
