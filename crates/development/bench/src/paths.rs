//! Benchmarks of the same load on each path between two pods of a node and of two nodes: without a mesh, through two
//! chained plaintext relays, and through the mesh with each redirection backend, alternately in one run.

use std::{path::Path, thread, time::Instant};

use anyhow::{Context, Result};
use comfy_table::{ContentArrangement, Table};

use crate::{
    figure::{self, BenchmarkFigure},
    load, process,
    report::BetterDirection,
    rig::{BenchLab, BenchNodes, nginx_configuration},
    wake_ups::{self, WakeUps},
};

/// Duration of each measurement in seconds.
const SECONDS: u32 = 5;
/// Number of rounds, whose median is reported.
const ROUNDS: usize = 5;
/// Names of the servers' pods, on the client's node and on another one, and the names of these places.
const PLACES: [(&str, &str, &str); 2] = [
    ("near", "node-1", "one node"),
    ("far", "node-2", "two nodes"),
];
/// Redirection backends that are measured, with their columns' names.
const BACKENDS: [(&str, &str); 2] = [("nftables", "mesh, rules"), ("bpf", "mesh, BPF")];
const HTTP_PORT: u16 = 8080;
/// Default port of iperf3.
const BULK_PORT: u16 = 5201;
/// First of the ports at which relays listen.
const RELAY_PORT: u16 = 7000;

/// Path from a client to a server.
struct TrafficPath<'a> {
    /// Name of the column.
    name: &'static str,
    lab: &'a BenchLab,
    /// Namespace and name of the client's pod.
    client: String,
    http: String,
    bulk: (String, u16),
}

/// Load on a path, and its result.
#[derive(Clone, Copy, Debug)]
enum PathLoad {
    /// Throughput of this number of streams, in Gbit/s.
    Bulk(u32),
    /// Requests a second on this number of open connections.
    Requests(u32),
    /// Connections a second, this number at a time.
    Connections(u32),
    /// Median latency of requests on one connection, in microseconds.
    Latency,
}

const LOADS: [PathLoad; 6] = [
    PathLoad::Bulk(1),
    PathLoad::Bulk(4),
    PathLoad::Latency,
    PathLoad::Requests(32),
    PathLoad::Requests(1000),
    PathLoad::Connections(16),
];

/// Results of a load on all paths between two places; the first path is without a mesh.
pub(crate) struct PathRow {
    load: PathLoad,
    place: &'static str,
    /// Name of each path, and the medians of its rounds.
    results: Vec<(&'static str, f64)>,
    /// Estimate for the last path without the time that proxies spend outside of the kernel.
    kernel_alone: f64,
    /// CPU time of the last path's proxies for each request or connection, in microseconds.
    proxy_time: Option<f64>,
}

/// Result of a load on a path, and the CPU time of its proxies.
#[derive(Clone, Copy)]
struct Measurement {
    result: f64,
    kernel_alone: f64,
    proxy_time: Option<f64>,
}

impl PathLoad {
    fn name(self) -> String {
        match self {
            Self::Bulk(streams) => format!("throughput, {streams} streams"),
            Self::Requests(connections) => format!("requests, {connections} connections"),
            Self::Connections(at_once) => format!("new connections, {at_once} at a time"),
            Self::Latency => "median latency, 1 connection".to_owned(),
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Bulk(_) => "Gbit/s",
            Self::Requests(_) => "req/s",
            Self::Connections(_) => "conn/s",
            Self::Latency => "us",
        }
    }

    /// Returns the result that a path would have if proxies spent no time outside of the kernel, and others could use
    /// that time: `user` is the number of processors that the proxies occupied, on average, of `processors`.
    fn without_user_time(self, result: f64, user: f64, processors: f64) -> f64 {
        match self {
            // One request at a time: the proxies' time is a part of its latency.
            Self::Latency => result * (1.0 - user),
            _ => result * processors / (processors - user),
        }
    }

    /// Returns how many requests or connections a result is; `None` for loads that are not counted in these.
    fn count(self, result: f64) -> Option<f64> {
        match self {
            Self::Requests(_) | Self::Connections(_) => Some(result * f64::from(SECONDS)),
            Self::Bulk(_) | Self::Latency => None,
        }
    }

    fn better(self) -> BetterDirection {
        match self {
            Self::Latency => BetterDirection::Lower,
            _ => BetterDirection::Higher,
        }
    }

