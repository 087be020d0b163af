//! Labels of objects, and equality-based selectors.

/// Labels of an object.
pub type Labels = std::collections::BTreeMap<String, String>;

/// Whether `labels` contain every pair of `selector`.
pub fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector
        .iter()
        .all(|(name, value)| labels.get(name) == Some(value))
}
