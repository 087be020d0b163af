//! Tests of Kiali's own server with the mesh: it finds the control plane, validates objects, and draws the traffic.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    time::SystemTime,
};

use ambit_cluster::{Cluster, ClusterPaths, Slot};
use ambit_cluster_tests::{
    Mesh, Process, TestNamespace, Waypoint, built_binary, sources, target_directory, wait_until,
};
use ambit_testkit::http;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

/// Prometheus' query engine behind the part of its API that Kiali queries; the test feeds the samples.
#[derive(Debug)]
struct Prometheus {
    _process: Process,
    address: String,
}

impl Prometheus {
    fn start() -> Self {
        let mut child = Command::new(built_binary("prometheus-queries"))
            .args(["serve", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let address = BufReader::new(output).lines().next().unwrap().unwrap();
        Self {
            _process: Process(child),
            address,
        }
    }

    /// Scrapes every pod of the mesh, and every pod of a namespace whose annotations request it.
    fn scrape(&self, mesh: &Mesh, namespace: &str) {
        let pods: Api<Pod> = Api::all(mesh.client());
        let pods = mesh.wait_for(pods.list(&ListParams::default())).unwrap();
        let is_ours = |pod: &Pod| {
            let of = pod.namespace().unwrap_or_default();
            of == namespace || of == "istio-system"
        };
        for pod in pods.items.iter().filter(|pod| is_ours(pod)) {
            let annotation = |name: &str| pod.annotations().get(&format!("prometheus.io/{name}"));
            let (Some(port), Some(path)) = (annotation("port"), annotation("path")) else {
                continue;
            };
            let (of, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
            let page = format!("/api/v1/namespaces/{of}/pods/{name}:{port}/proxy{path}");
            let body = mesh.kubectl(&["get", "--raw", &page]);
            let content_type = if body.trim_end().ends_with("# EOF") {
                "application/openmetrics-text; version=1.0.0"
            } else {
                "text/plain; version=0.0.4"
            };
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let scrape = json!({
                "time": now.unwrap().as_secs_f64(),
                "contentType": content_type,
                "body": body,
                "labels": {"namespace": of, "pod": name},
            });
            let scrape = scrape.to_string();
            let response = http::request(&self.address, "POST", "/scrape", &[], &scrape).unwrap();
            assert_eq!(response.status, 200, "{page}: {response:?}");
        }
    }
}

/// Edge of Kiali's traffic graph, between nodes such as `workload client`.
#[derive(Debug)]
struct Edge {
    source: String,
    target: String,
    protocol: String,
    /// Share of the traffic that is mTLS, in percent; may be empty.
    mtls: String,
}

/// Kiali's server on this machine, with a service account of the cluster.
#[derive(Debug)]
struct Kiali {
    _process: Process,
    address: String,
}

impl Kiali {
    fn start(
        space: &TestNamespace<'_>,
        program: &Path,
        files: &Path,
        prometheus: &Prometheus,
    ) -> Self {
        let mesh = space.mesh();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let monitoring = mesh.kubectl(&[
            "get",
            "service",
            "istiod",
            "--namespace=istio-system",
            "--output=jsonpath={.spec.clusterIP}:15014",
        ]);
        let kubeconfig = files.join("kubeconfig");
        fs::write(&kubeconfig, kubeconfig_of(space)).unwrap();
        let console = files.join("console");
        fs::create_dir(&console).unwrap();
        fs::write(console.join("index.html"), "").unwrap();
        let config = json!({
            "auth": {"strategy": "anonymous"},
            "deployment": {
                "accessible_namespaces": ["**"],
                "cluster_wide_access": true,
                "remote_secret_path": kubeconfig,
            },
            "external_services": {
                "custom_dashboards": {"enabled": false},
                "grafana": {"enabled": false},
                "istio": {
                    "istiod_polling_interval_seconds": 2,
                    "url_service_version": format!("http://{monitoring}/version"),
                },
                "prometheus": {
                    "url": format!("http://{}", prometheus.address),
                    "cache_enabled": false,
                },
                "tracing": {"enabled": false},
            },
            "in_cluster": false,
            "login_token": {"signing_key": "0123456789abcdef"},
            "server": {
                "address": "127.0.0.1",
                "port": address.port(),
                "static_content_root_directory": console,
                "observability": {"metrics": {"enabled": false}},
            },
        });
        let file = files.join("kiali.yaml");
        fs::write(&file, config.to_string()).unwrap();
        let log = fs::File::create(files.join("log")).unwrap();
        let process = Command::new(program)
            .arg("-config")
            .arg(&file)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self {
            _process: Process(process),
            address: address.to_string(),
        }
    }

    /// Returns the response of Kiali's API, `null` while it does not respond.
    fn get(&self, path: &str) -> Value {
        let path = format!("/api/{path}");
        let response = http::request(&self.address, "GET", &path, &[], "");
        let answered = response.ok().filter(|response| response.status == 200);
        answered.map_or(Value::Null, |response| {
            serde_json::from_str(&response.body).unwrap()
        })
    }

    /// Returns the edges of a namespace's traffic graph.
    fn edges(&self, namespace: &str) -> Vec<Edge> {
        let graph = self.get(&format!(
            "namespaces/graph?namespaces={namespace}&duration=60s&graphType=workload&injectServiceNodes=true\
             &appenders=deadNode,istio,serviceEntry,meshCheck,workloadEntry,health,securityPolicy"
        ));
        let all = |part: &str| graph["elements"][part].as_array().cloned();
        let nodes = all("nodes").unwrap_or_default();
        let name = |id: &Value| {
            let node = nodes.iter().find(|node| node["data"]["id"] == *id);
            let data = node.map(|node| node["data"].clone()).unwrap_or_default();
            let kind = text(&data["nodeType"]);
            format!("{kind} {}", text(&data[&kind]))
        };
        let edges = all("edges").unwrap_or_default().into_iter();
        let edge = |edge: Value| {
            let data = &edge["data"];
            Edge {
                source: name(&data["source"]),
                target: name(&data["target"]),
                protocol: text(&data["traffic"]["protocol"]),
                mtls: text(&data["isMTLS"]),
            }
        };
        edges.map(edge).collect()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns a kubeconfig for a service account of the namespace that may read everything.
fn kubeconfig_of(space: &TestNamespace<'_>) -> String {
    let mesh = space.mesh();
    space.apply(
        r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: kiali}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: kiali-of-$NAMESPACE}
rules:
- {apiGroups: ["*"], resources: ["*"], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [pods/portforward], verbs: [create]}
- {apiGroups: [authorization.k8s.io], resources: [selfsubjectaccessreviews], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kiali-of-$NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kiali-of-$NAMESPACE}
subjects: [{kind: ServiceAccount, name: kiali, namespace: $NAMESPACE}]
"#,
    );
    let of = format!("--namespace={}", space.name());
    let token = mesh.kubectl(&["create", "token", "kiali", &of]);
    let cluster = mesh.kubectl(&["config", "view", "--raw", "--output=json"]);
    let cluster: Value = serde_json::from_str(&cluster).unwrap();
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": cluster["clusters"][0]["cluster"]}],
        "users": [{"name": "kiali", "user": {"token": token.trim()}}],
        "contexts": [{"name": "kiali", "context": {"cluster": "cluster", "user": "kiali"}}],
        "current-context": "kiali",
    })
    .to_string()
}

#[test]
fn kiali_finds_the_mesh_draws_its_traffic_and_validates_its_objects() {
    let places = ClusterPaths::in_target(&target_directory(), Slot::TESTS);
    // Before the mesh is taken: it takes minutes when it is built from nothing.
    let program = Cluster::kiali(&places, &sources()).unwrap();
    let mesh = Mesh::shared();
    mesh.install(&["monitoring.kiali.definitions=true"]);
    let space = mesh.test_namespace("seen");
    let elsewhere = mesh.test_namespace("elsewhere");
    space.deploy_captured_server();
    space.deploy_client("client", Some("n1"));
    space.wait_until_captured("client", true);
    let waypoint = Waypoint::apply(&space);
    waypoint.kubectl(&["label", "service/server", "istio.io/use-waypoint=waypoint"]);
    let name = space.name();
    for (rule, host) in [("known", "server"), ("unknown", "missing")] {
        elsewhere.apply(&format!(
            "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {rule}}}\n\
             spec: {{host: {host}.{name}.svc.cluster.local}}\n"
        ));
    }
    let prometheus = Prometheus::start();
    let files = tempfile::tempdir().unwrap();
    let kiali = Kiali::start(&space, &program, files.path(), &prometheus);

    // The control plane, with its version.
    wait_until("Kiali finds a healthy control plane", || {
        let status = kiali.get("istio/status");
        let mut components = status.as_array().into_iter().flatten();
        components.any(|one| one["name"] == "ambit-control" && one["status"] == "Healthy")
    });
    wait_until("Kiali knows the control plane's version", || {
        let graph = kiali.get("mesh/graph");
        let nodes = graph["elements"]["nodes"].as_array();
        nodes.into_iter().flatten().any(|node| {
            node["data"]["infraType"] == "istiod"
                && node["data"]["version"] == env!("CARGO_PKG_VERSION")
        })
    });

    // Hosts of other namespaces are known by the control plane's registry alone.
    wait_until("Kiali validates hosts", || {
        let path = format!("namespaces/{}/istio?validate=true", elsewhere.name());
        let rules = kiali.get(&path);
        let rule = |rule: &str| {
            rules["validations"]["destinationrule"][format!("{rule}.{}", elsewhere.name())].clone()
        };
        rule("known")["valid"] == true
            && rule("unknown")["valid"] == false
            && rule("unknown")["checks"][0]["code"] == "KIA0202"
    });

    // The traffic: requests through the waypoint, and the connections below them.
    let (client, service, server) = ("workload client", "service server", "workload server");
    wait_until("Kiali draws the requests", || {
        space.get("client", "http://server/").ok();
        prometheus.scrape(&mesh, name);
        let edges = kiali.edges(name);
        let has = |source: &str, target: &str| {
            let mut edges = edges.iter();
            edges.any(|edge| {
                edge.source == source
                    && edge.target == target
                    && edge.protocol == "http"
                    && edge.mtls.starts_with("100")
            })
        };
        has(client, service) && has(service, server)
    });

    let workloads = kiali.get(&format!(
        "clusters/workloads?namespaces={name}&health=true&rateInterval=60s"
    ));
    let workloads = workloads["workloads"].as_array().unwrap();
    for app in ["client", "server"] {
        let workload = workloads.iter().find(|one| one["name"] == app).unwrap();
        assert_eq!(workload["isAmbient"], true, "{workload}");
    }
}
