//! Figures: the same traffic without the mesh and through it, in one run, as ratios. Started by
//! `cargo xtask bench [traffic|memory|control]`.

mod control;
mod load;
mod memory;
mod process;
mod report;
mod rig;
mod traffic;

fn main() -> anyhow::Result<()> {
    let only = std::env::args().nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let mut lines = Vec::new();
    if wanted("traffic") {
        lines.extend(traffic::run()?);
    }
    if wanted("memory") {
        lines.extend(memory::run()?);
    }
    if wanted("control") {
        lines.extend(control::run()?);
    }
    anyhow::ensure!(
        !lines.is_empty(),
        "there is `traffic`, `memory` and `control`"
    );
    report::print(&lines);
    Ok(())
}
