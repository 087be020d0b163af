//! Benchmark of replacing a waypoint's pods under load: failed requests, and latency meanwhile.

use std::{collections::BTreeSet, path::Path, thread, time::Duration};

use anyhow::{Result, anyhow};

use super::{
    compared_proxy::{AMBIT_WAYPOINT, ComparedProxy, ENVOY_WAYPOINT},
    lab::{Load, WaypointLab},
    manifests,
    scenario::Scenario,
    table::WaypointRow,
};
use crate::{figure::median, load::HttpLoad};

/// Delay between the start of the load and the start of the rollout.
const LOAD_LEAD_TIME: Duration = Duration::from_secs(2);
/// Duration of the load in seconds; a rollout takes about half of it.
const SECONDS: u32 = 20;
/// Number of rollouts of each waypoint, Ambit's and Envoy's.
const ROUNDS: usize = 3;

/// Compares rollouts of both waypoints: the number of failed requests in all rollouts, and the median of the rollouts'
/// 99th percentiles of latency.
pub(super) fn compare(envoy: &Path) -> Result<Vec<WaypointRow>> {
    let lab = WaypointLab::up(envoy, Scenario::default())?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for revision in 1..=ROUNDS {
        ours.push(roll(&lab, AMBIT_WAYPOINT, revision)?);
        theirs.push(roll(&lab, ENVOY_WAYPOINT, revision)?);
    }
    let failed = |all: &[HttpLoad]| all.iter().map(|load| load.errors).sum();
    let p99 = |all: &[HttpLoad]| {
        let times = all.iter().filter_map(|load| load.p99);
        median(times.map(|time| time.as_secs_f64() * 1e6).collect()).unwrap_or(f64::NAN)
    };
    Ok(vec![
        WaypointRow::failed("rollout", failed(&ours), failed(&theirs)),
        WaypointRow::smaller_is_better("rollout: p99", "us", p99(&ours), p99(&theirs), 1.0),
    ])
}

/// Replaces all pods of a waypoint under load, and returns the load's result.
fn roll(lab: &WaypointLab, side: ComparedProxy, revision: usize) -> Result<HttpLoad> {
    let before = pods(lab, side)?;
    thread::scope(|scope| {
        let load = scope.spawn(|| lab.send(side, Load::Http1(32), SECONDS));
        thread::sleep(LOAD_LEAD_TIME);
        let gateway = manifests::gateway(side, revision);
        lab.rig.apply(&side.gateway(), &gateway)?;
        lab.rig.wait_until("the rollout is over", |status| {
            let of_waypoint = status.pods.iter().filter(|pod| {
                pod.namespace == side.name && pod.name.starts_with(&format!("{}-", side.name))
            });
            let now: Vec<_> = of_waypoint.collect();
            !now.is_empty()
                && now
                    .iter()
                    .all(|pod| pod.ready && !before.contains(&pod.name))
        })?;
        load.join().map_err(|_| anyhow!("the load panicked"))?
    })
}

/// Returns the names of the waypoint's pods.
fn pods(lab: &WaypointLab, side: ComparedProxy) -> Result<BTreeSet<String>> {
    let status = lab.rig.wait_until("pods are known", |_| true)?;
    let of_namespace = status
        .pods
        .into_iter()
        .filter(|pod| pod.namespace == side.name);
    Ok(of_namespace.map(|pod| pod.name).collect())
}
