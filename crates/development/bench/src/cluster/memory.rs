//! Benchmarks of the memory of the mesh's programs in the cluster.

use anyhow::{Context, Result};

use super::{
    rig::{BenchCluster, Program, pause},
    table::ClusterRow,
};
use crate::{process::Memory, report::ReportLine};

/// Measures the memory of the mesh's programs with about ten idle pods.
pub(super) async fn idle(rig: &BenchCluster) -> Result<(ClusterRow, Vec<ReportLine>)> {
    // Freed pages are returned a little later.
    pause(15.0).await;
    let agent = larger_memory(rig, Program::Agent)?;
    let proxy = larger_memory(rig, Program::NodeProxy)?;
    let control = larger_memory(rig, Program::Control)?;
    let row = ClusterRow {
        scenario: "memory: agent, node proxy, control plane idle",
        istio_result: "78 / 19-24 / 135 MB",
        target: "15 / 10 / 30 MB",
        measured: format!(
            "{:.1} / {:.1} / {:.1} MB",
            agent.proportional, proxy.proportional, control.proportional
        ),
        times_better: Some(
            (78.0 + 21.5 + 135.0)
                / (agent.proportional + proxy.proportional + control.proportional),
        ),
        is_target_reached: agent.proportional <= 15.0
            && proxy.proportional <= 10.0
            && control.proportional <= 30.0,
    }
    .print_row();
    let lines = [
        ("agent", agent, 78.0, 17.5),
        ("node proxy", proxy, 21.5, 5.9),
        ("control plane", control, 135.0, 42.0),
    ];
    let lines = lines
        .into_iter()
        .flat_map(|(name, memory, existing, dirty)| {
            [
                ReportLine::without_baseline(
                    &format!("{name} idle, its share of pages"),
                    "MB",
                    memory.proportional,
                    Some(existing),
                ),
                ReportLine::without_baseline(
                    &format!("{name} idle, resident"),
                    "MB",
                    memory.resident,
                    Some(existing),
                ),
                ReportLine::without_baseline(
                    &format!("{name} idle, private and written"),
                    "MB",
                    memory.private_dirty,
                    Some(dirty),
                ),
            ]
        });
    Ok((row, lines.collect()))
}

/// Measures the memory of the mesh's programs with 50 mesh pods on each node.
pub(super) fn memory_of_hundred_pods(rig: &BenchCluster) -> Result<Vec<ReportLine>> {
    let agent = larger_memory(rig, Program::Agent)?;
    let proxy = larger_memory(rig, Program::NodeProxy)?;
    Ok(vec![
        ReportLine::without_baseline(
            "agent, 100 pods of the mesh on 2 nodes",
            "MB",
            agent.proportional,
            None,
        ),
        ReportLine::without_baseline(
            "node proxy, 100 pods of the mesh on 2 nodes",
            "MB",
            proxy.proportional,
            None,
        ),
    ])
}

/// Returns the larger memory of a program on the two nodes; the control plane runs on one only.
fn larger_memory(rig: &BenchCluster, program: Program) -> Result<Memory> {
    [1, 2]
        .into_iter()
        .filter_map(|node| rig.memory(node, program).ok())
        .max_by(|one, other| one.proportional.total_cmp(&other.proportional))
        .with_context(|| format!("no {program:?} runs"))
}
