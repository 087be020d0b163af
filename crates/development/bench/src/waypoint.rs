//! Waypoints: the same load through ours and through Envoy, which is configured to do the same work, between
//! the same node proxies.

mod change;
mod envoy;
mod manifests;
mod table;
mod tracing;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

pub(crate) use self::envoy::stand_in;
use self::{envoy::Files, table::Row};
use crate::{
    load::{self, HttpLoad},
    process,
    rig::{Rig, settled},
};

/// Duration of each measurement in seconds.
const SECONDS: u32 = 5;
/// Each figure is the median of so many, measured alternately.
const ROUNDS: usize = 3;
/// Of each of the further services.
const RULES_OF_SERVICE: usize = 1000;

/// What a waypoint has to look at.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// Policies that refuse other requests than those of the load.
    policies: usize,
    /// Rules of routes; the load is for the last of them.
    rules: usize,
    /// Further services with [`RULES_OF_SERVICE`] rules each.
    services: usize,
    /// Of a hundred requests so many are traced.
    traced: Option<u32>,
}

/// Requests from one client.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// HTTP/1.1 over so many connections.
    Http1(u32),
    /// 1 MiB answers over so many connections.
    Large(u32),
    /// HTTP/2 over so many connections, ten requests each at a time.
    Http2(u32),
}

/// What a load came to, and the processor time that the waypoint took a request.
#[derive(Clone, Copy, Debug)]
struct Figures {
    requests_per_second: f64,
    median: Option<Duration>,
    p99: Option<Duration>,
    /// Seconds.
    cpu: f64,
}

/// One of the two, with pods and a namespace of its own.
#[derive(Clone, Copy, Debug)]
struct Side {
    /// Of the namespace and of the Gateway.
    name: &'static str,
    /// Its processes'.
    program: &'static str,
    /// Of its service.
    address: &'static str,
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

/// All figures of this kind, printed; `envoy` is the program to compare with.
pub(crate) fn run(envoy: &Path) -> Result<()> {
    ensure!(envoy.exists(), "there is no Envoy at {}", envoy.display());
    let mut rows = Vec::new();
    {
        let bench = Bench::up(envoy, Work::default())?;
        rows.push(bench.memory("idle", true)?);
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
    }
    let policies = Work {
        policies: 100,
        ..Work::default()
    };
    let rules = Work {
        rules: 100,
        ..Work::default()
    };
    let many = Work {
        rules: RULES_OF_SERVICE,
        services: 9,
        ..Work::default()
    };
    for (what, work) in [
        ("100 policies", policies),
        ("100 rules", rules),
        ("10,000 rules", many),
    ] {
        let bench = Bench::up(envoy, work)?;
        rows.push(bench.memory(what, true)?);
        rows.extend(bench.compare(&format!("{what}, "), Load::Http1(32))?);
    }
    rows.extend(tracing::rows(envoy)?);
    table::print(&rows);
    Ok(())
}

/// A lab with both waypoints.
struct Bench {
    rig: Rig,
    work: Work,
    envoy: Files,
    _scratch: tempfile::TempDir,
}

impl Bench {
    fn up(envoy: &Path, work: Work) -> Result<Self> {
        let scratch = tempfile::tempdir()?;
        let programs = programs(scratch.path(), envoy)?;
        let manifests = manifests::of(scratch.path(), work)?;
        let rig = Rig::start(&programs, &[("rig.yaml".into(), manifests)])?;
        rig.until("the servers ready", |status| {
            let servers = status.pods.iter().filter(|pod| pod.name == "server");
            servers.filter(|pod| pod.ready && pod.captured).count() == 2
        })?;
        let files = Files::new(scratch.path());
        let (namespace, name) = tracing::PLACE;
        let collector = work
            .traced
            .map(|_| rig.address(namespace, name))
            .transpose()?;
        let backend = rig.address("envoy", "server")?;
        files.configure(work, &backend, collector.as_deref())?;
        rig.until("all pods ready", |status| {
            status.pods.iter().all(|pod| pod.ready)
        })?;
        let bench = Self {
            rig,
            work,
            envoy: files,
            _scratch: scratch,
        };
        for side in [OURS, ENVOY] {
            bench.measure(side, Load::Http1(4))?;
        }
        Ok(bench)
    }

    fn pids(&self, side: Side) -> Result<Vec<u32>> {
        process::with_variable(side.program, &format!("GATEWAY_NAME={}", side.name))
    }

    /// Both, alternately.
    fn compare(&self, what: &str, load: Load) -> Result<Vec<Row>> {
        let (mut ours, mut envoy) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(self.measure(OURS, load)?);
            envoy.push(self.measure(ENVOY, load)?);
        }
        let mut rows = Row::of(&format!("{what}{load}"), &ours, &envoy);
        if matches!(load, Load::Http1(1000)) {
            rows.push(self.memory(&load.to_string(), false)?);
        }
        Ok(rows)
    }

    /// Of both; when nothing goes on, once it does not change any more.
    fn memory(&self, what: &str, is_idle: bool) -> Result<Row> {
        let resident = |side| {
            let now = || process::resident_mb(&self.pids(side)?);
            if is_idle { settled(now) } else { now() }
        };
        Ok(Row::memory(what, resident(OURS)?, resident(ENVOY)?))
    }

    fn measure(&self, side: Side, load: Load) -> Result<Figures> {
        let client = format!("{}/client", side.name);
        let path = match (load, self.work.rules) {
            (Load::Large(_), _) => "large".to_owned(),
            (_, 0) => String::new(),
            (_, rules) => format!("route/{}/x", rules - 1),
        };
        let command = match load {
            Load::Http1(connections) | Load::Large(connections) => {
                let url = format!("http://server.{}/{path}", side.name);
                load::wrk(connections, SECONDS, true, &url)
            }
            Load::Http2(connections) => {
                let url = format!("http://server.{}:81/{path}", side.name);
                load::h2load(connections, SECONDS, &url)
            }
        };
        let pids = self.pids(side)?;
        let before = process::cpu_time(&pids)?;
        let said = self.rig.exec(&client, &command)?;
        let spent = process::cpu_time(&pids)? - before;
        let HttpLoad {
            requests_per_second,
            median,
            p99,
            requests,
            errors,
        } = match load {
            Load::Http2(_) => load::parse_h2load(&said)?,
            Load::Http1(_) | Load::Large(_) => load::parse_wrk(&said)?,
        };
        ensure!(
            requests > 0,
            "nothing came of {load} through {side:?}: {said}"
        );
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
            Self::Large(connections) => write!(f, "1 MiB answers, {connections} connections"),
        }
    }
}
