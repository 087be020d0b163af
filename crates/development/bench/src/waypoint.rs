//! Benchmarks of waypoints: the same load through Ambit's and through an Envoy with the same configuration, between the
//! same node proxies.

mod authorizer;
mod change;
mod clusters;
mod compared_proxy;
mod envoy;
mod hashing;
mod lab;
mod manifests;
mod plugin;
mod rollout;
mod scenario;
mod servers;
mod table;
mod tokens;
mod tracing;

use std::path::Path;

use anyhow::{Result, bail, ensure};

pub(crate) use self::{authorizer::serve as serve_authorizer, envoy::run_as_waypoint};
use self::{
    lab::{Load, WaypointLab},
    scenario::{RULES_PER_SERVICE, Scenario, ScenarioStep, ServerNode},
    table::WaypointRow,
    tokens::Algorithm,
};
use crate::figure::BenchmarkFigure;

/// Function that runs one benchmark of waypoints, in its own lab.
type BenchmarkPart = fn(envoy: &Path) -> Result<Vec<WaypointRow>>;

/// Benchmarks by their names on the command line.
const BENCHMARK_PARTS: &[(&str, BenchmarkPart)] = &[
    ("loads", measure_loads),
    ("grpc", grpc),
    ("nodes", nodes),
    ("policies", policies),
    ("rules", rules),
    ("many-rules", many_rules),
    ("rollout", rollout::compare),
    ("tracing", traces),
    ("tokens", verified_tokens),
    ("authorizer", external_authorization),
    ("plugin", plugins),
    ("hashing", consistent_hashing),
];

/// Runs the named benchmarks, or all, and prints and returns their results; `envoy` is the binary to compare with.
pub(crate) fn run(envoy: &Path, only: &[String]) -> Result<Vec<BenchmarkFigure>> {
    ensure!(envoy.exists(), "there is no Envoy at {}", envoy.display());
    let known = |name: &str| BENCHMARK_PARTS.iter().any(|(part, _)| *part == name);
    if let Some(unknown) = only.iter().find(|name| !known(name)) {
        let all: Vec<&str> = BENCHMARK_PARTS.iter().map(|(name, _)| *name).collect();
        bail!("there is no part {unknown:?} but {}", all.join(", "));
    }
    let mut rows = Vec::new();
    for (name, part) in BENCHMARK_PARTS {
        if only.is_empty() || only.iter().any(|selected| selected == name) {
            rows.extend(part(envoy)?);
        }
    }
    table::print(&rows);
    Ok(rows.iter().map(WaypointRow::figure).collect())
}

fn measure_loads(envoy: &Path) -> Result<Vec<WaypointRow>> {
    let lab = WaypointLab::up(envoy, Scenario::default())?;
    let mut rows = vec![lab.memory("idle", true)?];
    for load in [
        Load::Http1(1),
        Load::Http1(32),
        Load::Http1(1000),
        Load::Http2(8),
        Load::LargeResponses(8),
    ] {
        rows.extend(lab.compare("", load)?);
    }
    rows.push(change::compare(&lab)?);
    Ok(rows)
}

fn grpc(envoy: &Path) -> Result<Vec<WaypointRow>> {
    let lab = WaypointLab::up(envoy, Scenario::default())?;
    let mut rows = lab.compare("", Load::Grpc(1))?;
    rows.extend(lab.compare("", Load::Grpc(8))?);
    Ok(rows)
}

/// Measures the latency of the path from a client to a server through a waypoint on the client's node, with the server on
/// the same node and on another one.
fn nodes(envoy: &Path) -> Result<Vec<WaypointRow>> {
    let mut rows = Vec::new();
    for (what, server_node) in [
        ("one node", ServerNode::Same),
        ("two nodes", ServerNode::Other),
    ] {
        let scenario = Scenario {
            server_node,
            has_baseline: true,
            ..Scenario::default()
        };
        let lab = WaypointLab::up(envoy, scenario)?;
        rows.push(lab.compare_added_latency(what)?);
    }
    Ok(rows)
}

fn policies(envoy: &Path) -> Result<Vec<WaypointRow>> {
    let scenario = Scenario {
        policies: 100,
        ..Scenario::default()
    };
    measure_scenario(envoy, "100 policies", scenario)
}

fn rules(envoy: &Path) -> Result<Vec<WaypointRow>> {
    let scenario = Scenario {
        rules: 100,
        ..Scenario::default()
    };
    measure_scenario(envoy, "100 rules", scenario)
}

fn many_rules(envoy: &Path) -> Result<Vec<WaypointRow>> {
    let scenario = Scenario {
        rules: RULES_PER_SERVICE,
        services: 9,
        ..Scenario::default()
    };
    measure_scenario(envoy, "10,000 rules", scenario)
}

/// Measures requests of which one in a hundred is traced, and requests that are all traced.
fn traces(envoy: &Path) -> Result<Vec<WaypointRow>> {
    let mut rows = Vec::new();
    for percentage in [1, 100] {
        let what = format!("traced {percentage} %");
        rows.extend(measure_step(envoy, &what, ScenarioStep::Trace(percentage))?);
    }
    Ok(rows)
}

/// Measures requests with a JWT, for each signature algorithm.
fn verified_tokens(envoy: &Path) -> Result<Vec<WaypointRow>> {
    let mut rows = Vec::new();
    for algorithm in [Algorithm::Rs256, Algorithm::Es256] {
        let what = format!("token by {}", algorithm.name());
        rows.extend(measure_step(envoy, &what, ScenarioStep::Token(algorithm))?);
    }
    Ok(rows)
}

fn external_authorization(envoy: &Path) -> Result<Vec<WaypointRow>> {
    measure_step(envoy, "authorizer over gRPC", ScenarioStep::Authorize)
}

fn plugins(envoy: &Path) -> Result<Vec<WaypointRow>> {
    measure_step(envoy, "plugin that touches headers", ScenarioStep::Plugin)
}

fn consistent_hashing(envoy: &Path) -> Result<Vec<WaypointRow>> {
    measure_step(envoy, "hashing over 1,000 endpoints", ScenarioStep::Hash)
}

/// Measures 32 connections whose requests need an additional processing step.
fn measure_step(envoy: &Path, what: &str, step: ScenarioStep) -> Result<Vec<WaypointRow>> {
    let scenario = Scenario {
        step: Some(step),
        ..Scenario::default()
    };
    let lab = WaypointLab::up(envoy, scenario)?;
    lab.compare(&format!("{what}, "), Load::Http1(32))
}

fn measure_scenario(envoy: &Path, what: &str, scenario: Scenario) -> Result<Vec<WaypointRow>> {
    let lab = WaypointLab::up(envoy, scenario)?;
    let mut rows = vec![lab.memory(what, true)?];
    rows.extend(lab.compare(&format!("{what}, "), Load::Http1(32))?);
    Ok(rows)
}
