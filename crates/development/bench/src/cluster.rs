//! Benchmarks of the mesh on a real Kubernetes: the scenarios in which Istio ambient was measured, with the same
//! method. `cargo xtask bench cluster [SCENARIO]`.

mod boot;
mod enrolling;
mod faults;
mod load;
mod memory;
mod packet_capture;
mod pod_deletion;
mod policies;
mod rig;
mod starts;
mod stats;
mod table;

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::report::ReportLine;
use rig::BenchCluster;
use table::ClusterRow;
pub(crate) use table::print;

/// Values for `ambit install` that select locally built images.
const VALUES: &str = "--set global.hub=ambit,global.tag=dev,global.imagePullPolicy=Never";

/// Scenarios by name, in the order of measurement.
const SCENARIOS: &[&str] = &[
    "start",
    "leave",
    "label",
    "first",
    "deny",
    "policy",
    "killed",
    "container",
    "rollout",
    "others",
    "loop",
    "boot",
    "memory",
    "enrol",
];

/// Measures all scenarios, or only the named one. `archives` are the image archives to load into the cluster.
pub(crate) fn run(
    only: Option<&str>,
    archives: &[PathBuf],
) -> Result<(Vec<ClusterRow>, Vec<ReportLine>)> {
    ensure!(
        only.is_none_or(|only| SCENARIOS.contains(&only)),
        "there is {}",
        SCENARIOS.join(", ")
    );
    ambit_rt::current_thread_runtime()?.block_on(async {
        let rig = BenchCluster::up(archives).await?;
        let measured = measure(&rig, only).await;
        rig.down()?;
        measured
    })
}

async fn measure(
    rig: &BenchCluster,
    only: Option<&str>,
) -> Result<(Vec<ClusterRow>, Vec<ReportLine>)> {
    let is_selected = |name: &str| only.is_none_or(|only| only == name);
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    if is_selected("start") || is_selected("leave") {
        rig.ambit("uninstall --unlabel --delete-namespace").ok();
    }
    let without = if is_selected("start") {
        Some(starts::measure(rig, false).await?)
    } else {
        None
    };
    let silence = if is_selected("leave") {
        Some(pod_deletion::measure(rig, false).await?)
    } else {
        None
    };
    rig.ambit(&format!("install {VALUES}"))?;
    if let Some(without) = without {
        let outside = starts::measure(rig, false).await?;
        let inside = starts::measure(rig, true).await?;
        let (row, more) = starts::compare(&without, &outside, &inside);
        rows.push(row);
        lines.extend(more);
    }
    if let Some(without) = silence {
        let (row, line) = pod_deletion::compare(without, pod_deletion::measure(rig, true).await?);
        rows.push(row);
        lines.push(line);
    }
    if is_selected("memory") {
        let (row, more) = memory::idle(rig).await?;
        rows.push(row);
        lines.extend(more);
    }
    if is_selected("label") {
        rows.push(enrolling::enrol_running_namespace(rig).await?);
    }
    if is_selected("first") {
        rows.push(enrolling::first_connection(rig).await?);
    }
    if is_selected("deny") {
        rows.push(policies::deny_policy_enforcement(rig).await?);
    }
    if is_selected("killed") {
        rows.push(faults::proxy_killed(rig).await?);
    }
    if is_selected("container") {
        rows.push(faults::proxy_container_killed(rig).await?);
    }
    if is_selected("rollout") {
        rows.push(faults::rollout(rig).await?);
    }
    if is_selected("others") {
        rows.push(faults::other_components_replaced(rig).await?);
    }
    if is_selected("loop") {
        rows.push(faults::agent_crash_looping(rig).await?);
    }
    if is_selected("boot") {
        rows.push(boot::cni_rewritten_at_boot(rig).await?);
    }
    if is_selected("policy") {
        lines.extend(policies::enforcement_on_all_nodes(rig).await?);
    }
    if is_selected("enrol") {
        lines.extend(enrolling::enrolment(rig).await?);
    }
    Ok((rows, lines))
}
