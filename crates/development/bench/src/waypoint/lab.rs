//! Lab with both waypoints, and the load through each.

use std::{
    fmt, fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    compared_proxy::{AMBIT_WAYPOINT, ComparedProxy, ENVOY_WAYPOINT},
    envoy::EnvoyFiles,
    hashing,
    manifests::{self, BASELINE_NAMESPACE},
    scenario::{Scenario, ScenarioStep},
    table::{LoadResult, WaypointRow},
};
use crate::{
    figure,
    load::{self, HttpLoad},
    process,
    rig::{BenchLab, BenchNodes, wait_until_settled},
};

/// Duration of each measurement in seconds.
const SECONDS: u32 = 5;

/// Number of alternating rounds, whose median is reported.
const ROUNDS: usize = 3;

/// Number of warm-up attempts that may fail before the first measurement.
const MAX_WARM_UPS: usize = 6;

/// Kind of load that one client sends through a waypoint.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// HTTP/1.1 on this number of connections.
    Http1(u32),
    /// Responses of 1 MiB on this number of connections.
    LargeResponses(u32),
    /// HTTP/2 on this number of connections, with ten concurrent requests on each.
    Http2(u32),
    /// Unary gRPC calls on this number of connections, with ten concurrent calls on each.
    Grpc(u32),
}

/// Running lab with both waypoints.
pub(super) struct WaypointLab {
    pub(super) rig: BenchLab,
    pub(super) scenario: Scenario,
    pub(super) envoy: EnvoyFiles,
    scratch: tempfile::TempDir,
}

impl WaypointLab {
    pub(super) fn up(envoy: &Path, scenario: Scenario) -> Result<Self> {
        let scratch = tempfile::tempdir()?;
        let programs = programs(scratch.path(), envoy)?;
        let mut files = vec![(
            "rig.yaml".to_owned(),
            manifests::all_manifests(scratch.path(), &programs, scenario)?,
        )];
        for side in [AMBIT_WAYPOINT, ENVOY_WAYPOINT] {
            files.push((side.gateway(), manifests::gateway(side, 0)));
        }
        let nodes = BenchNodes::of(scenario.server_node.node_count());
        let rig = BenchLab::start(nodes, &programs, &files)?;
        rig.wait_until("the servers ready", |status| {
            let servers = status.pods.iter().filter(|pod| pod.name == "server");
            servers.filter(|pod| pod.ready && pod.captured).count() == 2
        })?;
        let files = EnvoyFiles::new(scratch.path());
        let callee = scenario.step.and_then(ScenarioStep::callee);
        let callee = callee
            .map(|(namespace, name)| rig.address(namespace, name))
            .transpose()?;
        if let (Some(ScenarioStep::Hash), Some(server)) = (scenario.step, &callee) {
            hashing::route(&rig, server)?;
        }
        let backend = rig.address("envoy", "server")?;
        files.configure(scenario, &backend, callee.as_deref())?;
        rig.wait_until("all pods ready", |status| {
            status.pods.iter().all(|pod| pod.ready)
        })?;
        let lab = Self {
            rig,
            scenario,
            envoy: files,
            scratch,
        };
        for side in [AMBIT_WAYPOINT, ENVOY_WAYPOINT] {
            lab.warm_up(side)?;
        }
        Ok(lab)
    }

    /// Sends requests until none fails: connections fail until the node proxy has received the waypoint's records.
    fn warm_up(&self, side: ComparedProxy) -> Result<()> {
        for _ in 0..MAX_WARM_UPS {
            let sent = self.send(side, Load::Http1(4), SECONDS)?;
            if sent.errors == 0 && sent.requests > 0 {
                return Ok(());
            }
        }
        bail!("requests through {side:?} fail after {MAX_WARM_UPS} times {SECONDS} s")
    }

    fn pids(&self, side: ComparedProxy) -> Result<Vec<u32>> {
        process::find_by_environment(side.program, &format!("GATEWAY_NAME={}", side.name))
    }

    /// Measures the load through both waypoints, alternately.
    pub(super) fn compare(&self, what: &str, load: Load) -> Result<Vec<WaypointRow>> {
        let (mut ours, mut envoy) = (Vec::new(), Vec::new());
        for _ in 0..figure::configured_rounds(ROUNDS)? {
            ours.push(self.measure(AMBIT_WAYPOINT, load)?);
            envoy.push(self.measure(ENVOY_WAYPOINT, load)?);
        }
        let mut rows = WaypointRow::from_load_results(&format!("{what}{load}"), &ours, &envoy);
        if matches!(load, Load::Http1(1000)) {
            rows.push(self.memory(&load.to_string(), false)?);
        }
        Ok(rows)
    }

    /// Compares the resident memory of both waypoints; with `is_idle`, waits first until the memory no longer changes.
    pub(super) fn memory(&self, what: &str, is_idle: bool) -> Result<WaypointRow> {
        let resident = |side| {
            let now = || process::resident_mb(&self.pids(side)?);
            if is_idle {
                wait_until_settled(now)
            } else {
                now()
            }
        };
        Ok(WaypointRow::memory(
            what,
            resident(AMBIT_WAYPOINT)?,
            resident(ENVOY_WAYPOINT)?,
        ))
    }

