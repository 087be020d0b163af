//! Starts a lab, and waits until its pods are ready and its node proxies know them.

use std::{
    thread,
    time::{Duration, Instant},
};

#[cfg(target_os = "linux")]
use ambit_lab::base_directory;
use ambit_lab::{Client, Options, PodStatus, Status};

use crate::{
    CliError, ErrorKind,
    dump::{Dump, WorkloadEntry, non_empty_or},
    source::Source,
};

/// Starts a lab.
///
/// # Errors
/// Fails if a lab of that name is running, or it does not come up.
#[cfg(target_os = "linux")]
pub(crate) fn launch_lab(options: &Options) -> Result<Client, CliError> {
    let state = ambit_lab::launch(&base_directory(), options).map_err(|error| {
        let failed = CliError::new(ErrorKind::Failed, error.to_string());
        match std::error::Error::source(&error) {
            Some(source) => failed.with_source(source.to_string()),
            None => failed,
        }
    })?;
    Ok(Client::new(state))
}

/// Returns an error: labs need Linux namespaces.
#[cfg(not(target_os = "linux"))]
pub(crate) fn launch(_options: &Options) -> Result<Client, CliError> {
    let system = std::env::consts::OS;
    Err(CliError::new(
        ErrorKind::Failed,
        format!(
            "labs run on Linux, and this is {system}; install into a cluster with `ambit install`"
        ),
    ))
}

/// Whether every pod is ready, or has completed.
pub(crate) fn all_ready(status: &Status) -> bool {
    status
        .pods
        .iter()
        .all(|pod| pod.ready || pod.phase == "Succeeded")
}

/// Waits until every node proxy has the current record of every pod of `status`, with its health and protocol; returns
/// false on timeout.
pub(crate) fn wait_for_proxies(
    client: &Client,
    lab: &str,
    status: &Status,
    timeout: Duration,
) -> Result<bool, CliError> {
    if !status.mesh {
        return Ok(true);
    }
    let deadline = Instant::now() + timeout;
    loop {
        let mut known = true;
        for node in &status.nodes {
            // A proxy that is just starting does not answer yet.
            let dump = Source::lab_node_proxy(lab, &node.name).load_dump();
            known &= dump.is_ok_and(|dump| status.pods.iter().all(|pod| has_workload(&dump, pod)));
        }
        if known {
            return Ok(true);
        }
        if Instant::now() > deadline || client.status().is_err() {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn has_workload(dump: &Dump, pod: &PodStatus) -> bool {
    let same = |workload: &&WorkloadEntry| {
        workload.namespace == pod.namespace && workload.name == pod.name
    };
    dump.workloads.parsed().find(same).is_some_and(|workload| {
        let healthy = non_empty_or(&workload.status, "Healthy") == "Healthy";
        let hbone = workload.protocol == "HBONE";
        healthy == pod.ready && hbone == pod.captured
    }) || !pod.ready
}