    fn measure(self, path: &TrafficPath<'_>) -> Result<f64> {
        let http = |connections, keep_alive| {
            let command = load::wrk(connections, SECONDS, keep_alive, &path.http);
            let load = load::parse_wrk(&path.lab.exec(&path.client, &command)?)?;
            anyhow::ensure!(load.errors == 0, "{} errors on {}", load.errors, path.name);
            Ok(load)
        };
        match self {
            Self::Bulk(streams) => {
                let (host, port) = &path.bulk;
                let mut command = load::iperf3(host, streams, SECONDS);
                command.extend(["-p".to_owned(), port.to_string()]);
                let output = path.lab.exec(&path.client, &command)?;
                Ok(load::parse_iperf3(&output)?.gigabits_per_second)
            }
            Self::Requests(connections) => Ok(http(connections, true)?.requests_per_second),
            Self::Connections(at_once) => Ok(http(at_once, false)?.requests_per_second),
            Self::Latency => {
                let median = http(1, true)?.median.context("wrk printed no median")?;
                Ok(median.as_secs_f64() * 1e6)
            }
        }
    }
}

impl PathRow {
    /// Returns the results of all paths with a mesh or relays, for the comparison of revisions.
    pub(crate) fn figures(&self) -> impl Iterator<Item = BenchmarkFigure> {
        let baseline = self.baseline();
        self.results.iter().skip(1).map(move |(path, value)| {
            let ratio = value / baseline;
            BenchmarkFigure {
                what: format!("{}, {}, {path}", self.load.name(), self.place),
                unit: self.load.unit(),
                value: *value,
                score: match self.load.better() {
                    BetterDirection::Higher => ratio,
                    BetterDirection::Lower => 1.0 / ratio,
                },
            }
        })
    }

    fn baseline(&self) -> f64 {
        self.results.first().map_or(f64::NAN, |(_, value)| *value)
    }

    fn cells(&self) -> Vec<String> {
        let baseline = self.baseline();
        let of_paths = self
            .results
            .iter()
            .skip(1)
            .map(|(_, value)| *value)
            .chain([self.kernel_alone])
            .map(|value| match self.load {
                PathLoad::Latency => format!("+{:.0} us", value - baseline),
                _ => format!("{:.2}", value / baseline),
            });
        let first = format!("{baseline:.*} {}", self.decimals(), self.load.unit());
        let proxy_time = self
            .proxy_time
            .map_or_else(String::new, |time| format!("{time:.0} us"));
        [self.load.name(), self.place.to_owned(), first]
            .into_iter()
            .chain(of_paths)
            .chain([proxy_time])
            .collect()
    }

    fn decimals(&self) -> usize {
        match self.load {
            PathLoad::Bulk(_) => 1,
            _ => 0,
        }
    }
}

/// Prints the rows as a table, the result without a mesh and the ratios of the other paths to it, and the time to wake a
/// thread.
#[expect(clippy::print_stdout, reason = "the report is what the program is for")]
pub(crate) fn print(rows: &[PathRow], wake_ups: WakeUps) {
    let mut table = Table::new();
    let paths = rows.first().map(|row| &*row.results).unwrap_or_default();
    let header = ["", ""]
        .into_iter()
        .chain(paths.iter().map(|(path, _)| *path))
        .chain(["kernel alone", "CPU of proxies"]);
    table
        .load_style(comfy_table::presets::ASCII_MARKDOWN)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    for row in rows {
        table.add_row(row.cells());
    }
    println!("{table}");
    println!(
        "\nWaking a thread takes {:.1} us on another processor, {:.1} us on the same one.",
        wake_ups.other_processor, wake_ups.same_processor
    );
}

/// Measures wake-ups, and runs all loads on all paths.
pub(crate) fn run() -> Result<(Vec<PathRow>, WakeUps)> {
    let wake_ups = wake_ups::measure()?;
    let scratch = tempfile::tempdir()?;
    let mut labs = Vec::new();
    for (index, (backend, _)) in BACKENDS.into_iter().enumerate() {
        labs.push(start_lab(backend, index == 0, scratch.path())?);
    }
    let mut rows = Vec::new();
    for (index, (pod, _, place)) in (0..).zip(PLACES) {
        let paths = paths(&labs, pod, client_relay_port(index))?;
        for path in &paths {
            // Certificates and pools exist before the measurement.
            PathLoad::Requests(4).measure(path)?;
        }
        for load in LOADS {
            rows.push(compare(load, place, &paths)?);
        }
    }
    Ok((rows, wake_ups))
}

/// Measures a load on all paths alternately.
fn compare(load: PathLoad, place: &'static str, paths: &[TrafficPath<'_>]) -> Result<PathRow> {
    let mut values = vec![Vec::new(); paths.len()];
    let (mut estimates, mut times) = (Vec::new(), Vec::new());
    for _ in 0..figure::configured_rounds(ROUNDS)? {
        let mut of_last_path = None;
        for (path, values) in paths.iter().zip(&mut values) {
            let measurement = measure(load, path)?;
            values.push(measurement.result);
            of_last_path = Some(measurement);
        }
        // The last path is the mesh with BPF programs.
        let last = of_last_path.context("there is a path")?;
        estimates.push(last.kernel_alone);
        times.extend(last.proxy_time);
    }
    let names = paths.iter().map(|path| path.name);
    let median = |values| figure::median(values).unwrap_or(f64::NAN);
    let row = PathRow {
        load,
        place,
        results: names.zip(values.into_iter().map(median)).collect(),
        kernel_alone: median(estimates),
        proxy_time: figure::median(times),
    };
    eprintln!("  {}", row.cells().join(", "));
    Ok(row)
}

