//! Checks of the mesh over a primary CNI, the same for each.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Api;
use serde_json::Value;

use crate::{
    ExpectedOutcome, FlowKind, FlowReport, IpFamily, Mesh, Node, TestNamespace,
    assert_nothing_in_plaintext, assert_only_tls, is_ready, wait_until,
};

/// Result of kubelet's probes of pods with STRICT mTLS.
#[derive(Clone, Copy, Debug)]
pub enum ProbeTreatment {
    /// Probes pass, since the kubelet is recognized by its address.
    Exempt,
    /// Probes are rejected like any plaintext: the node does not see the pod's frames, so that a neighbour could
    /// pretend to be the kubelet.
    RejectedAsPlaintext,
}

/// Checks that the mesh works with the primary CNI. Returns a test namespace with STRICT mTLS, a server and its
/// clients.
#[track_caller]
pub fn assert_mesh_works(mesh: &Mesh, probes: ProbeTreatment) -> TestNamespace<'_> {
    let space = mesh.test_namespace("wired");
    let server = space.deploy_captured_server();
    let service = create_dual_stack_service(mesh, &space);
    assert_only_tls_exchanged(mesh, &space, &server, &service);
    assert_starters_captured(mesh, &space, &server);
    let urls = match probes {
        ProbeTreatment::Exempt => service
            .cluster_ips
            .iter()
            .map(|ip| http_url(ip, 80))
            .collect(),
        // A server that is not ready is no endpoint of its Service.
        ProbeTreatment::RejectedAsPlaintext => pod_ips(mesh, &server)
            .iter()
            .map(|ip| http_url(ip, 8080))
            .collect(),
    };
    assert_only_probes_plaintext(mesh, &space, urls, probes);
    space
}

#[track_caller]
fn assert_only_tls_exchanged(
    mesh: &Mesh,
    space: &TestNamespace<'_>,
    server: &Pod,
    service: &DualStackService,
) {
    let clients = ["far", "near"];
    let [far, near] =
        [("far", "n1"), ("near", "n2")].map(|(name, node)| space.deploy_client(name, Some(node)));
    for client in clients {
        space.wait_until_captured(client, true);
    }
    let mut urls = vec!["http://server/".to_owned(), "http://all/".to_owned()];
    urls.extend(service.cluster_ips.iter().map(|ip| http_url(ip, 80)));
    urls.extend(pod_ips(mesh, server).iter().map(|ip| http_url(ip, 8080)));
    for client in clients {
        for url in &urls {
            space.wait_for_get(client, url, true);
        }
    }

    let wire = mesh.capture_traffic(&["GET /"]);
    for client in clients {
        for url in &urls {
            space.get(client, url).unwrap();
        }
    }
    let reports = wire.finish();
    for client in [&far, &near] {
        assert_only_tls(&reports, &[server, client]);
    }
    let dual = family_count(mesh) == 2;
    assert!(
        !dual || reports.iter().any(is_tunnelled_over_ipv6),
        "{reports:#?}"
    );

    // A node's own address is not the mesh's: kube-proxy forwards such calls.
    for node in ["11", "12"] {
        let addresses = [format!("10.252.0.{node}"), format!("fd00:2:250::{node}")];
        for address in &addresses[..family_count(mesh)] {
            space.wait_for_get("far", &http_url(address, service.node_port), true);
        }
    }
}

/// Checks that pods which call the server when they start are captured, on either node.
#[track_caller]
fn assert_starters_captured(mesh: &Mesh, space: &TestNamespace<'_>, server: &Pod) {
    let wire = mesh.capture_traffic(&[&space.traffic_marker()]);
    space.deploy_starting_clients(4, None);
    for pod in space.wait_until_ready("starter", 4) {
        let event = space.wait_for_first_response(&pod);
        assert_eq!(event["retries"], 0, "{event}");
    }
    assert_nothing_in_plaintext(&wire.finish(), &[server], &[9000]);
}

