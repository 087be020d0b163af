//! Lab of release binaries for benchmarks, with its processes.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    path::Path,
    time::{Duration, Instant},
};

use ambit_lab::{Client, IpFamily, LabNetns, Options, PrimaryCni, Status};
use anyhow::{Context, Result, bail, ensure};

use crate::process;

/// Environment variable with the redirection backend of the measured pods, as the agent's `REDIRECTION_BACKEND`.
const BACKEND_VARIABLE: &str = "AMBIT_BENCH_BACKEND";

/// Nodes of a lab, and the redirection backend of its pods.
pub(crate) struct BenchNodes {
    pub(crate) count: u8,
    /// Value of the agent's `REDIRECTION_BACKEND`; `None` is the agent's default.
    pub(crate) backend: Option<String>,
}

impl BenchNodes {
    /// Returns this number of nodes with the backend that [`BACKEND_VARIABLE`] names.
    pub(crate) fn of(count: u8) -> Self {
        Self {
            count,
            backend: std::env::var(BACKEND_VARIABLE).ok(),
        }
    }
}

/// Running lab, with the directory of manifests that it follows.
pub(crate) struct BenchLab {
    client: Client,
    manifests: tempfile::TempDir,
    base: tempfile::TempDir,
}

impl BenchLab {
    /// Starts a lab of one node and waits until its pods are ready.
    pub(crate) fn up(files: &[(String, String)]) -> Result<Self> {
        Self::up_on(BenchNodes::of(1), files)
    }

    /// Starts a lab of these nodes and waits until its pods are ready.
    pub(crate) fn up_on(nodes: BenchNodes, files: &[(String, String)]) -> Result<Self> {
        let bin_dir = std::env::current_exe()?
            .parent()
            .context("a program is in a directory")?
            .to_owned();
        let rig = Self::start(nodes, &bin_dir, files)?;
        rig.wait_until("all pods ready", |status| {
            !status.pods.is_empty() && status.pods.iter().all(|pod| pod.ready)
        })?;
        Ok(rig)
    }

    /// Starts a lab of these nodes with the programs in a directory.
    pub(crate) fn start(
        nodes: BenchNodes,
        bin_dir: &Path,
        files: &[(String, String)],
    ) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        for (name, text) in files {
            fs::write(directory.path().join(name), text)?;
        }
        let base = tempfile::tempdir()?;
        let options = Options {
            name: "bench".into(),
            manifests: directory.path().to_path_buf(),
            nodes: nodes.count,
            ip_family: IpFamily::Ipv4,
            node_proxies: BTreeMap::new(),
            ambit: bin_dir.join("ambit"),
            bin_dir: bin_dir.to_owned(),
            mesh: true,
            requires_waypoint: true,
            primary_cni: PrimaryCni::Lab,
            cni_dir: "/usr/lib/cni".into(),
            user_namespace: false,
            env: BTreeMap::from_iter(
                nodes
                    .backend
                    .map(|backend| ("REDIRECTION_BACKEND".to_owned(), backend)),
            ),
        };
        let state = ambit_lab::launch(base.path(), &options)?;
        Ok(Self {
            client: Client::new(state),
            manifests: directory,
            base,
        })
    }

    /// Adds or replaces a manifest file, which the lab follows.
    pub(crate) fn apply(&self, file: &str, text: &str) -> Result<()> {
        let scratch = self.manifests.path().join(format!(".{file}"));
        fs::write(&scratch, text)?;
        Ok(fs::rename(scratch, self.manifests.path().join(file))?)
    }

    /// Waits until the lab's status satisfies the predicate `enough`, and returns the status.
    pub(crate) fn wait_until(
        &self,
        what: &str,
        enough: impl FnMut(&Status) -> bool,
    ) -> Result<Status> {
        match self.client.wait_until(Duration::from_secs(300), enough)? {
            Ok(status) => Ok(status),
            Err(status) => bail!("not reached: {what}: {status:#?}"),
        }
    }

    /// Returns the IP address of a pod.
    pub(crate) fn address(&self, namespace: &str, name: &str) -> Result<String> {
        let status = self.client.status()?;
        let pod = status
            .pods
            .iter()
            .find(|pod| pod.namespace == namespace && pod.name == name);
        let ip = pod.and_then(|pod| pod.ips.first());
        Ok(ip
            .with_context(|| format!("{namespace}/{name} has no address"))?
            .to_string())
    }

    /// Runs a program in a pod and returns its output.
    pub(crate) fn exec(&self, pod: &str, command: &[String]) -> Result<String> {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let output = self.client.output(pod, &command)?;
        ensure!(
            output.code == 0,
            "{command:?} in {pod}: {}{}",
            output.stdout,
            output.stderr
        );
        Ok(output.stdout)
    }

    /// Opens a TCP connection from inside a pod.
    pub(crate) fn dial(&self, pod: &str, address: &str) -> Result<std::net::TcpStream> {
        Ok(self
            .client
            .dial(LabNetns::Pod(pod.to_owned()), address.parse()?)?)
    }

    /// Returns the process IDs of the daemons of that name on all nodes, in this program's PID namespace.
    pub(crate) fn pids(&self, daemon: &str) -> Result<Vec<u32>> {
        let mut pids = Vec::new();
        for process in self.client.status()?.daemons {
            if process.name == daemon {
                let inside = process
                    .pid
                    .with_context(|| format!("no {daemon} runs on {:?}", process.node))?;
                let find = |name: &str| process::find_outer_pid(inside, name, self.base.path());
                let pid = find(&format!("ambit-{daemon}")).or_else(|_| find("ambit-node-prox"))?;
                pids.extend(process::with_descendants(pid)?);
            }
        }
        ensure!(!pids.is_empty(), "the lab has no {daemon}");
        Ok(pids)
    }

    /// Returns sum and count of one of the agent's histograms.
    pub(crate) fn agent_histogram(&self, name: &str) -> Result<(f64, f64)> {
        let address = "127.0.0.1:15014".parse()?;
        let mut stream = self.client.dial(LabNetns::Node("node-1".into()), address)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let value = |suffix: &str| {
            text.lines()
                .filter(|line| line.starts_with(&format!("{name}_{suffix}")))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        Ok((value("sum"), value("count")))
    }
}

impl Drop for BenchLab {
    fn drop(&mut self) {
        if let Err(error) = self.client.down() {
            eprintln!("the lab does not go down: {error}");
        }
    }
}

/// Repeats a measurement until its value no longer changes.
pub(crate) fn wait_until_settled(mut figure: impl FnMut() -> Result<f64>) -> Result<f64> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut last = figure()?;
    loop {
        std::thread::sleep(Duration::from_secs(2));
        let now = figure()?;
        if (now - last).abs() < last.abs() * 0.01 || Instant::now() > deadline {
            return Ok(now);
        }
        last = now;
    }
}

/// Writes nginx's configuration for a program of the rig, and returns its path.
pub(crate) fn nginx_configuration(directory: &Path, name: &str) -> Result<String> {
    let path = directory.join(format!("{name}.conf"));
    let text = format!(
        "worker_processes 1; daemon off; error_log /dev/null; pid {}/{name}.pid;
events {{ worker_connections 16384; }}
http {{ access_log off; keepalive_requests 1000000000;
  server {{ listen 8080 backlog=4096; location / {{ return 200 \"hello world\\n\"; }} }} }}\n",
        directory.display()
    );
    fs::write(&path, text)?;
    Ok(path.display().to_string())
}