/// Measures a load on a path, and the CPU time of its proxies meanwhile.
fn measure(load: PathLoad, path: &TrafficPath<'_>) -> Result<Measurement> {
    let processors = f64::from(u32::try_from(thread::available_parallelism()?.get())?);
    let proxies = path.lab.pids("proxy")?;
    let start = Instant::now();
    let (user_before, before) = (process::user_time(&proxies)?, process::cpu_time(&proxies)?);
    let result = load.measure(path)?;
    let user = process::user_time(&proxies)? - user_before;
    let spent = process::cpu_time(&proxies)? - before;
    let user = user.as_secs_f64() / start.elapsed().as_secs_f64();
    Ok(Measurement {
        result,
        kernel_alone: load.without_user_time(result, user, processors),
        proxy_time: load
            .count(result)
            .map(|count| spent.as_secs_f64() * 1e6 / count),
    })
}

/// Starts a lab of two nodes with a redirection backend. The one `with_baselines` has pods outside of the mesh too.
fn start_lab(backend: &str, with_baselines: bool, scratch: &Path) -> Result<BenchLab> {
    let mut manifests = pods("mesh", "ambient", &scratch.join(backend))?;
    manifests += &client("mesh", &[]);
    if with_baselines {
        manifests += &(pods("plain", "none", scratch)? + &client("plain", &[]));
        manifests += &pods("relay", "none", scratch)?;
    }
    let nodes = BenchNodes {
        count: 2,
        backend: Some(backend.to_owned()),
    };
    let lab = BenchLab::up_on(nodes, &[("pods.yaml".into(), manifests)])?;
    if with_baselines {
        // The client's relays are started when the servers' addresses are known.
        let relays = client_relays(&lab)?;
        lab.apply("relays.yaml", &client("relay", &relays))?;
        lab.wait_until("the client of the relays is ready", |status| {
            let mut pods = status.pods.iter();
            pods.any(|pod| pod.namespace == "relay" && pod.name == "client" && pod.ready)
        })?;
    }
    lab.wait_until("the mesh's pods captured", |status| {
        let mut pods = status.pods.iter();
        pods.all(|pod| pod.captured == (pod.namespace == "mesh"))
    })?;
    Ok(lab)
}

/// Returns the manifests of a namespace and its servers.
fn pods(namespace: &str, mode: &str, directory: &Path) -> Result<String> {
    std::fs::create_dir_all(directory)?;
    let mut text = format!(
        "apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}, labels: {{istio.io/dataplane-mode: {mode}}}}}
---
"
    );
    for (pod, node, _) in PLACES {
        let nginx = nginx_configuration(directory, &format!("{namespace}-{pod}"))?;
        let relays = [(RELAY_PORT, HTTP_PORT), (RELAY_PORT + 1, BULK_PORT)]
            .map(|(listen, target)| format!("0.0.0.0:{listen}=127.0.0.1:{target}"));
        let relays = if namespace == "relay" {
            &relays[..]
        } else {
            &[]
        };
        text += &format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {pod}, namespace: {namespace}}}
