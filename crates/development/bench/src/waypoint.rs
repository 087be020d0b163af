//! Waypoints: the same load through ours and through Envoy, which is configured to do the same work, between
//! the same node proxies.

mod authorizer;
mod change;
mod clusters;
mod envoy;
mod hashing;
mod manifests;
mod plugin;
mod rollout;
mod table;
mod tokens;
mod tracing;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

pub(crate) use self::{authorizer::serve as serve_authorizer, envoy::stand_in};
use self::{envoy::Files, table::Row};
use crate::{
    figure::{self, Figure},
    load::{self, HttpLoad},
    process,
    rig::{Rig, settled},
};

/// Duration of each measurement in seconds.
const SECONDS: u32 = 5;
/// Number of alternating rounds, whose median is reported.
const ROUNDS: usize = 3;
/// Number of warm-up attempts that may fail before the first measurement.
const WARM_UPS: usize = 6;
/// Number of rules of each further service.
const RULES_OF_SERVICE: usize = 1000;

/// Scenario that a waypoint is measured in.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// Policies that refuse other requests than those of the load.
    policies: usize,
    /// Rules of routes; the load is for the last of them.
    rules: usize,
    /// Further services with [`RULES_OF_SERVICE`] rules each.
    services: usize,
    /// Further step for each request.
    step: Option<Step>,
}

/// Processing of each request by a further object.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Tracing of this percentage of requests.
    Trace(u32),
    /// A token is verified, which is signed so.
    Token(tokens::Algorithm),
    /// An authorizer checks each request.
    Authorize,
    /// A plugin touches headers.
    Plugin,
    /// One of many endpoints is chosen by a header.
    Hash,
}

impl Step {
    /// The pod that the waypoints call or send to, its namespace first.
    fn callee(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Trace(_) => Some(tracing::PLACE),
            Self::Authorize => Some(authorizer::PLACE),
            Self::Hash => Some(hashing::PLACE),
            Self::Token(_) | Self::Plugin => None,
        }
    }

    /// Returns the manifests of the server's pod and objects.
    fn manifests(self, scratch: &Path) -> Result<String> {
        match self {
            Self::Trace(percentage) => tracing::manifests(percentage),
            Self::Token(_) => tokens::manifests(),
            Self::Authorize => authorizer::manifests(),
            Self::Plugin => plugin::manifests(scratch),
            Self::Hash => hashing::manifests(scratch),
        }
    }

    /// Arguments of `wrk` besides the address.
    fn arguments(self, side: Side, scratch: &Path) -> Result<Vec<String>> {
        match self {
            Self::Token(algorithm) => tokens::arguments(algorithm),
            Self::Hash => hashing::arguments(side, scratch),
            Self::Trace(_) | Self::Authorize | Self::Plugin => Ok(Vec::new()),
        }
    }
}

/// Load of requests from one client.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// HTTP/1.1 on this number of connections.
    Http1(u32),
    /// Responses of 1 MiB on this number of connections.
    Large(u32),
    /// HTTP/2 on this number of connections, with ten concurrent requests on each.
    Http2(u32),
    /// Unary gRPC calls on this number of connections, with ten concurrent calls on each.
    Grpc(u32),
}

/// Result of a load, and the waypoint's processor time a request.
#[derive(Clone, Copy, Debug)]
struct Figures {
    requests_per_second: f64,
    median: Option<Duration>,
    p99: Option<Duration>,
    /// Processor time, in seconds.
    cpu: f64,
}

/// One of the two compared systems, with its own pods and namespace.
#[derive(Clone, Copy, Debug)]
struct Side {
    /// Name of the namespace and the Gateway.
    name: &'static str,
    /// Program name of the processes.
    program: &'static str,
    /// Address of the service.
    address: &'static str,
}

impl Side {
    /// The file of its Gateway.
    fn gateway(self) -> String {
        format!("gateway-{}.yaml", self.name)
    }
}

const OURS: Side = Side {
    name: "ours",
    program: "ambit-waypoint",
    address: "10.97.0.1",
};
const ENVOY: Side = Side {
    name: "envoy",
    program: "envoy",
    address: "10.97.0.2",
};

/// Benchmark that has its own lab.
type Part = fn(envoy: &Path) -> Result<Vec<Row>>;

