//! Figures: the same traffic without the mesh and through it, in one run, as ratios. Started by
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
    let mut arguments = std::env::args().skip(1);
    let only = arguments.next();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
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
        // The images, then the scenario if it is to be only one.
        let (archives, scenarios): (Vec<_>, Vec<_>) =
            arguments.partition(|argument| argument.ends_with(".tar"));
        let archives: Vec<PathBuf> = archives.into_iter().map(PathBuf::from).collect();
        let scenario = scenarios.first().map(String::as_str);
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
