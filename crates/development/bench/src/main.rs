//! Benchmarks: the same traffic without the mesh and through it, in one run, as ratios. Started by
//! `cargo xtask bench [traffic|memory|control|cluster]`.

mod cluster;
mod control;
mod load;
mod memory;
mod process;
mod report;
mod rig;
mod traffic;

use std::path::PathBuf;

fn main() -> anyhow::Result<()> {
    // Images are distinguished from names by their file name extension.
    let (archives, names): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .partition(|argument| argument.ends_with(".tar"));
    let only = names.first();
    let wanted = |name: &str| only.is_none_or(|only| only == name);
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    if wanted("traffic") {
        lines.extend(traffic::run()?);
    }
    if wanted("memory") {
        lines.extend(memory::run()?);
    }
    if wanted("control") {
        lines.extend(control::run()?);
    }
    if wanted("cluster") {
        let archives: Vec<PathBuf> = archives.iter().map(PathBuf::from).collect();
        let scenario = names.get(1).map(String::as_str);
        let (of_cluster, more) = cluster::run(scenario, &archives)?;
        rows.extend(of_cluster);
        lines.extend(more);
    }
    anyhow::ensure!(
        !lines.is_empty() || !rows.is_empty(),
        "there is `traffic`, `memory`, `control` and `cluster`"
    );
    if !rows.is_empty() {
        cluster::print(&rows);
    }
    report::print(&lines);
    Ok(())
}