/// Benchmark parts by their command-line names.
const PARTS: &[(&str, Part)] = &[
    ("loads", loads),
    ("grpc", grpc),
    ("policies", policies),
    ("rules", rules),
    ("many-rules", many_rules),
    ("rollout", rollout::compare),
    ("tracing", tracing::rows),
    ("tokens", tokens::rows),
    ("authorizer", authorizer::rows),
    ("plugin", plugin::rows),
    ("hashing", hashing::rows),
];

/// Measures these parts, all if none is named, and prints and returns the figures; `envoy` is the program to compare
/// with.
pub(crate) fn run(envoy: &Path, only: &[String]) -> Result<Vec<Figure>> {
    ensure!(envoy.exists(), "there is no Envoy at {}", envoy.display());
    let known = |name: &str| PARTS.iter().any(|(part, _)| *part == name);
    if let Some(unknown) = only.iter().find(|name| !known(name)) {
        let all: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
        bail!("there is no part {unknown:?} but {}", all.join(", "));
    }
    let mut rows = Vec::new();
    for (name, part) in PARTS {
        if only.is_empty() || only.iter().any(|selected| selected == name) {
            rows.extend(part(envoy)?);
        }
    }
    table::print(&rows);
    Ok(rows.iter().map(Row::figure).collect())
}

fn loads(envoy: &Path) -> Result<Vec<Row>> {
    let bench = Bench::up(envoy, Work::default())?;
    let mut rows = vec![bench.memory("idle", true)?];
    for load in [
        Load::Http1(1),
        Load::Http1(32),
        Load::Http1(1000),
        Load::Http2(8),
        Load::Large(8),
    ] {
        rows.extend(bench.compare("", load)?);
    }
    rows.push(change::compare(&bench)?);
    Ok(rows)
}

fn grpc(envoy: &Path) -> Result<Vec<Row>> {
    let bench = Bench::up(envoy, Work::default())?;
    let mut rows = bench.compare("", Load::Grpc(1))?;
    rows.extend(bench.compare("", Load::Grpc(8))?);
    Ok(rows)
}

fn policies(envoy: &Path) -> Result<Vec<Row>> {
    let work = Work {
        policies: 100,
        ..Work::default()
    };
    with_work(envoy, "100 policies", work)
}

fn rules(envoy: &Path) -> Result<Vec<Row>> {
    let work = Work {
        rules: 100,
        ..Work::default()
    };
    with_work(envoy, "100 rules", work)
}

fn many_rules(envoy: &Path) -> Result<Vec<Row>> {
    let work = Work {
        rules: RULES_OF_SERVICE,
        services: 9,
        ..Work::default()
    };
    with_work(envoy, "10,000 rules", work)
}

/// The load of 32 connections with a step for each request.
fn with_step(envoy: &Path, what: &str, step: Step) -> Result<Vec<Row>> {
    let work = Work {
        step: Some(step),
        ..Work::default()
    };
    let bench = Bench::up(envoy, work)?;
    bench.compare(&format!("{what}, "), Load::Http1(32))
}

fn with_work(envoy: &Path, what: &str, work: Work) -> Result<Vec<Row>> {
    let bench = Bench::up(envoy, work)?;
    let mut rows = vec![bench.memory(what, true)?];
    rows.extend(bench.compare(&format!("{what}, "), Load::Http1(32))?);
    Ok(rows)
}

/// A lab with both waypoints.
struct Bench {
    rig: Rig,
    work: Work,
    envoy: Files,
    scratch: tempfile::TempDir,
}

impl Bench {
    fn up(envoy: &Path, work: Work) -> Result<Self> {
        let scratch = tempfile::tempdir()?;
        let programs = programs(scratch.path(), envoy)?;
        let mut files = vec![(
            "rig.yaml".to_owned(),
            manifests::of(scratch.path(), &programs, work)?,
        )];
        for side in [OURS, ENVOY] {
            files.push((side.gateway(), manifests::gateway(side, 0)));
        }
        let rig = Rig::start(&programs, &files)?;
        rig.until("the servers ready", |status| {
            let servers = status.pods.iter().filter(|pod| pod.name == "server");
            servers.filter(|pod| pod.ready && pod.captured).count() == 2
        })?;
        let files = Files::new(scratch.path());
        let callee = work.step.and_then(Step::callee);
        let callee = callee
            .map(|(namespace, name)| rig.address(namespace, name))
            .transpose()?;
        if let (Some(Step::Hash), Some(server)) = (work.step, &callee) {
            hashing::route(&rig, server)?;
        }
        let backend = rig.address("envoy", "server")?;
        files.configure(work, &backend, callee.as_deref())?;
        rig.until("all pods ready", |status| {
            status.pods.iter().all(|pod| pod.ready)
        })?;
        let bench = Self {
            rig,
            work,
            envoy: files,
            scratch,
        };
        for side in [OURS, ENVOY] {
            bench.warm_up(side)?;
        }
        Ok(bench)
    }

