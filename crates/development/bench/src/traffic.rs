//! Benchmarks of throughput, latency, connections and CPU time: without a mesh, through two plain TCP relays, through
//! Ambit and, if its program is given, through another node proxy. All alternate in one run, on one node and on two.

mod side;

use anyhow::{Context, Result};

use self::side::{Lab, Placement, Side, Sides};
use crate::{
    figure,
    load::{self, HttpLoad},
    process,
    report::{BetterDirection, ReportLine},
};

/// Duration of each measurement in seconds.
const SECONDS: u32 = 5;
/// Number of rounds, measured alternately for all sides, whose median is reported. Results of few connections vary by
/// half with the kernel's placement of their threads: three rounds were not enough.
const ROUNDS: usize = 5;

/// Kind of traffic that the benchmark generates and measures.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// Bytes in one direction, on this number of connections.
    Bulk { streams: u32, reverse: bool },
    /// Small HTTP/1.1 requests on connections that stay open, or on a new one each.
    Http { connections: u32, keep_alive: bool },
}

/// Result of one load, on one side.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Gbit/s, or requests or connections a second.
    rate: f64,
    /// Median latency in microseconds; zero for bulk loads.
    latency: f64,
    /// CPU time of the node proxies in microseconds for a request or connection, in seconds for a gigabyte; zero
    /// without node proxies.
    cpu: f64,
}

/// Medians of one load on all sides.
struct Compared {
    plain: Sample,
    relay: Sample,
    mesh: Sample,
    existing: Option<Sample>,
}

impl Load {
    fn run(self, side: &Side<'_>) -> Result<Sample> {
        let before = process::cpu_time(&side.proxies)?;
        let (rate, latency, units) = match self {
            Self::Bulk { streams, reverse } => {
                let command = load::iperf3(&side.iperf, streams, SECONDS, reverse);
                let bulk = load::parse_iperf3(&side.exec(&command)?)?;
                (bulk.gigabits_per_second, 0.0, bulk.gigabytes)
            }
            Self::Http {
                connections,
                keep_alive,
            } => {
                let command = load::wrk(connections, SECONDS, keep_alive, &side.url);
                let HttpLoad {
                    requests_per_second,
                    median,
                    requests,
                    ..
                } = load::parse_wrk(&side.exec(&command)?)?;
                let median = median.context("wrk reported no median")?;
                let requests = to_float(requests) / 1e6;
                (requests_per_second, median.as_secs_f64() * 1e6, requests)
            }
        };
        let spent = process::cpu_time(&side.proxies)? - before;
        let cpu = spent.as_secs_f64() / units;
        Ok(Sample { rate, latency, cpu })
    }

    /// Measures all sides alternately, and returns the medians.
    fn compare(self, sides: &Sides<'_>) -> Result<Compared> {
        let mut samples = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..figure::configured_rounds(ROUNDS)? {
            samples.0.push(self.run(&sides.plain)?);
            samples.1.push(self.run(&sides.relay)?);
            samples.2.push(self.run(&sides.mesh)?);
            if let Some(existing) = &sides.existing {
                samples.3.push(self.run(existing)?);
            }
        }
        Ok(Compared {
            plain: median(&samples.0),
            relay: median(&samples.1),
            mesh: median(&samples.2),
            existing: (!samples.3.is_empty()).then(|| median(&samples.3)),
        })
    }
}

