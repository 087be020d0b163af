//! Prometheus' own query engine as a program (`build/prometheus`), and its input: scrapes of the programs of a mesh,
//! with the labels that Kubernetes discovery adds to their pods.

use std::{
    collections::BTreeMap,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
    time::SystemTime,
};

use ambit_system_tests::{LabNetns, Mesh, built_binary};
use serde::{Deserialize, Serialize};

/// `Accept` header of Prometheus' scrapes.
const ACCEPT: &str =
    "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// Input of the query engine: scrapes, and queries to evaluate over the scrapes.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Input {
    pub rules: String,
    pub scrapes: Vec<Scrape>,
    pub series: Vec<String>,
    pub interval: u64,
    pub queries: Vec<String>,
    pub time: f64,
}

/// Response of a target to a scrape, with the target's labels.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Scrape {
    pub time: f64,
    content_type: String,
    body: String,
    labels: BTreeMap<&'static str, String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Output {
    pub alerts: Vec<Alert>,
    pub results: Vec<QueryResult>,
}

/// Alert rule, as Prometheus has parsed it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Alert {
    pub name: String,
    pub expr: String,
    /// Time in seconds for which the expression must have a result before the alert fires.
    pub r#for: f64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// Result of a query over the scrapes.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct QueryResult {
    #[serde(default)]
    pub error: String,
    pub samples: Vec<Sample>,
    /// Selectors of the query that match no series.
    pub missing: Vec<String>,
    /// Selectors whose metric name and labels no series has.
    pub unknown: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Sample {
    pub labels: BTreeMap<String, String>,
    pub value: String,
}

impl QueryResult {
    /// Returns whether the result has a number to show, which is not the quotient of two zeros.
    pub(super) fn has_data(&self) -> bool {
        self.error.is_empty() && self.samples.iter().any(|sample| sample.value != "NaN")
    }
}

/// Runs Prometheus' engine on the input.
pub(super) fn query(input: &Input) -> Output {
    let mut engine = Command::new(built_binary("prometheus-queries"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = engine.stdin.take().unwrap();
    // If the program ends early, its exit code and standard error show why.
    let _ended_early = stdin.write_all(&serde_json::to_vec(input).unwrap());
    drop(stdin);
    let output = engine.wait_with_output().unwrap();
    assert!(output.status.success(), "the engine failed: see its error");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Scrapes every program of the mesh, on nodes 1 and 2 and in the waypoint `shop/waypoint`.
pub(super) fn scrape(mesh: &Mesh) -> Vec<Scrape> {
    let system = |pod: &str, app: &str| labels("istio-system", pod, app);
    let waypoint = mesh.pod("shop/waypoint").name;
    let of_waypoint = labels("shop", &waypoint, "waypoint");
    let mut scrapes = vec![
        scrape_target(mesh, LabNetns::Control, 15014, system("istiod-0", "istiod")),
        scrape_target(
            mesh,
            LabNetns::Pod("shop/waypoint".into()),
            15020,
            of_waypoint,
        ),
    ];
    for node in ["node-1", "node-2"] {
        let place = || LabNetns::Node(node.into());
        let proxy = system(&format!("ztunnel-{node}"), "ztunnel");
        let agent = system(&format!("ambit-agent-{node}"), "ambit-agent");
        scrapes.push(scrape_target(mesh, place(), 15020, proxy));
        scrapes.push(scrape_target(mesh, place(), 15014, agent));
    }
    scrapes
}

fn labels(namespace: &str, pod: &str, app: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("job", "kubernetes-pods".to_owned()),
        ("namespace", namespace.to_owned()),
        ("pod", pod.to_owned()),
        ("app", app.to_owned()),
    ])
}

fn scrape_target(
    mesh: &Mesh,
    place: LabNetns,
    port: u16,
    mut labels: BTreeMap<&'static str, String>,
) -> Scrape {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    labels.insert("instance", format!("{}:{port}", labels["pod"]));
    let request = format!("GET /metrics HTTP/1.0\r\nHost: pod\r\nAccept: {ACCEPT}\r\n\r\n");
    let mut connection = mesh.dial_from(place, address).unwrap();
    let answer = connection.send_raw(request.as_bytes(), |_| false).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{head}");
    let head = head.to_ascii_lowercase();
    let mut lines = head.lines();
    let content_type = lines.find_map(|line| line.strip_prefix("content-type: "));
    Scrape {
        time: now(),
        content_type: content_type.unwrap_or_default().to_owned(),
        body: body.to_owned(),
        labels,
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs_f64()
}
