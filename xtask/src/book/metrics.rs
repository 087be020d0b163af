//! Reference of metrics: each metric family that a program registers or encodes, with its help text, type and labels,
//! read from the code.

mod families;
mod labels;

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::code::{markdown_table, parse};
use families::MetricFamily;
use labels::LabelSets;

/// Files with metric families, and the programs that serve them.
const METRIC_FILES: &[(&str, &str)] = &[
    (
        "crates/dataplane/telemetry/src/traffic.rs",
        "node proxy, waypoint",
    ),
    (
        "crates/dataplane/telemetry/src/families.rs",
        "node proxy, waypoint",
    ),
    (
        "crates/dataplane/telemetry/src/flows.rs",
        "node proxy, waypoint",
    ),
    ("crates/dataplane/proxy/src/policy_metrics.rs", "node proxy"),
    (
        "crates/dataplane/certificates/src/metrics.rs",
        "node proxy, waypoint",
    ),
    ("crates/dataplane/telemetry/src/http/metrics.rs", "waypoint"),
    (
        "crates/dataplane/telemetry/src/http/destinations.rs",
        "waypoint",
    ),
    (
        "crates/dataplane/waypoint-engine/src/memory_gauge.rs",
        "waypoint",
    ),
    (
        "crates/dataplane/waypoint-engine/src/plugins/metrics.rs",
        "waypoint",
    ),
    ("crates/programs/agent/src/metrics.rs", "agent"),
    ("crates/programs/agent/src/install/metrics.rs", "agent"),
    ("crates/programs/control/src/metrics.rs", "control plane"),
    (
        "crates/control-plane/xds-server/src/metrics.rs",
        "control plane",
    ),
    ("crates/control-plane/ca/src/metrics.rs", "control plane"),
    (
        "crates/control-plane/caller-auth/src/metrics.rs",
        "control plane",
    ),
    ("crates/runtime/rt/src/metrics.rs", "all"),
    ("crates/runtime/otlp-export/src/own_metrics.rs", "all"),
];

/// Files with label sets that are encoded without a derived implementation.
const LABEL_FILES: &[&str] = &[
    "crates/dataplane/telemetry/src/labels.rs",
    "crates/dataplane/telemetry/src/http/labels.rs",
];

/// Label sets of the traffic metrics, and the files of the families that have these labels.
const TRAFFIC_LABELS: &[(&str, &str, &str)] = &[
    (
        "TCP",
        "LabelsWithReason",
        "crates/dataplane/telemetry/src/traffic.rs",
    ),
    (
        "HTTP",
        "HttpLabels",
        "crates/dataplane/telemetry/src/http/metrics.rs",
    ),
];

/// Returns the tables of the metrics page.
pub(super) fn render() -> Result<String> {
    let mut sets = LabelSets::default();
    for path in LABEL_FILES {
        sets.add(&parse(path)?);
    }
    let mut text = "# Metrics\n\n\
         Names as a scrape has them. Node proxies and waypoints serve them on port 15020, the control plane and agents on \
         15014, at `/metrics` and `/stats/prometheus`.\n"
        .to_owned();
    let programs: BTreeSet<_> = METRIC_FILES.iter().map(|(_, programs)| *programs).collect();
    for programs in programs {
        let mut rows = Vec::new();
        for (path, _) in METRIC_FILES.iter().filter(|(_, of)| *of == programs) {
            let file = parse(path)?;
            let families = families::find_families(&file, &sets)?;
            ensure!(!families.is_empty(), "{path} has no metrics");
            rows.extend(families.iter().map(|family| family_row(family, path)));
        }
        rows.sort();
        let heading = programs_title(programs);
        let table = markdown_table(&["metric", "type", "labels", "meaning"], &rows);
        text.push_str(&format!("\n## {heading}\n\n{table}"));
    }
    text.push_str("\n## Labels of traffic\n");
    for (protocol, set, _) in TRAFFIC_LABELS {
        let labels = sets.labels_of_set(set);
        ensure!(!labels.is_empty(), "{set} has no labels");
        text.push_str(&format!("\n{protocol}: {}\n", quote_labels(&labels)));
    }
    Ok(text)
}

fn programs_title(programs: &str) -> String {
    match programs {
        "all" => "All programs".to_owned(),
        "node proxy, waypoint" => "Node proxies and waypoints".to_owned(),
        "node proxy" => "Node proxies".to_owned(),
        "waypoint" => "Waypoints".to_owned(),
        "agent" => "Node agents".to_owned(),
        _ => "Control plane".to_owned(),
    }
}

fn family_row(family: &MetricFamily, path: &str) -> Vec<String> {
    let of_traffic = TRAFFIC_LABELS.iter().find(|(_, _, file)| *file == path);
    let labels = match of_traffic {
        Some((protocol, ..)) if family.name.starts_with("istio_") => {
            format!("[traffic, {protocol}](#labels-of-traffic)")
        }
        _ => quote_labels(&family.labels),
    };
    let name = format!("`{}`", family.exposed_name());
    vec![name, family.kind.to_owned(), labels, family.help.clone()]
}

fn quote_labels(labels: &[String]) -> String {
    let quoted: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
    quoted.join(", ")
}
