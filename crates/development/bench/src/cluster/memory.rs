//! Benchmarks of the memory of the mesh's programs in the cluster.

use anyhow::{Context, Result};

use super::{
    rig::{Program, Rig, pause},
    table::Row,
};
use crate::{process::Memory, report::Line};

/// Measures memory with about ten idle pods.
pub(super) async fn idle(rig: &Rig) -> Result<(Row, Vec<Line>)> {
    // Freed pages are returned a little later.
    pause(15.0).await;
    let agent = larger(rig, Program::Agent)?;
    let proxy = larger(rig, Program::NodeProxy)?;
    let control = larger(rig, Program::Control)?;
    let row = Row {
        scenario: "memory: agent, node proxy, control plane idle",
        existing: "78 / 19-24 / 135 MB",
        target: "15 / 10 / 30 MB",
        measured: format!(
            "{:.1} / {:.1} / {:.1} MB",
            agent.proportional, proxy.proportional, control.proportional
        ),
        times_better: Some(
            (78.0 + 21.5 + 135.0)
                / (agent.proportional + proxy.proportional + control.proportional),
        ),
        reached: agent.proportional <= 15.0
            && proxy.proportional <= 10.0
            && control.proportional <= 30.0,
    }
    .tell();
    let lines = [
        ("agent", agent, 78.0, 17.5),
        ("node proxy", proxy, 21.5, 5.9),
        ("control plane", control, 135.0, 42.0),
    ];
    let lines = lines
        .into_iter()
        .flat_map(|(name, memory, existing, dirty)| {
            [
                Line::alone(
                    &format!("{name} idle, its share of pages"),
                    "MB",
                    memory.proportional,
                    Some(existing),
                ),
                Line::alone(
                    &format!("{name} idle, resident"),
                    "MB",
                    memory.resident,
                    Some(existing),
                ),
                Line::alone(
                    &format!("{name} idle, private and written"),
                    "MB",
                    memory.private_dirty,
                    Some(dirty),
                ),
            ]
        });
    Ok((row, lines.collect()))
}

/// Measures memory with 50 mesh pods on each node.
pub(super) fn of_hundred(rig: &Rig) -> Result<Vec<Line>> {
    let agent = larger(rig, Program::Agent)?;
    let proxy = larger(rig, Program::NodeProxy)?;
    Ok(vec![
        Line::alone(
            "agent, 100 pods of the mesh on 2 nodes",
            "MB",
            agent.proportional,
            None,
        ),
        Line::alone(
            "node proxy, 100 pods of the mesh on 2 nodes",
            "MB",
            proxy.proportional,
            None,
        ),
    ])
}

/// Returns the larger memory of a program on the two nodes; the control plane runs on one only.
fn larger(rig: &Rig, program: Program) -> Result<Memory> {
    [1, 2]
        .into_iter()
        .filter_map(|node| rig.memory(node, program).ok())
        .max_by(|one, other| one.proportional.total_cmp(&other.proportional))
        .with_context(|| format!("no {program:?} runs"))
}
