//! Benchmark of the mesh's cost at a pod's start: from the API request to the program's first instruction.

use anyhow::Result;
use futures_util::future::try_join_all;

use super::{
    faults::{process_start, start_time_pod},
    rig::{BenchCluster, pause},
    stats::MeasuredSample,
    table::ClusterRow,
};
use crate::report::ReportLine;

const SINGLE_STARTS: usize = 12;
const CONCURRENT_STARTS: usize = 20;
const CONCURRENT_ROUNDS: usize = 3;

/// Start times in seconds, of pods started one at a time and of many at once.
#[derive(Clone, Debug)]
pub(super) struct StartTimes {
    single: MeasuredSample,
    concurrent: MeasuredSample,
}

/// Measures starts of pods in a namespace, in the mesh or outside.
pub(super) async fn measure(rig: &BenchCluster, in_mesh: bool) -> Result<StartTimes> {
    rig.namespace("bench-start", in_mesh).await?;
    let (mut alone, mut crowd) = <(MeasuredSample, MeasuredSample)>::default();
    for number in 0..SINGLE_STARTS {
        let took = measure_start(rig, &format!("one-{number}")).await?;
        // The first start fills the page cache.
        if number > 0 {
            alone.add(took);
        }
        // The effects of its end must not delay the next start.
        pause(0.5).await;
    }
    for round in 0..CONCURRENT_ROUNDS {
        let names: Vec<_> = (0..CONCURRENT_STARTS)
            .map(|n| format!("many-{round}-{n}"))
            .collect();
        let mut this = MeasuredSample::default();
        for took in try_join_all(names.iter().map(|name| measure_start(rig, name))).await? {
            this.add(took);
        }
        crowd.add(this.median());
        pause(2.0).await;
    }
    rig.remove_namespace("bench-start").await?;
    Ok(StartTimes {
        single: alone,
        concurrent: crowd,
    })
}

async fn measure_start(rig: &BenchCluster, name: &str) -> Result<f64> {
    let before = rig.create(&start_time_pod("bench-start", name)).await?;
    Ok(process_start(rig, "bench-start", name).await? - before)
}

/// Compares the start times outside and inside the mesh with those of a cluster without a mesh.
pub(super) fn compare(
    none: &StartTimes,
    outside: &StartTimes,
    inside: &StartTimes,
) -> (ClusterRow, Vec<ReportLine>) {
    let cost = |starts: &StartTimes| starts.single.median() - none.single.median();
    let row = ClusterRow {
        scenario: "pod start: cost to pods outside / inside the mesh",
        istio_result: "+0.10 s / +0.15 s",
        target: "+0.01 s / +0.05 s",
        measured: format!(
            "{:+.3} s / {:+.3} s (median start without the mesh {:.3} s)",
            cost(outside),
            cost(inside),
            none.single.median()
        ),
        times_better: Some(0.15 / cost(inside).max(0.001)),
        // A difference within the noise of a pod's start does not count as a cost.
        is_target_reached: cost(outside) <= 0.015 && cost(inside) <= 0.055,
    }
    .print_row();
    let ms = |seconds: f64| seconds * 1e3;
    let line = |what: &str, sample: &StartTimes, existing: f64, crowd_existing: f64| {
        [
            ReportLine::compared_with(
                &format!("pod start {what}"),
                "ms",
                ms(none.single.median()),
                ms(sample.single.median()),
                existing,
            ),
            ReportLine::compared_with(
                &format!("{CONCURRENT_STARTS} pods at once {what}, median"),
                "ms",
                ms(none.concurrent.median()),
                ms(sample.concurrent.median()),
                crowd_existing,
            ),
        ]
    };
    let mut lines = Vec::new();
    lines.extend(line("outside the mesh", outside, 1.208, 1.43));
    lines.extend(line("in the mesh", inside, 1.325, 1.515));
    (row, lines)
}
