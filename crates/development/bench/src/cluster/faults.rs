//! Benchmarks of kills and replacements of the mesh's own programs under load.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::try_join_all;

use super::{
    load::{Load, Report},
    rig::{BenchCluster, PodPlan, Program, pause, split_arguments, unix_seconds},
    stats::MeasuredSample,
    table::ClusterRow,
};

/// Measures failed requests while the node proxy's worker process is killed repeatedly, on the client's node and on the
/// server's.
pub(super) async fn proxy_killed(rig: &BenchCluster) -> Result<ClusterRow> {
    const KILLS: u32 = 4;
    rig.namespace("bench-kill", true).await?;
    let server = rig.server("bench-kill", "server", 2).await?;
    let load = Load::start(rig, "bench-kill", "load", &server, 40, "").await?;
    pause(2.0).await;
    let first = unix_seconds();
    for _ in 0..KILLS {
        rig.kill(1, Program::NodeProxyWorker)?;
        pause(3.0).await;
    }
    let second = unix_seconds();
    for _ in 0..KILLS {
        rig.kill(2, Program::NodeProxyWorker)?;
        pause(3.0).await;
    }
    let report = load.stop().await?;
    rig.remove_namespace("bench-kill").await?;
    let refused = refused_connections(&report);
    Ok(ClusterRow {
        scenario: "node proxy killed, and killed again",
        istio_result: "0.3-1.2 s away, then 18-20 s",
        target: "no opening refused, under 0.2 s, however often",
        measured: format!(
            "{KILLS} x client's node: {}; {KILLS} x server's: {}; {refused} refused, longest silence {:.2} s",
            report.summary(first, second),
            report.summary(second, f64::MAX),
            report.longest_gap(),
        ),
        times_better: Some(18.3 / report.longest_gap()),
        is_target_reached: refused == 0 && report.longest_gap() < 0.2,
    }
    .print_row())
}

/// Measures failed requests while the main process of the node proxy's container is killed on both nodes in turn, which
/// ends the container's other processes too.
pub(super) async fn proxy_container_killed(rig: &BenchCluster) -> Result<ClusterRow> {
    const KILLS: u32 = 2;
    rig.namespace("bench-kill", true).await?;
    let server = rig.server("bench-kill", "server", 2).await?;
    let load = Load::start(rig, "bench-kill", "load", &server, 40, "").await?;
    pause(2.0).await;
    let first = unix_seconds();
    for _ in 0..KILLS {
        for node in [1, 2] {
            rig.node(node).kill_parents("/ambit-node-proxy worker")?;
            // Kubelet restarts the container meanwhile, as the next standby.
            pause(6.0).await;
        }
    }
    let report = load.stop().await?;
    rig.remove_namespace("bench-kill").await?;
    let refused = refused_connections(&report);
    Ok(ClusterRow {
        scenario: "the node proxy's whole container killed",
        istio_result: "0.3-1.2 s away, then 18-20 s",
        target: "no opening refused, under 0.2 s",
        measured: format!(
            "{KILLS} x each node: {}; {refused} refused, longest silence {:.2} s",
            report.summary(first, f64::MAX),
            report.longest_gap()
        ),
        times_better: Some(0.83 / report.longest_gap()),
        is_target_reached: refused == 0 && report.longest_gap() < 0.2,
    }
    .print_row())
}

/// Measures failed requests during a rollout of the node proxy's DaemonSet on both nodes.
pub(super) async fn rollout(rig: &BenchCluster) -> Result<ClusterRow> {
    rig.namespace("bench-roll", true).await?;
    let server = rig.server("bench-roll", "server", 2).await?;
    let load = Load::start(rig, "bench-roll", "load", &server, 55, "").await?;
    pause(2.0).await;
    let began = unix_seconds();
    rig.kubectl("rollout restart daemonset/ztunnel --namespace istio-system")?;
    rig.wait_until_rolled_out("daemonset", "ztunnel").await?;
    let took = unix_seconds() - began;
    let report = load.stop().await?;
    rig.remove_namespace("bench-roll").await?;
    let failed = report.failed_requests(began, f64::MAX);
    Ok(ClusterRow {
        scenario: "node proxy DaemonSet rollout",
        istio_result: "0 new ones fail; 4 keep-alive and 10 long connections cut after 26.7 s",
        target: "none cut within the drain, no opening refused",
        measured: format!(
            "{}, done after {took:.0} s; longest silence {:.2} s",
            report.summary(began, f64::MAX),
            report.longest_gap()
        ),
        times_better: None,
        is_target_reached: failed == 0,
    }
    .print_row())
}

