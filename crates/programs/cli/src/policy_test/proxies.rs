//! Queries proxies for open connections and metrics. A proxy that does not respond is noted, and the rehearsal runs
//! without it.

use ambit_install::cluster::ClusterApi;
use ambit_k8s_api::Pod;
use ambit_lab::{Client, LabNetns};
use hyper::Method;

use super::{
    counted_calls::{self, CountedCalls},
    observed::{self, ObservedCall},
};
use crate::{
    CliError,
    cluster::block_on,
    dump::ConnectionsDump,
    http::{self, HttpResponse},
    labs, pod_access,
};

/// Admin port of node proxies, which serves the dump with open connections.
const ADMIN_PORT: u16 = 15000;
const METRICS_PORT: u16 = 15020;

/// Open connections and counted calls of all queried proxies, with notes on those that did not respond.
#[derive(Default)]
pub(super) struct ProxyResponses {
    pub(super) open_connections: Vec<ObservedCall>,
    pub(super) counted_calls: Vec<CountedCalls>,
    pub(super) notes: Vec<String>,
}

impl ProxyResponses {
    /// Adds the open connections of a node proxy's dump.
    pub(super) fn add_dump(&mut self, proxy: &str, bytes: &[u8]) {
        match serde_json::from_slice::<ConnectionsDump>(bytes) {
            Ok(dump) => self.open_connections.extend(observed::open_connections(&dump)),
            Err(error) => self.notes.push(format!(
                "note: the dump of {proxy} cannot be read ({error}): its open connections are not evaluated"
            )),
        }
    }

    /// Adds the counted calls of a proxy's metrics, in Prometheus text format.
    pub(super) fn add_metrics(&mut self, bytes: &[u8]) {
        self.counted_calls
            .extend(counted_calls::parse_metrics(&String::from_utf8_lossy(
                bytes,
            )));
    }

    fn add_response(&mut self, proxy: &str, port: u16, response: Result<HttpResponse, CliError>) {
        match response {
            Ok(HttpResponse { status: 200, body }) if port == ADMIN_PORT => {
                self.add_dump(proxy, &body)
            }
            Ok(HttpResponse { status: 200, body }) => self.add_metrics(&body),
            Ok(HttpResponse { status, .. }) => {
                self.add_failure(proxy, port, &format!("status {status}"))
            }
            Err(error) => self.add_failure(proxy, port, &error.to_string()),
        }
    }

    fn add_failure(&mut self, proxy: &str, port: u16, why: &str) {
        let what = match port {
            ADMIN_PORT => "its open connections are not evaluated",
            _ => "its metrics are not evaluated",
        };
        self.notes
            .push(format!("note: {proxy} does not respond ({why}): {what}"));
    }

    /// Queries the node proxies of a lab, and the waypoints of these pod names.
    pub(super) fn query_lab(client: &Client, waypoints: &[String]) -> Result<Self, CliError> {
        let mut answers = Self::default();
        let status = client.status().map_err(labs::client_error)?;
        for node in status.nodes {
            let of = format!("the node proxy of {}", node.name);
            for port in [ADMIN_PORT, METRICS_PORT] {
                let answer = query_in_lab(client, LabNetns::Node(node.name.clone()), port);
                answers.add_response(&of, port, answer);
            }
        }
        for waypoint in waypoints {
            let answer = query_in_lab(client, LabNetns::Pod(waypoint.clone()), METRICS_PORT);
            answers.add_response(&format!("the waypoint {waypoint}"), METRICS_PORT, answer);
        }
        Ok(answers)
    }

    /// Queries the node proxies and waypoints of a cluster.
    pub(super) async fn query_cluster(
        cluster: &ClusterApi,
        proxies: &[Pod],
        waypoints: &[Pod],
    ) -> Self {
        let mut answers = Self::default();
        let of_proxies = proxies
            .iter()
            .flat_map(|pod| [(pod, ADMIN_PORT), (pod, METRICS_PORT)]);
        let of_waypoints = waypoints.iter().map(|pod| (pod, METRICS_PORT));
        for (pod, port) in of_proxies.chain(of_waypoints) {
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            let (namespace, name) = (text(&pod.metadata.namespace), text(&pod.metadata.name));
            let asking = pod_access::query_pod(
                cluster,
                &namespace,
                &name,
                port,
                Method::GET,
                page_path(port),
            );
            answers.add_response(&format!("the proxy {namespace}/{name}"), port, asking.await);
        }
        answers
    }
}

fn page_path(port: u16) -> &'static str {
    if port == ADMIN_PORT {
        "/config_dump"
    } else {
        "/metrics"
    }
}

fn query_in_lab(client: &Client, netns: LabNetns, port: u16) -> Result<HttpResponse, CliError> {
    let address = ([127, 0, 0, 1], port).into();
    let stream = client.dial(netns, address).map_err(labs::client_error)?;
    block_on(async {
        let unanswered = |error: Box<dyn std::error::Error + Send + Sync>| {
            CliError::new(crate::ErrorKind::Unreachable, error.to_string())
        };
        stream
            .set_nonblocking(true)
            .map_err(|error| unanswered(error.into()))?;
        let stream = tokio::net::TcpStream::from_std(stream);
        let stream = stream.map_err(|error| unanswered(error.into()))?;
        let answer = http::request(stream, Method::GET, "localhost", page_path(port)).await;
        answer.map_err(|error| unanswered(error.into()))
    })
}
