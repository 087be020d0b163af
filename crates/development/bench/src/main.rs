//! Benchmarks: the same traffic without the mesh and through it, in one run, as ratios. Started by
//! `cargo xtask bench [traffic|paths|memory|control|waypoint|cluster]`.

mod cluster;
mod command;
mod control;
mod figure;
mod load;
mod memory;
mod paths;
mod process;
mod relay;
mod report;
mod rig;
mod traffic;
mod wake_ups;
mod waypoint;

fn main() -> anyhow::Result<()> {
    command::run(std::env::args().skip(1).collect())
}
