//! Figures: the same traffic without the mesh and through it, in one run, as ratios.

mod load;
mod process;
mod report;

fn main() {}