    /// Sends requests until none fails: connections are refused, or lead nowhere, until the node proxy has heard of
    /// the waypoint.
    fn warm_up(&self, side: Side) -> Result<()> {
        for _ in 0..WARM_UPS {
            let sent = self.send(side, Load::Http1(4), SECONDS)?;
            if sent.errors == 0 && sent.requests > 0 {
                return Ok(());
            }
        }
        bail!("requests through {side:?} fail after {WARM_UPS} times {SECONDS} s")
    }

    fn pids(&self, side: Side) -> Result<Vec<u32>> {
        process::with_variable(side.program, &format!("GATEWAY_NAME={}", side.name))
    }

    /// Measures both waypoints, alternately.
    fn compare(&self, what: &str, load: Load) -> Result<Vec<Row>> {
        let (mut ours, mut envoy) = (Vec::new(), Vec::new());
        for _ in 0..figure::rounds(ROUNDS)? {
            ours.push(self.measure(OURS, load)?);
            envoy.push(self.measure(ENVOY, load)?);
        }
        let mut rows = Row::of(&format!("{what}{load}"), &ours, &envoy);
        if matches!(load, Load::Http1(1000)) {
            rows.push(self.memory(&load.to_string(), false)?);
        }
        Ok(rows)
    }

    /// Compares the memory of both; when idle, after it is stable.
    fn memory(&self, what: &str, is_idle: bool) -> Result<Row> {
        let resident = |side| {
            let now = || process::resident_mb(&self.pids(side)?);
            if is_idle { settled(now) } else { now() }
        };
        Ok(Row::memory(what, resident(OURS)?, resident(ENVOY)?))
    }

    fn measure(&self, side: Side, load: Load) -> Result<Figures> {
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
        Ok(Figures {
            requests_per_second,
            median,
            p99,
            cpu,
        })
    }

    /// Sends load for this number of seconds.
    fn send(&self, side: Side, load: Load, seconds: u32) -> Result<HttpLoad> {
        let client = format!("{}/client", side.name);
        let log = self.scratch.path().join("requests.log");
        let path = match (load, self.work.rules) {
            (Load::Large(_), _) => "large".to_owned(),
            (_, 0) => String::new(),
            (_, rules) => format!("route/{}/x", rules - 1),
        };
        let command = match load {
            Load::Http1(connections) | Load::Large(connections) => {
                let url = match self.work.step {
                    Some(Step::Hash) => hashing::url(side),
                    _ => format!("http://server.{}/{path}", side.name),
                };
                let mut command = load::wrk(connections, seconds, true, &url);
                if let Some(step) = self.work.step {
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
                load::parse_h2load(&output)?.with_times(&fs::read_to_string(&log)?)?
            }
            Load::Http1(_) | Load::Large(_) => load::parse_wrk(&output)?,
        };
        Ok(sent)
    }
}

/// A directory of programs in which the waypoint's is ours or Envoy by the name of the Gateway.
fn programs(scratch: &Path, envoy: &Path) -> Result<PathBuf> {
    let bench = std::env::current_exe()?;
    let built = bench.parent().context("a program is in a directory")?;
    let directory = scratch.join("bin");
    fs::create_dir(&directory)?;
    for entry in fs::read_dir(built)? {
        let entry = entry?;
        if entry.file_name() != OURS.program {
            symlink(entry.path(), directory.join(entry.file_name()))?;
        }
    }
    let script = format!(
        "#!/bin/sh\n[ \"$GATEWAY_NAME\" = {} ] && exec {} envoy-as-waypoint {} {}\nexec {} \"$@\"\n",
        ENVOY.name,
        bench.display(),
        envoy.display(),
        scratch.display(),
        built.join(OURS.program).display(),
    );
    let path = directory.join(OURS.program);
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(directory)
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Http1(connections) => write!(f, "HTTP/1.1, {connections} connections"),
            Self::Http2(connections) => {
                write!(f, "HTTP/2, {connections} connections of 10 requests")
            }
            Self::Grpc(connections) => {
                write!(f, "gRPC, {connections} connections of 10 calls")
            }
            Self::Large(connections) => write!(f, "1 MiB answers, {connections} connections"),
        }
    }
}