/// Checks that with STRICT mTLS, pods outside the mesh are rejected, and kubelet's probes are treated as in `probes`.
#[track_caller]
fn assert_only_probes_plaintext(
    mesh: &Mesh,
    space: &TestNamespace<'_>,
    urls: Vec<String>,
    probes: ProbeTreatment,
) {
    let outside = mesh.test_namespace("outside");
    let clients = [("far", "n1"), ("near", "n2")].map(|(name, node)| {
        outside.deploy_client(name, Some(node));
        name
    });
    let until_all_come_to = |expected: ExpectedOutcome<'_>| {
        for client in clients {
            for url in &urls {
                outside.wait_for_get(client, url, expected);
            }
        }
    };
    until_all_come_to(ExpectedOutcome::Success);
    space.apply(
        "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict}
spec: {mtls: {mode: STRICT}}
",
    );
    until_all_come_to(ExpectedOutcome::Denial("istio_converted_static_strict"));
    match probes {
        // The server's node knows the policy by now: another server there becomes ready by its probes.
        ProbeTreatment::Exempt => {
            space.deploy_server("probed", Some("n2"));
            space.wait_until_captured("probed", true);
        }
        ProbeTreatment::RejectedAsPlaintext => {
            wait_until("the server's probes are refused", || {
                !space.pods("server").iter().any(is_ready)
            });
            space.apply(
                "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict}
spec: {mtls: {mode: PERMISSIVE}}
",
            );
            space.wait_until_ready("server", 1);
        }
    }
}

/// Delays the loopback CNI plugin so that it finishes last: the container runtime calls it concurrently with the other
/// plugins.
pub fn delay_loopback(node: Node<'_>) {
    let plugins = node.plugins().unwrap();
    fs::copy(plugins.join("loopback"), plugins.join("loopback-itself")).unwrap();
    let script = "#!/bin/sh\nsleep 0.5\nexec /opt/cni/bin/loopback-itself\n";
    // The runtime may be about to run the existing one.
    fs::write(plugins.join("new"), script).unwrap();
    fs::set_permissions(plugins.join("new"), Permissions::from_mode(0o755)).unwrap();
    fs::rename(plugins.join("new"), plugins.join("loopback")).unwrap();
}

/// Returns the plugin types, in order, in the first CNI configuration, which the node's container runtime uses.
pub fn cni_plugin_types(node: Node<'_>) -> Vec<String> {
    let directory = node.configurations().unwrap();
    let files = directory
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let lists = files.filter(|file| file.extension().is_some_and(|end| end == "conflist"));
    let text = fs::read_to_string(lists.min().unwrap()).unwrap();
    let list: Value = serde_json::from_str(&text).unwrap();
    let plugins = list["plugins"].as_array().unwrap().iter();
    plugins
        .map(|plugin| plugin["type"].as_str().unwrap().to_owned())
        .collect()
}

struct DualStackService {
    cluster_ips: Vec<String>,
    node_port: u16,
}

/// Creates a NodePort Service of the server with addresses of all of the cluster's IP families.
fn create_dual_stack_service(mesh: &Mesh, space: &TestNamespace<'_>) -> DualStackService {
    space.apply(
        "apiVersion: v1
kind: Service
metadata: {name: all}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}]
",
    );
    let services: Api<Service> = Api::namespaced(mesh.client(), space.name());
    let spec = mesh.wait_for(services.get("all")).unwrap().spec.unwrap();
    let cluster_ips = spec.cluster_ips.unwrap();
    assert_eq!(cluster_ips.len(), family_count(mesh));
    DualStackService {
        cluster_ips,
        node_port: spec.ports.unwrap()[0]
            .node_port
            .unwrap()
            .try_into()
            .unwrap(),
    }
}

fn family_count(mesh: &Mesh) -> usize {
    match mesh.cluster().options().ip_family {
        IpFamily::Ipv4 => 1,
        IpFamily::Dual => 2,
    }
}

/// Returns the addresses of a pod in all of the cluster's IP families.
fn pod_ips(mesh: &Mesh, pod: &Pod) -> Vec<String> {
    let ips = pod
        .status
        .iter()
        .flat_map(|status| status.pod_ips.iter().flatten());
    let ips: Vec<String> = ips.map(|ip| ip.ip.clone()).collect();
    assert_eq!(ips.len(), family_count(mesh));
    ips
}

fn http_url(ip: &str, port: u16) -> String {
    if ip.contains(':') {
        format!("http://[{ip}]:{port}/")
    } else {
        format!("http://{ip}:{port}/")
    }
}

fn is_tunnelled_over_ipv6(report: &FlowReport) -> bool {
    report.kind == FlowKind::Hbone && report.server.is_ipv6() && report.bytes > 0
}