/// Returns the median of each value by itself.
fn median(samples: &[Sample]) -> Sample {
    let of = |value: fn(&Sample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    Sample {
        rate: of(|sample| sample.rate),
        latency: of(|sample| sample.latency),
        cpu: of(|sample| sample.cpu),
    }
}

/// Runs the traffic benchmarks.
///
/// # Errors
/// When the lab does not start, or a load generator fails.
pub(crate) fn run() -> Result<Vec<ReportLine>> {
    let lab = Lab::up()?;
    let mut lines = Vec::new();
    for placement in [Placement::OneNode, Placement::TwoNodes] {
        let sides = lab.sides(placement)?;
        // Certificates and pools exist before the measurement.
        let warm_up = Load::Http {
            connections: 4,
            keep_alive: true,
        };
        warm_up.run(&sides.mesh)?;
        measure(placement, &sides, &mut lines)?;
    }
    Ok(lines)
}

fn measure(placement: Placement, sides: &Sides<'_>, lines: &mut Vec<ReportLine>) -> Result<()> {
    let name = placement.name();
    for (streams, reverse, existing) in [
        (1, false, placement.of(0.225, 0.269)),
        (4, false, placement.of(0.214, 0.291)),
        (1, true, placement.of(0.335, 0.426)),
    ] {
        let direction = if reverse { ", server to client" } else { "" };
        let what = format!("{name}: throughput, {streams} streams{direction}");
        let compared = Load::Bulk { streams, reverse }.compare(sides)?;
        lines.push(rate(&what, "Gbit/s", &compared, existing));
        if (streams, reverse) == (1, false) {
            let what = format!("{name}: CPU of the proxies a gigabyte");
            lines.push(cpu(&what, "s", &compared, None));
        }
    }
    let requests = |connections| Load::Http {
        connections,
        keep_alive: true,
    };
    let compared = requests(1).compare(sides)?;
    let what = format!("{name}: added latency, 1 connection, median");
    let existing = placement.of(112.0, 125.0);
    lines.push(added_latency(&what, &compared, existing));
    let what = format!("{name}: CPU of the proxies a request, 1 connection");
    lines.push(cpu(&what, "us", &compared, Some(placement.of(92.0, 139.0))));

    let compared = requests(32).compare(sides)?;
    let what = format!("{name}: requests, 32 connections");
    let existing = placement.of(0.324, 0.302);
    lines.push(rate(&what, "req/s", &compared, existing));
    let what = format!("{name}: CPU of the proxies a request, 32 connections");
    lines.push(cpu(&what, "us", &compared, Some(placement.of(47.0, 57.0))));

    let connections = Load::Http {
        connections: 16,
        keep_alive: false,
    };
    let compared = connections.compare(sides)?;
    let what = format!("{name}: new connections, 16 at a time");
    let existing = placement.of(0.348, 0.381);
    lines.push(rate(&what, "conn/s", &compared, existing));
    let what = format!("{name}: CPU of the proxies a new connection");
    let existing = Some(placement.of(283.0, 333.0));
    lines.push(cpu(&what, "us", &compared, existing));
    Ok(())
}

/// Builds the line of a rate, whose ratios are to the rate without a mesh.
fn rate(what: &str, unit: &'static str, compared: &Compared, existing: f64) -> ReportLine {
    let bare = compared.plain.rate;
    let measured = compared.existing.map(|existing| existing.rate / bare);
    print(ReportLine {
        what: what.to_owned(),
        unit,
        bare: Some(bare),
        mesh: compared.mesh.rate,
        relay: Some(compared.relay.rate / bare),
        existing: Some(measured.unwrap_or(existing)),
        better: BetterDirection::Higher,
    })
}

fn added_latency(what: &str, compared: &Compared, existing: f64) -> ReportLine {
    let added = |sample: Sample| sample.latency - compared.plain.latency;
    print(ReportLine {
        what: what.to_owned(),
        unit: "us",
        bare: None,
        mesh: added(compared.mesh),
        relay: Some(added(compared.relay)),
        existing: Some(compared.existing.map_or(existing, added)),
        better: BetterDirection::Lower,
    })
}

fn cpu(what: &str, unit: &'static str, compared: &Compared, existing: Option<f64>) -> ReportLine {
    print(ReportLine {
        what: what.to_owned(),
        unit,
        bare: None,
        mesh: compared.mesh.cpu,
        relay: None,
        existing: compared.existing.map(|sample| sample.cpu).or(existing),
        better: BetterDirection::Lower,
    })
}

fn print(line: ReportLine) -> ReportLine {
    let (what, unit) = (&line.what, line.unit);
    match line.bare {
        Some(bare) => eprintln!(
            "  {what}: {bare:.2} bare, {:.2} through the mesh ({unit})",
            line.mesh
        ),
        None => eprintln!("  {what}: {:.2} {unit}", line.mesh),
    }
    line
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a count of requests, far below 2^52"
)]
fn to_float(count: u64) -> f64 {
    count.max(1) as f64
}
