//! Benchmark of the mesh's cost at a pod's start: from the API request to the program's first instruction.

use anyhow::Result;
use futures_util::future::try_join_all;

use super::{
    faults::{process_start, starter},
    rig::{Rig, pause},
    stats::Sample,
    table::Row,
};
use crate::report::Line;

const ALONE: usize = 12;
const CROWD: usize = 20;
const CROWDS: usize = 3;

/// Start times in seconds, of pods started one at a time and of many at once.
#[derive(Clone, Debug)]
pub(super) struct Starts {
    alone: Sample,
    crowd: Sample,
}

/// Measures starts of pods in a namespace, in the mesh or outside.
pub(super) async fn measure(rig: &Rig, in_mesh: bool) -> Result<Starts> {
    rig.namespace("bench-start", in_mesh).await?;
    let (mut alone, mut crowd) = <(Sample, Sample)>::default();
    for number in 0..ALONE {
        let took = one(rig, &format!("one-{number}")).await?;
        // The first start fills the page cache.
        if number > 0 {
            alone.add(took);
        }
        // The effects of its end must not delay the next start.
        pause(0.5).await;
    }
    for round in 0..CROWDS {
        let names: Vec<_> = (0..CROWD).map(|n| format!("many-{round}-{n}")).collect();
        let mut this = Sample::default();
        for took in try_join_all(names.iter().map(|name| one(rig, name))).await? {
            this.add(took);
        }
        crowd.add(this.median());
        pause(2.0).await;
    }
    rig.remove_namespace("bench-start").await?;
    Ok(Starts { alone, crowd })
}

async fn one(rig: &Rig, name: &str) -> Result<f64> {
    let before = rig.create(&starter("bench-start", name)).await?;
    Ok(process_start(rig, "bench-start", name).await? - before)
}

/// Compares the start times outside and inside the mesh with those of a cluster without a mesh.
pub(super) fn compare(none: &Starts, outside: &Starts, inside: &Starts) -> (Row, Vec<Line>) {
    let cost = |starts: &Starts| starts.alone.median() - none.alone.median();
    let row = Row {
        scenario: "pod start: cost to pods outside / inside the mesh",
        existing: "+0.10 s / +0.15 s",
        target: "+0.01 s / +0.05 s",
        measured: format!(
            "{:+.3} s / {:+.3} s (median start without the mesh {:.3} s)",
            cost(outside),
            cost(inside),
            none.alone.median()
        ),
        times_better: Some(0.15 / cost(inside).max(0.001)),
        // A difference within the noise of a pod's start does not count as a cost.
        reached: cost(outside) <= 0.015 && cost(inside) <= 0.055,
    }
    .tell();
    let ms = |seconds: f64| seconds * 1e3;
    let line = |what: &str, sample: &Starts, existing: f64, crowd_existing: f64| {
        [
            Line::compared_with(
                &format!("pod start {what}"),
                "ms",
                ms(none.alone.median()),
                ms(sample.alone.median()),
                existing,
            ),
            Line::compared_with(
                &format!("{CROWD} pods at once {what}, median"),
                "ms",
                ms(none.crowd.median()),
                ms(sample.crowd.median()),
                crowd_existing,
            ),
        ]
    };
    let mut lines = Vec::new();
    lines.extend(line("outside the mesh", outside, 1.208, 1.43));
    lines.extend(line("in the mesh", inside, 1.325, 1.515));
    (row, lines)
}