spec:
  nodeName: {node}
  serviceAccountName: server
  containers:
  - name: web
    image: none
    command: [nginx, -c, {nginx}]
    readinessProbe: {{tcpSocket: {{port: {HTTP_PORT}}}}}
  - {{name: bulk, image: none, command: [iperf3, -s]}}
{}---
",
            relay_container(relays)
        );
    }
    Ok(text)
}

/// Returns the manifest of a namespace's client, with these relays.
fn client(namespace: &str, relays: &[String]) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: client, namespace: {namespace}}}
spec:
  nodeName: node-1
  serviceAccountName: client
  containers:
  - {{name: main, image: none, command: [sleep, infinity]}}
{}---
",
        relay_container(relays)
    )
}

/// Returns a container that runs relays, if there are any.
fn relay_container(relays: &[String]) -> String {
    match relays {
        [] => String::new(),
        relays => format!(
            "  - {{name: relay, image: none, command: [ambit-bench, relay, \"{}\"]}}\n",
            relays.join("\", \"")
        ),
    }
}

/// Returns the relays of the client: two ports for each place, for requests and for throughput.
fn client_relays(lab: &BenchLab) -> Result<Vec<String>> {
    let mut relays = Vec::new();
    for (index, (pod, ..)) in (0..).zip(PLACES) {
        let server = lab.address("relay", pod)?;
        for port in [0, 1] {
            let listen = client_relay_port(index) + port;
            relays.push(format!("127.0.0.1:{listen}={server}:{}", RELAY_PORT + port));
        }
    }
    Ok(relays)
}

/// Returns the port of the client's relay for requests to a place; the next one is for throughput.
fn client_relay_port(place: u16) -> u16 {
    RELAY_PORT + 10 * (place + 1)
}

/// Returns the paths from the clients to the servers of this name. `relay_port` is the port of the client's relay.
fn paths<'a>(labs: &'a [BenchLab], pod: &str, relay_port: u16) -> Result<Vec<TrafficPath<'a>>> {
    let baselines = labs.first().context("there is a lab")?;
    let direct = |name, lab: &'a BenchLab, namespace: &str| -> Result<TrafficPath<'a>> {
        let server = lab.address(namespace, pod)?;
        Ok(TrafficPath {
            name,
            lab,
            client: format!("{namespace}/client"),
            http: format!("http://{server}:{HTTP_PORT}/"),
            bulk: (server, BULK_PORT),
        })
    };
    let relay = TrafficPath {
        name: "two relays",
        lab: baselines,
        client: "relay/client".to_owned(),
        http: format!("http://127.0.0.1:{relay_port}/"),
        bulk: ("127.0.0.1".to_owned(), relay_port + 1),
    };
    let mut paths = vec![direct("no mesh", baselines, "plain")?, relay];
    for ((_, name), lab) in BACKENDS.into_iter().zip(labs) {
        paths.push(direct(name, lab, "mesh")?);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_proxies_is_subtracted() {
        let connections = PathLoad::Connections(16).without_user_time(3000.0, 0.5, 2.0);
        assert!((connections - 4000.0).abs() < 1e-9);
        let latency = PathLoad::Latency.without_user_time(100.0, 0.25, 2.0);
        assert!((latency - 75.0).abs() < 1e-9);
    }

    #[test]
    fn rows_are_ratios_to_the_path_without_a_mesh() {
        let row = |load, results| PathRow {
            load,
            place: "one node",
            results,
            kernel_alone: 120.0,
            proxy_time: load.count(200.0).map(|count| 30_000.0 / count),
        };
        let requests = row(
            PathLoad::Requests(32),
            vec![("no mesh", 200.0), ("two relays", 100.0)],
        );
        let cells = requests.cells();
        assert_eq!(cells[2..], ["200 req/s", "0.50", "0.60", "30 us"]);
        let latency = row(
            PathLoad::Latency,
            vec![("no mesh", 20.0), ("two relays", 80.0)],
        );
        assert_eq!(latency.cells()[2..], ["20 us", "+60 us", "+100 us", ""]);
        let figure = latency.figures().next().unwrap();
        assert!((figure.score - 0.25).abs() < 1e-9, "smaller is better");
        assert_eq!(
            figure.what,
            "median latency, 1 connection, one node, two relays"
        );
    }
}
