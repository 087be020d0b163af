//! `ambit lab`: starts and stops labs, shows their status and logs, and runs commands in their pods.

use std::{
    collections::BTreeSet, io, os::fd::AsFd, path::PathBuf, process::ExitCode, time::Duration,
};

use ambit_lab::{LogSource, Options, Status, base_directory};
use serde::Serialize;

use crate::{
    CliError, ErrorKind,
    args::{LabCommand, UpArgs},
    labs::{client_error, find_lab},
    output::{self, OutputFormat, format_table, print_line},
    problems::{self, Problem},
    readiness::{all_ready, launch_lab, wait_for_proxies},
    source::Source,
};

pub(crate) fn run(name: &str, command: LabCommand) -> Result<ExitCode, CliError> {
    match command {
        #[cfg(target_os = "linux")]
        LabCommand::Run { stage, state } => return Ok(ambit_lab::run_stage(stage, state)),
        #[cfg(target_os = "linux")]
        LabCommand::Shim { shim } => return Ok(ambit_lab::run_shim(&shim)),
        LabCommand::Up(args) => start(name, args)?,
        LabCommand::Down => match find_lab(name) {
            Ok(client) => client.down().map_err(client_error)?,
            Err(error) => {
                // One that has died has left its log.
                ambit_lab::StateDir::discard(&base_directory(), name)
                    .map_err(|error| client_error(error.into()))?;
                return Err(error);
            }
        },
        LabCommand::Status { output } => {
            let status = find_lab(name)?.status().map_err(client_error)?;
            print_status_with_problems(name, &status, output)?;
        }
        LabCommand::Exec {
            pod,
            container,
            command,
        } => {
            let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
            let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
            let code = find_lab(name)?.exec(&pod, container.as_deref(), &command, streams);
            let code = code.map_err(client_error)?;
            return Ok(ExitCode::from(u8::try_from(code).unwrap_or(255)));
        }
        LabCommand::Logs {
            source,
            container,
            node,
            follow,
        } => {
            let source = match source.as_str() {
                "lab" => LogSource::Lab,
                "agent" | "proxy" | "control" => LogSource::Daemon { name: source, node },
                _ => LogSource::Pod {
                    pod: source,
                    container,
                },
            };
            find_lab(name)?
                .logs(source, follow, io::stdout().as_fd())
                .map_err(client_error)?;
        }
        LabCommand::Demo {
            manifests,
            ip_family,
            keep,
            await_waypoint,
        } => {
            return crate::demo::run(name, manifests, ip_family, keep, await_waypoint);
        }
        LabCommand::List => {
            for name in ambit_lab::StateDir::list(&base_directory()) {
                print_line(&name)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn start(name: &str, args: UpArgs) -> Result<(), CliError> {
    let wait = Duration::from_secs(args.wait);
    let options = lab_options(name, args)?;
    let client = launch_lab(&options)?;
    print_line(&format!("lab {name} is up: {} nodes", options.nodes))?;
    if wait.is_zero() {
        return Ok(());
    }
    let ready = client.wait_until(wait, all_ready).map_err(client_error)?;
    if let Ok(status) = &ready {
        // Ready is what the kubelet saw; node proxies hear of it a moment later.
        let _slow_but_up = wait_for_proxies(&client, name, status, PROXY_READY_TIMEOUT)?;
    }
    let status = ready.as_ref().unwrap_or_else(|status| status);
    print_status(status, OutputFormat::Table)?;
    match ready {
        Ok(_) => Ok(()),
        Err(_) => Err(
            CliError::new(ErrorKind::Failed, "not all pods became ready").with_hint(
                "the lab stays up; `ambit lab logs POD` and `ambit lab status` say more",
            ),
        ),
    }
}

/// Timeout for node proxies to receive the records of the lab's pods.
const PROXY_READY_TIMEOUT: Duration = Duration::from_secs(10);

fn lab_options(name: &str, args: UpArgs) -> Result<Options, CliError> {
    let ambit = std::env::current_exe().map_err(|error| {
        CliError::new(ErrorKind::Failed, "cannot find this binary").with_source(error)
    })?;
    let beside = || {
        ambit
            .parent()
            .map_or_else(|| PathBuf::from("."), ToOwned::to_owned)
    };
    let absolute = |path: PathBuf| {
        path.canonicalize().map_err(|error| {
            CliError::new(
                ErrorKind::NotFound,
                format!("cannot use {}", path.display()),
            )
            .with_source(error)
        })
    };
    let mut node_proxies = std::collections::BTreeMap::new();
    for (node, path) in args.node_proxy {
        node_proxies.insert(node, absolute(path)?);
    }
    Ok(Options {
        name: name.to_owned(),
        manifests: absolute(args.manifests)?,
        nodes: args.nodes,
        ip_family: args.ip_family,
        node_proxies,
        bin_dir: absolute(args.bin_dir.unwrap_or_else(beside))?,
        ambit,
        mesh: !args.no_mesh,
        requires_waypoint: true,
        primary_cni: args.primary_cni,
        cni_dir: args.cni_dir,
        user_namespace: args.user_namespace,
        env: args.env.into_iter().collect(),
    })
}

fn print_status(status: &Status, format: OutputFormat) -> Result<(), CliError> {
    output::print_formatted(format, status, || format_status(status))
}

/// Prints the lab's status, with the problems of objects that its control plane reports.
fn print_status_with_problems(
    name: &str,
    status: &Status,
    format: OutputFormat,
) -> Result<(), CliError> {
    let problems = match status.mesh {
        // A control plane that does not answer is shown among the processes.
        true => problems::fetch_problems(&Source::lab_control_plane(name)).unwrap_or_default(),
        false => Vec::new(),
    };
    let all = StatusWithProblems {
        status,
        mesh_problems: &problems,
    };
    output::print_formatted(format, &all, || {
        let mut text = format_status(status);
        let lines: BTreeSet<_> = problems.iter().map(Problem::format_line).collect();
        let known = |line: &&String| !status.problems.contains(*line);
        for line in lines.iter().filter(known) {
            text.push_str(&format!("\nproblem: {line}"));
        }
        text
    })
}

/// Status of a lab, with the problems of objects that its control plane reports.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusWithProblems<'a> {
    #[serde(flatten)]
    status: &'a Status,
    mesh_problems: &'a [Problem],
}

fn format_status(status: &Status) -> String {
    let list = |ips: &[std::net::IpAddr]| {
        ips.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",")
    };
    let mut pods: Vec<_> = status.pods.iter().collect();
    pods.sort_by_key(|pod| (&pod.namespace, &pod.name));
    let rows = pods.iter().map(|pod| {
        let ready = pod
            .containers
            .iter()
            .filter(|container| container.ready)
            .count();
        let restarts: u32 = pod
            .containers
            .iter()
            .map(|container| container.restarts)
            .sum();
        let waiting = pod
            .containers
            .iter()
            .find(|c| c.state != "running")
            .map(|c| c.state.clone());
        let state = match (pod.phase.as_str(), waiting, &pod.message) {
            ("Pending", _, Some(message)) => format!("Pending: {message}"),
            ("Running", Some(why), _) => why,
            (phase, _, _) => phase.to_owned(),
        };
        vec![
            pod.namespace.clone(),
            pod.name.clone(),
            format!("{ready}/{}", pod.containers.len()),
            state,
            restarts.to_string(),
            list(&pod.ips),
            pod.node.clone(),
            if pod.captured { "captured" } else { "-" }.to_owned(),
        ]
    });
    let header = [
        "NAMESPACE",
        "POD",
        "READY",
        "STATUS",
        "RESTARTS",
        "IP",
        "NODE",
        "MESH",
    ];
    let mut text = format_table(&header, rows);
    if status.mesh {
        let rows = status.daemons.iter().map(|daemon| {
            vec![
                daemon.name.clone(),
                daemon.node.clone().unwrap_or_default(),
                daemon.pid.map(|pid| pid.to_string()).unwrap_or_default(),
                daemon.restarts.to_string(),
                daemon
                    .message
                    .clone()
                    .unwrap_or_else(|| "running".to_owned()),
            ]
        });
        text.push_str("\n\n");
        text.push_str(&format_table(
            &["PROCESS", "NODE", "PID", "RESTARTS", "STATUS"],
            rows,
        ));
    }
    for problem in &status.problems {
        text.push_str(&format!("\nproblem: {problem}"));
    }
    text
}
