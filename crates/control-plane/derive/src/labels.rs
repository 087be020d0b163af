//! Labels of objects, and selectors of them.

/// Labels of an object.
pub type Labels = std::collections::BTreeMap<String, String>;

/// Whether `labels` has every pair of `selector`.
pub fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector
        .iter()
        .all(|(name, value)| labels.get(name) == Some(value))
}
