//! Test of the dashboard while the cluster's API server is down, and afterwards.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use ambit_cluster_tests::{Mesh, Process, TestNamespace, built_binary, wait_until};
use ambit_testkit::http;
use serde_json::Value;

struct Dashboard {
    _process: Process,
    host: String,
    token: String,
}

impl Dashboard {
    fn start(mesh: &Mesh) -> Self {
        let mut child = Command::new(built_binary("ambit"))
            .args(["dashboard", "--no-open"])
            .env("KUBECONFIG", mesh.cluster().kubeconfig())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let line = BufReader::new(output).lines().next().unwrap().unwrap();
        let url = line.strip_prefix("dashboard: http://").unwrap();
        let (host, token) = url.split_once("/#token=").unwrap();
        Self {
            _process: Process(child),
            host: host.to_owned(),
            token: token.to_owned(),
        }
    }

    /// Returns the response to a query of the dashboard's page.
    fn query(&self, question: &str) -> Value {
        let path = format!("/api/{question}");
        let token = [("X-Ambit-Token", self.token.as_str())];
        let response = http::request(&self.host, "GET", &path, &token, "").unwrap();
        let answer = serde_json::from_str(&response.body);
        assert!(answer.is_ok(), "{question}: {response:?}");
        answer.unwrap()
    }

    fn mesh(&self) -> Value {
        self.query("mesh?after=0")
    }

    /// Returns the number of encrypted connections from `client` to `server` so far.
    fn encrypted_connections(&self, space: &TestNamespace<'_>) -> u64 {
        let traffic = self.query("traffic?after=0");
        let is = |node: &Value, name: &str| node[1] == space.name() && node[2] == name;
        let edges = traffic["edges"].as_array().unwrap();
        let edges = edges
            .iter()
            .filter(|edge| is(&edge["from"], "client") && is(&edge["to"], "server"));
        edges.filter_map(|edge| edge["encrypted"].as_u64()).sum()
    }
}

#[test]
fn dashboard_outlives_an_outage_of_the_api_server() {
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("page");
    space.deploy_captured_server();
    space.deploy_client("client", Some("n1"));
    space.wait_until_captured("client", true);
    let dashboard = Dashboard::start(&mesh);
    let has_workload = |mesh: &Value, name: &str| {
        let workloads = mesh["mesh"]["workloads"].as_array();
        workloads.into_iter().flatten().any(|workload| {
            workload["namespace"] == space.name()
                && workload["owner"] == name
                && workload["protocol"] == "HBONE"
        })
    };
    wait_until("the page has the mesh", || {
        let mesh = dashboard.mesh();
        has_workload(&mesh, "client") && has_workload(&mesh, "server")
    });
    wait_until("the page has the traffic", || {
        space.get("client", "http://server/").ok();
        dashboard.encrypted_connections(&space) > 0
    });
    let health = dashboard.query("health");
    assert_eq!(health["troubles"].as_array().unwrap().len(), 0, "{health}");
    assert!(health["rollout"].is_object(), "{health}");

    mesh.cluster().stop_api_server().unwrap();
    wait_until("the page reports the unreachable cluster", || {
        let mesh = dashboard.mesh();
        mesh["error"].is_string() && has_workload(&mesh, "server")
    });
    let health = dashboard.query("health");
    assert!(health["error"].is_string(), "{health}");

    mesh.cluster().start_api_server().unwrap();
    wait_until("the page has the mesh again", || {
        let mesh = dashboard.mesh();
        mesh["error"].is_null() && has_workload(&mesh, "server")
    });
    let latest = || dashboard.query("traffic?after=0")["latest"].as_u64();
    let before = latest();
    wait_until("the page has traffic again", || {
        space.get("client", "http://server/").ok();
        latest() > before
    });
}
