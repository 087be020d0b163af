//! Queries proxies for open connections and metrics. A proxy that does not respond is noted, and the rehearsal runs
//! without it.

use ambit_install::cluster::Cluster;
use ambit_k8s_api::Pod;
use ambit_lab::{Client, LabNetns};
use hyper::Method;

use super::{
    counted::{self, CountedCalls},
    observed::{self, ObservedCall},
};
use crate::{
    CliError,
    cluster::wait,
    dump::OpenDump,
    http::{self, Answer},
    labs, reach,
};

/// Admin port of node proxies, which serves the dump with open connections.
const ADMIN: u16 = 15000;
const METRICS: u16 = 15020;

/// Open connections and counted calls of all queried proxies, with notes on those that did not respond.
#[derive(Default)]
pub(super) struct ProxyAnswers {
    pub(super) open: Vec<ObservedCall>,
    pub(super) counted: Vec<CountedCalls>,
    pub(super) notes: Vec<String>,
}

impl ProxyAnswers {
    /// Adds the open connections of a node proxy's dump.
    pub(super) fn dump(&mut self, of: &str, bytes: &[u8]) {
        match serde_json::from_slice::<OpenDump>(bytes) {
            Ok(dump) => self.open.extend(observed::open(&dump)),
            Err(error) => self.notes.push(format!(
                "note: the dump of {of} cannot be read ({error}): its open connections are not evaluated"
            )),
        }
    }

    /// Adds the counted calls of a proxy's metrics, in Prometheus text format.
    pub(super) fn metrics(&mut self, bytes: &[u8]) {
        self.counted
            .extend(counted::read(&String::from_utf8_lossy(bytes)));
    }

    fn take(&mut self, of: &str, port: u16, answer: Result<Answer, CliError>) {
        match answer {
            Ok(Answer { status: 200, body }) if port == ADMIN => self.dump(of, &body),
            Ok(Answer { status: 200, body }) => self.metrics(&body),
            Ok(Answer { status, .. }) => self.silent(of, port, &format!("status {status}")),
            Err(error) => self.silent(of, port, &error.to_string()),
        }
    }

    fn silent(&mut self, of: &str, port: u16, why: &str) {
        let what = match port {
            ADMIN => "its open connections are not evaluated",
            _ => "its metrics are not evaluated",
        };
        self.notes
            .push(format!("note: {of} does not respond ({why}): {what}"));
    }

    /// Queries the node proxies of a lab, and the waypoints of these pod names.
    pub(super) fn of_lab(client: &Client, waypoints: &[String]) -> Result<Self, CliError> {
        let mut answers = Self::default();
        let status = client.status().map_err(labs::client_error)?;
        for node in status.nodes {
            let of = format!("the node proxy of {}", node.name);
            for port in [ADMIN, METRICS] {
                let answer = ask_in_lab(client, LabNetns::Node(node.name.clone()), port);
                answers.take(&of, port, answer);
            }
        }
        for waypoint in waypoints {
            let answer = ask_in_lab(client, LabNetns::Pod(waypoint.clone()), METRICS);
            answers.take(&format!("the waypoint {waypoint}"), METRICS, answer);
        }
        Ok(answers)
    }

    /// Queries the node proxies and waypoints of a cluster.
    pub(super) async fn of_cluster(cluster: &Cluster, proxies: &[Pod], waypoints: &[Pod]) -> Self {
        let mut answers = Self::default();
        let of_proxies = proxies
            .iter()
            .flat_map(|pod| [(pod, ADMIN), (pod, METRICS)]);
        let of_waypoints = waypoints.iter().map(|pod| (pod, METRICS));
        for (pod, port) in of_proxies.chain(of_waypoints) {
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            let (namespace, name) = (text(&pod.metadata.namespace), text(&pod.metadata.name));
            let asking = reach::ask_pod(cluster, &namespace, &name, port, Method::GET, path(port));
            answers.take(&format!("the proxy {namespace}/{name}"), port, asking.await);
        }
        answers
    }
}

fn path(port: u16) -> &'static str {
    if port == ADMIN {
        "/config_dump"
    } else {
        "/metrics"
    }
}

fn ask_in_lab(client: &Client, place: LabNetns, port: u16) -> Result<Answer, CliError> {
    let address = ([127, 0, 0, 1], port).into();
    let stream = client.dial(place, address).map_err(labs::client_error)?;
    wait(async {
        let unanswered = |error: Box<dyn std::error::Error + Send + Sync>| {
            CliError::new(crate::ErrorKind::Unreachable, error.to_string())
        };
        stream
            .set_nonblocking(true)
            .map_err(|error| unanswered(error.into()))?;
        let stream = tokio::net::TcpStream::from_std(stream);
        let stream = stream.map_err(|error| unanswered(error.into()))?;
        let answer = http::request(stream, Method::GET, "localhost", path(port)).await;
        answer.map_err(|error| unanswered(error.into()))
    })
}
