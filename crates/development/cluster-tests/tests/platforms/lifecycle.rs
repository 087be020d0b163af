//! Tests of enrolment, policies, probes, upgrade and uninstallation on other platforms.

use ambit_cluster_tests::{
    Component, Load, Mesh, PolicyEngine, ProbeTreatment, assert_mesh_works,
    assert_network_policies_enforced, assert_only_tls, assert_uninstalls, cni_plugin_types,
    restarts,
};

#[test]
fn the_mesh_lives_with_calico_and_its_policies() {
    assert_supported(&Platform {
        options: &["--primary-cni=calico", "--ip-family=dual"],
        values: &[],
        expected_plugin_chain: &["calico", "pod-cgroup", "ambit-cni"],
        engine: PolicyEngine::PrimaryCni,
        additional_manifests: "",
    });
}

#[test]
fn the_mesh_lives_with_kube_router_and_its_policies() {
    assert_supported(&Platform {
        options: &["--primary-cni=kube-router", "--ip-family=ipv4"],
        values: &[],
        expected_plugin_chain: &["bridge", "pod-cgroup", "ambit-cni"],
        engine: PolicyEngine::PrimaryCni,
        additional_manifests: "",
    });
}

#[test]
fn the_mesh_lives_with_cilium_and_its_policies() {
    assert_supported(&Platform {
        options: &["--primary-cni=cilium", "--ip-family=dual"],
        values: &[],
        expected_plugin_chain: &["cilium-cni", "ambit-cni"],
        engine: PolicyEngine::PrimaryCni,
        additional_manifests: CILIUM_PROBES,
    });
}

/// Tests the layout of k3s with Flannel, which k3s includes.
#[test]
fn the_mesh_finds_its_directories_in_the_layout_of_k3s() {
    assert_supported(&Platform {
        options: &["--layout=k3s", "--primary-cni=flannel", "--ip-family=dual"],
        values: &["global.platform=k3s"],
        expected_plugin_chain: &["flannel", "pod-cgroup", "ambit-cni"],
        engine: PolicyEngine::TestEngine,
        additional_manifests: "",
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
        expected_plugin_chain: &["calico", "pod-cgroup", "ambit-cni"],
        engine: PolicyEngine::PrimaryCni,
        additional_manifests: "",
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
    expected_plugin_chain: &'a [&'a str],
    /// Implementation that enforces NetworkPolicies.
    engine: PolicyEngine,
    /// Manifests that users of the platform apply besides Ambit.
    additional_manifests: &'a str,
}

#[track_caller]
fn assert_supported(platform: &Platform<'_>) {
    let values = [&["cni.mode=chained"], platform.values].concat();
    let mesh = Mesh::with_own_cluster(platform.options, &values);
    for node in mesh.cluster().nodes() {
        assert_eq!(cni_plugin_types(node), platform.expected_plugin_chain);
    }
    mesh.apply(platform.additional_manifests);
    assert_running_pods_join(&mesh);
    drop(assert_mesh_works(&mesh, ProbeTreatment::Exempt));
    assert_network_policies_enforced(&mesh, platform.engine);
    assert_upgrades(&mesh);
    assert_uninstalls(&mesh, || {
        mesh.ambit(&["uninstall", "--unlabel", "--timeout=90s"]);
    });
}

/// Checks that running pods join the mesh by their namespace's label, without a restart.
#[track_caller]
fn assert_running_pods_join(mesh: &Mesh) {
    let space = mesh.test_namespace("joining");
    let server = space.deploy_server("server", Some("n2"));
    let [far, near] = [("far", "n1"), ("near", "n2")].map(|(name, node)| {
        let client = space.deploy_client(name, Some(node));
        space.wait_for_get(name, "http://server/", true);
        client
    });
    space.label(Some("ambient"));
    for app in ["server", "far", "near"] {
        space.wait_until_captured(app, true);
    }
    for app in ["far", "near"] {
        space.wait_for_get(app, "http://server/", true);
    }
    let wire = mesh.capture_traffic(&["GET /"]);
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
    let space = mesh.test_namespace("upgrade");
    space.deploy_captured_server();
    let load = Load::start_captured(&space);
    for part in [Component::Agent, Component::NodeProxy] {
        mesh.restart(part);
        space.wait_for_get("load", "http://server/", true);
    }
    load.finish().assert_no_failures();
}
