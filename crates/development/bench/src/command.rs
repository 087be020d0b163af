//! Command line of the benchmarks: the part to run, and for `cluster` and `waypoint` the scenario.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{
    cluster, control, figure, memory, paths, relay,
    report::{self, ReportLine},
    traffic, waypoint,
};

/// Environment variable with the path of the Envoy binary with which waypoints are compared.
const ENVOY_PATH_VARIABLE: &str = "AMBIT_BENCH_ENVOY";

/// Runs the benchmarks that the arguments name; all without arguments.
pub(crate) fn run(arguments: Vec<String>) -> Result<()> {
    if let [mode, envoy, directory] = &*arguments
        && mode == "envoy-as-waypoint"
    {
        return waypoint::run_as_waypoint(Path::new(envoy), Path::new(directory));
    }
    if arguments.first().is_some_and(|mode| mode == "authorizer") {
        return waypoint::serve_authorizer();
    }
    if let [mode, relays @ ..] = &*arguments
        && mode == "relay"
    {
        return relay::serve(relays);
    }
    // Images are distinguished from names by their file name extension.
    let (archives, names): (Vec<_>, Vec<_>) = arguments
        .into_iter()
        .partition(|argument| argument.ends_with(".tar"));
    let only = names.first();
    let is_selected = |name: &str| only.is_none_or(|only| only == name);
    let (mut rows, mut lines, mut figures) = (Vec::new(), Vec::new(), Vec::new());
    if is_selected("traffic") {
        lines.extend(traffic::run()?);
    }
    if is_selected("paths") {
        let (rows, wake_ups) = paths::run()?;
        paths::print(&rows, wake_ups);
        figures.extend(rows.iter().flat_map(paths::PathRow::figures));
        if only.is_some() {
            return figure::write_figures(&figures);
        }
    }
    if is_selected("memory") {
        lines.extend(memory::run()?);
    }
    if is_selected("control") {
        lines.extend(control::run()?);
    }
    if is_selected("waypoint") {
        let envoy = std::env::var_os(ENVOY_PATH_VARIABLE).context(ENVOY_PATH_VARIABLE)?;
        let scenarios = names.get(1..).unwrap_or_default();
        figures.extend(waypoint::run(Path::new(&envoy), scenarios)?);
        if only.is_some() {
            return figure::write_figures(&figures);
        }
    }
    if is_selected("cluster") {
        let archives: Vec<PathBuf> = archives.iter().map(PathBuf::from).collect();
        let scenario = names.get(1).map(String::as_str);
        let (of_cluster, more) = cluster::run(scenario, &archives)?;
        rows.extend(of_cluster);
        lines.extend(more);
    }
    anyhow::ensure!(
        !lines.is_empty() || !rows.is_empty(),
        "there is `traffic`, `paths`, `memory`, `control`, `waypoint` and `cluster`"
    );
    if !rows.is_empty() {
        cluster::print(&rows);
    }
    report::print(&lines);
    figures.extend(lines.iter().map(ReportLine::to_figure));
    figure::write_figures(&figures)
}