    fn measure(&self, side: ComparedProxy, load: Load) -> Result<LoadResult> {
        let pids = self.pids(side)?;
        let before = process::cpu_time(&pids)?;
        let HttpLoad {
            requests_per_second,
            median,
            p99,
            requests,
            errors,
        } = self.send(side, load, SECONDS)?;
        let spent = process::cpu_time(&pids)? - before;
        ensure!(requests > 0, "nothing came of {load} through {side:?}");
        if errors > 0 {
            eprintln!("  {side:?}, {load}: {errors} of {requests} requests failed");
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "a count of requests, far below 2^52"
        )]
        let cpu = spent.as_secs_f64() / requests as f64;
        Ok(LoadResult {
            requests_per_second,
            median,
            p99,
            cpu,
        })
    }

    /// Compares the median latency that the path through each waypoint adds to the path without a mesh, on one connection,
    /// alternately.
    pub(super) fn compare_added_latency(&self, what: &str) -> Result<WaypointRow> {
        let server = self.rig.address(BASELINE_NAMESPACE, "server")?;
        let baseline = load::wrk(1, SECONDS, true, &format!("http://{server}:8080/"));
        let (mut direct, mut ours, mut envoy) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..figure::configured_rounds(ROUNDS)? {
            let output = self
                .rig
                .exec(&format!("{BASELINE_NAMESPACE}/client"), &baseline)?;
            direct.extend(load::parse_wrk(&output)?.median);
            ours.extend(self.measure(AMBIT_WAYPOINT, Load::Http1(1))?.median);
            envoy.extend(self.measure(ENVOY_WAYPOINT, Load::Http1(1))?.median);
        }
        WaypointRow::added_latency(what, direct, ours, envoy)
    }

    /// Sends the load through a waypoint for this number of seconds, and returns its result.
    pub(super) fn send(&self, side: ComparedProxy, load: Load, seconds: u32) -> Result<HttpLoad> {
        let client = format!("{}/client", side.name);
        let log = self.scratch.path().join("requests.log");
        let path = match (load, self.scenario.rules) {
            (Load::LargeResponses(_), _) => "large".to_owned(),
            (_, 0) => String::new(),
            (_, rules) => format!("route/{}/x", rules - 1),
        };
        let command = match load {
            Load::Http1(connections) | Load::LargeResponses(connections) => {
                let url = match self.scenario.step {
                    Some(ScenarioStep::Hash) => hashing::url(side),
                    _ => format!("http://server.{}/{path}", side.name),
                };
                let mut command = load::wrk(connections, seconds, true, &url);
                if let Some(step) = self.scenario.step {
                    command.extend(step.arguments(side, self.scratch.path())?);
                }
                command
            }
            Load::Http2(connections) => {
                let url = format!("http://server.{}:81/{path}", side.name);
                load::h2load(connections, seconds, &log, &url)
            }
            Load::Grpc(connections) => {
                let url = format!("http://server.{}:82{}", side.name, load::GRPC_METHOD);
                load::grpc(connections, seconds, self.scratch.path(), &log, &url)?
            }
        };
        if log.exists() {
            fs::remove_file(&log)?;
        }
        let output = self.rig.exec(&client, &command)?;
        let sent = match load {
            Load::Http2(_) | Load::Grpc(_) => {
                load::parse_h2load(&output)?.with_latencies(&fs::read_to_string(&log)?)?
            }
            Load::Http1(_) | Load::LargeResponses(_) => load::parse_wrk(&output)?,
        };
        Ok(sent)
    }
}

/// Creates a directory of programs whose waypoint program starts Ambit's waypoint or Envoy, depending on the Gateway's
/// name; returns the directory's path.
fn programs(scratch: &Path, envoy: &Path) -> Result<PathBuf> {
    let bench = std::env::current_exe()?;
    let built = bench.parent().context("a program is in a directory")?;
    let directory = scratch.join("bin");
    fs::create_dir(&directory)?;
    for entry in fs::read_dir(built)? {
        let entry = entry?;
        if entry.file_name() != AMBIT_WAYPOINT.program {
            symlink(entry.path(), directory.join(entry.file_name()))?;
        }
    }
    let script = format!(
        "#!/bin/sh\n[ \"$GATEWAY_NAME\" = {} ] && exec {} envoy-as-waypoint {} {}\nexec {} \"$@\"\n",
        ENVOY_WAYPOINT.name,
        bench.display(),
        envoy.display(),
        scratch.display(),
        built.join(AMBIT_WAYPOINT.program).display(),
    );
    let path = directory.join(AMBIT_WAYPOINT.program);
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(directory)
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http1(connections) => write!(f, "HTTP/1.1, {connections} connections"),
            Self::Http2(connections) => {
                write!(f, "HTTP/2, {connections} connections of 10 requests")
            }
            Self::Grpc(connections) => {
                write!(f, "gRPC, {connections} connections of 10 calls")
            }
            Self::LargeResponses(connections) => {
                write!(f, "1 MiB answers, {connections} connections")
            }
        }
    }
}