/// Measures failed requests during a replacement of the agent and of the control plane.
pub(super) async fn other_components_replaced(rig: &BenchCluster) -> Result<ClusterRow> {
    rig.namespace("bench-roll", true).await?;
    let server = rig.server("bench-roll", "server", 2).await?;
    let load = Load::start(rig, "bench-roll", "load", &server, 45, "").await?;
    let began = unix_seconds();
    rig.kubectl(
        "rollout restart daemonset/ambit-agent deployment/ambit-control --namespace istio-system",
    )?;
    rig.wait_until_rolled_out("daemonset", "ambit-agent")
        .await?;
    rig.wait_until_rolled_out("deployment", "ambit-control")
        .await?;
    let report = load.stop().await?;
    rig.remove_namespace("bench-roll").await?;
    Ok(ClusterRow {
        scenario: "agent and control plane replaced under load",
        istio_result: "(not measured)",
        target: "no effect on traffic",
        measured: report.summary(began, f64::MAX),
        times_better: None,
        is_target_reached: report.failed_requests(began, f64::MAX) == 0,
    }
    .print_row())
}

fn refused_connections(report: &Report) -> usize {
    report
        .failures
        .iter()
        .filter(|failure| failure.kind == "refused")
        .count()
}

/// Measures the start times of pods while the agent crash-loops: it is killed whenever it runs, for 20 seconds.
pub(super) async fn agent_crash_looping(rig: &BenchCluster) -> Result<ClusterRow> {
    const CRASH_LOOP_DURATION: Duration = Duration::from_secs(20);
    rig.namespace("bench-loop", true).await?;
    rig.namespace("bench-plain", false).await?;
    let start = Instant::now();
    let mut created = None;
    while start.elapsed() < CRASH_LOOP_DURATION {
        rig.kill(1, Program::Agent)?;
        if created.is_none() && start.elapsed() > Duration::from_secs(1) {
            created = Some(create_start_time_pods(rig).await?);
        }
        pause(0.1).await;
    }
    let ended = unix_seconds();
    while rig.pids(1, Program::Agent)?.is_empty() {
        pause(0.02).await;
    }
    let back = unix_seconds();
    let (mut mesh, mut plain, mut after) =
        <(MeasuredSample, MeasuredSample, MeasuredSample)>::default();
    for (namespace, name, before) in created.unwrap_or_default() {
        let began = process_start(rig, namespace, &name).await?;
        if namespace == "bench-loop" {
            mesh.add(began - before);
            after.add(began - back);
        } else {
            plain.add(began - before);
        }
    }
    rig.remove_namespace("bench-loop").await?;
    rig.remove_namespace("bench-plain").await?;
    Ok(ClusterRow {
        scenario: "agent crash-looping for 20 s",
        istio_result: "mesh pods wait 50 s, others 1.6 s",
        target: "they start within 2 s of its return",
        measured: format!(
            "mesh pods after {:.1} s, worst {:.1}, which is {:.1} s after the agent's return ({:.1} s after the loop); others {:.1} s",
            mesh.median(),
            mesh.worst(),
            after.worst(),
            back - ended,
            plain.worst(),
        ),
        times_better: Some(50.9 / mesh.median()),
        is_target_reached: after.worst() < 2.0,
    }
    .print_row())
}

/// Creates three pods in the mesh and three outside; returns namespace, name and time of creation of each.
async fn create_start_time_pods(rig: &BenchCluster) -> Result<Vec<(&'static str, String, f64)>> {
    let pods = (0..6).map(|number| async move {
        let namespace = if number % 2 == 0 {
            "bench-loop"
        } else {
            "bench-plain"
        };
        let name = format!("pod-{number}");
        let before = rig.create(&start_time_pod(namespace, &name)).await?;
        Ok::<_, anyhow::Error>((namespace, name, before))
    });
    try_join_all(pods).await
}

/// Returns the plan of a pod that prints its start time, and ends.
pub(super) fn start_time_pod<'a>(namespace: &'a str, name: &'a str) -> PodPlan<'a> {
    PodPlan {
        namespace,
        name,
        node: 1,
        tool_arguments: split_arguments("first-connect 127.0.0.1:9 --give-up 0"),
    }
}

/// Waits for the output of a pod planned by [`start_time_pod`], and returns the start time of its process.
pub(super) async fn process_start(rig: &BenchCluster, namespace: &str, name: &str) -> Result<f64> {
    let line = rig
        .wait_for_log_line(namespace, name, "first-connect")
        .await?;
    let reported: serde_json::Value = serde_json::from_str(&line)?;
    reported
        .get("unix")
        .and_then(serde_json::Value::as_f64)
        .ok_or_else(|| anyhow::anyhow!("no time in {line}"))
}
