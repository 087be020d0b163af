//! Benchmark of a node that loses power and boots again, while its primary CNI rewrites its configuration.

use std::time::Duration;

use ambit_cluster::{NodeBoot, objects};
use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    rig::{BenchCluster, PodPlan, Program, pause, split_arguments, unix_seconds},
    stats::MeasuredSample,
    table::ClusterRow,
};

const CLIENTS: usize = 3;

/// Measures plaintext packets and pod start times after node 2 reboots with a rewritten primary CNI configuration. The
/// pods are clients that connect to a server on node 1 as soon as they run.
pub(super) async fn cni_rewritten_at_boot(rig: &BenchCluster) -> Result<ClusterRow> {
    rig.namespace("bench-boot", true).await?;
    let server = rig.server("bench-boot", "server", 1).await?;
    for number in 0..CLIENTS {
        let name = format!("client-{number}");
        let load = format!(
            "load --http http://{server}:8080/ --rate-keepalive 0 --rate-new 50 --workers 1 --progress"
        );
        let plan = PodPlan {
            namespace: "bench-boot",
            name: &name,
            node: 2,
            tool_arguments: split_arguments(&load),
        };
        rig.create_restarting(&plan).await?;
        rig.wait_for_log_line("bench-boot", &name, "\"running\"")
            .await?;
    }
    let wire = rig.capture_packets(1, "tcp and dst port 8080")?;
    rig.node(2).kill()?;
    pause(3.0).await;
    let booted = unix_seconds();
    rig.node(2).start(NodeBoot::CniRewritten)?;
    let timeout = Duration::from_secs(120);
    let agent = objects::wait_until("the agent of n2", timeout, async || {
        objects::error_unless(!rig.pids(2, Program::Agent)?.is_empty(), "it does not run")?;
        Ok(unix_seconds())
    })
    .await?;
    let mut starts = MeasuredSample::default();
    for number in 0..CLIENTS {
        let name = format!("client-{number}");
        let began = objects::wait_until(&format!("{name} is back"), timeout, async || {
            let log = rig.log("bench-boot", &name).await?;
            let began = start_time_in_log(&log).filter(|began| *began > booted);
            let began = began.context("still the old container")?;
            objects::error_unless(log.contains("\"running\""), "no answer yet")?;
            Ok(began)
        })
        .await?;
        starts.add(began - agent);
    }
    pause(10.0).await;
    let clear = wire
        .packets()
        .iter()
        .filter(|packet| packet.unix > booted)
        .count();
    rig.remove_namespace("bench-boot").await?;
    Ok(ClusterRow {
        scenario: "node boots, primary CNI rewrote its configuration",
        istio_result: "plaintext for good (1,041-1,333 openings a pod)",
        target: "0 packets in plaintext, pods start within 5 s of the agent",
        measured: format!(
            "{clear} packets in plaintext; agent {:.1} s after the boot, pods {:.1} s after the agent, worst {:.1}",
            agent - booted,
            starts.median(),
            starts.worst(),
        ),
        times_better: None,
        is_target_reached: clear == 0 && starts.worst() < 5.0,
    }
    .print_row())
}

fn start_time_in_log(log: &str) -> Option<f64> {
    let line = log.lines().find(|line| line.contains("\"begun\""))?;
    serde_json::from_str::<Value>(line)
        .ok()?
        .get("unix")?
        .as_f64()
}
