//! Reference of labels and annotations: constants in the code, with their doc comments.

use anyhow::Result;

use super::code::{constants, markdown_table, parse};

/// Files with constants that name labels or annotations.
const LABEL_FILES: &[&str] = &[
    "crates/control-plane/k8s-api/src/labels.rs",
    "crates/control-plane/k8s-api/src/enablement.rs",
    "crates/control-plane/waypoint-objects/src/objects.rs",
    "crates/control-plane/waypoint-objects/src/parameters.rs",
    "crates/control-plane/waypoint-objects/src/ownership.rs",
    "crates/control-plane/derive/src/objects/destination_rule/balancing.rs",
    "crates/programs/agent/src/enrolment/annotations.rs",
];

/// Returns the tables of the labels page.
pub(super) fn render() -> Result<String> {
    let mut rows = Vec::new();
    for path in LABEL_FILES {
        for one in constants(&parse(path)?) {
            let is_key = one.value.contains(".io/") && !one.value.contains('=');
            let is_named = ["abel", "nnotation"]
                .iter()
                .any(|word| one.doc.contains(word));
            if is_key && is_named && !one.value.ends_with('/') {
                rows.push(vec![format!("`{}`", one.value), one.doc]);
            }
        }
    }
    rows.sort();
    rows.dedup_by(|second, first| second.first() == first.first());
    let (ours, others): (Vec<_>, Vec<_>) = rows
        .into_iter()
        .partition(|row| row.first().is_some_and(|key| key.starts_with("`ambit.io/")));
    let heading = ["key", "meaning"];
    Ok(format!(
        "# Labels and annotations\n\n\
         Keys that the mesh reads or writes. Values that cannot be read are reported by `ambit problems`.\n\n\
         ## Of Istio, the Gateway API and Kubernetes\n\n{}\n## Of Ambit\n\n{}",
        markdown_table(&heading, &others),
        markdown_table(&heading, &ours)
    ))
}
