//! Benchmark of the time from a changed route to the first response that shows the change.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{
    compared_proxy::{AMBIT_WAYPOINT, ComparedProxy, ENVOY_WAYPOINT},
    lab::WaypointLab,
    manifests,
    table::WaypointRow,
};

/// Number of changes on each side, whose median is reported.
const CHANGES: usize = 20;
/// Timeout until a change shows in a response.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measures the time until a route change takes effect, at Ambit's waypoint and then at Envoy. For Ambit, a change
/// starts with a manifest and passes through the control plane; Envoy reads its routes from the changed file.
pub(super) fn compare(lab: &WaypointLab) -> Result<WaypointRow> {
    let (mut ours, mut envoy) = (
        PollingClient::connect(lab, AMBIT_WAYPOINT)?,
        PollingClient::connect(lab, ENVOY_WAYPOINT)?,
    );
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    for mark in 1..=CHANGES {
        let began = Instant::now();
        lab.rig.apply(
            "marking.yaml",
            &manifests::marking_route(AMBIT_WAYPOINT, mark),
        )?;
        our_times.push(ours.wait_for_mark(mark, began)?);
        let began = Instant::now();
        lab.envoy.write_routes(lab.scenario, Some(mark))?;
        their_times.push(envoy.wait_for_mark(mark, began)?);
    }
    Ok(WaypointRow::change(our_times, their_times))
}

/// Client that sends requests repeatedly over one connection.
struct PollingClient {
    stream: BufReader<TcpStream>,
}

impl PollingClient {
    fn connect(lab: &WaypointLab, side: ComparedProxy) -> Result<Self> {
        let client = format!("{}/client", side.name);
        let stream = lab.rig.dial(&client, &format!("{}:80", side.address))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Returns the milliseconds since `began` until a response has the header value `mark`.
    fn wait_for_mark(&mut self, mark: usize, began: Instant) -> Result<f64> {
        let expected = mark.to_string();
        loop {
            if self.poll_route()?.as_deref() == Some(expected.as_str()) {
                return Ok(began.elapsed().as_secs_f64() * 1e3);
            }
            ensure!(
                began.elapsed() < TIMEOUT,
                "a changed route has no effect after {TIMEOUT:?}"
            );
        }
    }

    /// Sends a request and returns the marking header of the response.
    fn poll_route(&mut self) -> Result<Option<String>> {
        let request = b"GET / HTTP/1.1\r\nHost: server\r\n\r\n";
        self.stream.get_mut().write_all(request)?;
        let (mut mark, mut length) = (None, None);
        loop {
            let mut line = String::new();
            ensure!(
                self.stream.read_line(&mut line)? > 0,
                "the connection was closed"
            );
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("x-mark:") {
                mark = Some(value.trim().to_owned());
            } else if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok();
            }
        }
        let length: u64 = length.context("an answer without a length")?;
        let read = std::io::copy(&mut self.stream.by_ref().take(length), &mut std::io::sink())?;
        ensure!(read == length, "an answer was cut off");
        Ok(mark)
    }
}
