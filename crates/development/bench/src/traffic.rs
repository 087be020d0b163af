//! Benchmarks of throughput, latency, connections and CPU time: one pair of pods in the mesh, one outside, on one node.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::{
    figure,
    load::{self, BulkLoad, HttpLoad},
    process,
    report::{BetterDirection, ReportLine},
    rig::{BenchLab, nginx_configuration},
};

/// Duration of each measurement in seconds.
const SECONDS: u32 = 5;
/// Number of rounds, measured alternately without and with the mesh, whose median is reported. Results of few
/// connections vary by half with the kernel's placement of their threads: three rounds were not enough.
const ROUNDS: usize = 5;

/// Returns the manifests of both pairs of pods.
fn manifests(directory: &std::path::Path) -> Result<String> {
    let mut text = String::new();
    for (namespace, mode) in [("plain", "none"), ("mesh", "ambient")] {
        let nginx = nginx_configuration(directory, namespace)?;
        text += &format!(
            "apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}, labels: {{istio.io/dataplane-mode: {mode}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: client, namespace: {namespace}}}
spec:
  serviceAccountName: client
  containers: [{{name: main, image: none, command: [sleep, infinity]}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: server, namespace: {namespace}}}
spec:
  serviceAccountName: server
  containers:
  - name: web
    image: none
    command: [nginx, -c, {nginx}]
    readinessProbe: {{tcpSocket: {{port: 8080}}}}
  - {{name: iperf, image: none, command: [iperf3, -s]}}
---
"
        );
    }
    Ok(text)
}

/// Pair of pods that is measured, in the mesh or outside.
struct TrafficSide<'a> {
    rig: &'a BenchLab,
    namespace: &'static str,
    server: String,
}

impl TrafficSide<'_> {
    fn http(&self, connections: u32, keep_alive: bool) -> Result<HttpLoad> {
        let url = format!("http://{}:8080/", self.server);
        let command = load::wrk(connections, SECONDS, keep_alive, &url);
        load::parse_wrk(
            &self
                .rig
                .exec(&format!("{}/client", self.namespace), &command)?,
        )
    }

    fn bulk(&self, streams: u32) -> Result<BulkLoad> {
        let command = load::iperf3(&self.server, streams, SECONDS);
        load::parse_iperf3(
            &self
                .rig
                .exec(&format!("{}/client", self.namespace), &command)?,
        )
    }
}

/// Measures both pairs of pods alternately, and returns the medians.
fn compare(
    plain: &TrafficSide<'_>,
    mesh: &TrafficSide<'_>,
    measure: impl Fn(&TrafficSide<'_>) -> Result<f64>,
) -> Result<(f64, f64)> {
    let mut figures = (Vec::new(), Vec::new());
    for _ in 0..figure::configured_rounds(ROUNDS)? {
        figures.0.push(measure(plain)?);
        figures.1.push(measure(mesh)?);
    }
    let median = |values| figure::median(values).unwrap_or(f64::NAN);
    Ok((median(figures.0), median(figures.1)))
}

/// Runs the traffic benchmarks.
pub(crate) fn run() -> Result<Vec<ReportLine>> {
    let scratch = tempfile::tempdir()?;
    let rig = BenchLab::up(&[("rig.yaml".into(), manifests(scratch.path())?)])?;
    rig.wait_until("the mesh's pods captured", |status| {
        status
            .pods
            .iter()
            .all(|pod| pod.captured == (pod.namespace == "mesh"))
    })?;
    let plain = TrafficSide {
        rig: &rig,
        namespace: "plain",
        server: rig.address("plain", "server")?,
    };
    let mesh = TrafficSide {
        rig: &rig,
        namespace: "mesh",
        server: rig.address("mesh", "server")?,
    };
    // Certificates and pools exist before the measurement.
    mesh.http(4, true)?;

    let mut lines = Vec::new();
    let mut line = |what: &str, unit, (bare, mesh), existing, better| {
        eprintln!("  {what}: {bare:.2} bare, {mesh:.2} through the mesh ({unit})");
        let what = what.to_owned();
        lines.push(ReportLine {
            what,
            unit,
            without_mesh: Some(bare),
            with_mesh: mesh,
            istio: Some(existing),
            better,
        });
    };
    for (streams, existing) in [(1, 0.29), (4, 0.24)] {
        let figures = compare(&plain, &mesh, |side| {
            Ok(side.bulk(streams)?.gigabits_per_second)
        })?;
        line(
            &format!("throughput, {streams} streams"),
            "Gbit/s",
            figures,
            existing,
            BetterDirection::Higher,
        );
    }
    let median_of_one = compare(&plain, &mesh, |side| {
        let median = side.http(1, true)?.median;
        Ok(micros(median.context("wrk tells the median")?))
    })?;
    for (connections, existing) in [(32, 0.245), (1000, 0.245)] {
        let figures = compare(&plain, &mesh, |side| {
            Ok(side.http(connections, true)?.requests_per_second)
        })?;
        let what = format!("requests, {connections} connections");
        line(&what, "req/s", figures, existing, BetterDirection::Higher);
    }
    let figures = compare(&plain, &mesh, |side| {
        Ok(side.http(16, false)?.requests_per_second)
    })?;
    line(
        "new connections, 16 at a time",
        "conn/s",
        figures,
        0.32,
        BetterDirection::Higher,
    );
    let (bare, through) = median_of_one;
    let alone = |what: &str, unit, mesh, existing| ReportLine {
        what: what.into(),
        unit,
        without_mesh: None,
        with_mesh: mesh,
        istio: Some(existing),
        better: BetterDirection::Lower,
    };
    lines.push(alone(
        "added latency, 1 connection, median",
        "us",
        through - bare,
        100.0,
    ));
    let proxy = &rig.pids("proxy")?;
    let before = process::cpu_time(proxy)?;
    let load = mesh.http(32, true)?;
    let spent = process::cpu_time(proxy)? - before;
    lines.push(alone(
        "CPU of the proxy a request (both ends)",
        "us",
        micros(spent) / microseconds_per_request(load.requests),
        45.0,
    ));
    let before = process::cpu_time(proxy)?;
    let load = mesh.bulk(1)?;
    let spent = process::cpu_time(proxy)? - before;
    lines.push(alone(
        "CPU of the proxy a gigabyte (both ends)",
        "s",
        spent.as_secs_f64() / load.gigabytes,
        1.68,
    ));
    Ok(lines)
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a count of requests, far below 2^52"
)]
fn microseconds_per_request(count: u64) -> f64 {
    count.max(1) as f64
}
