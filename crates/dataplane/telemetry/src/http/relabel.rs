//! Configured overrides of metrics (Istio's Telemetry): disabled families, and removed or added labels.

use ambit_model::{ArcStr, TelemetryFamily};

/// Overrides of the metric families for some requests or connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MetricOverrides {
    /// Overrides by index of the family in [`TelemetryFamily::ALL`].
    families: [FamilyOverrides; TelemetryFamily::ALL.len()],
}

/// Overrides of one metric family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FamilyOverrides {
    /// Whether the family is disabled.
    pub disabled: bool,
    /// Overridden labels, each with the index of its value in [`RelabeledValues::values`]; `None` removes the label.
    pub labels: Vec<(ArcStr, Option<usize>)>,
}

/// Label overrides of one request or connection, with their values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RelabeledValues {
    /// Configured metric overrides that apply to the request or connection.
    pub overrides: std::sync::Arc<MetricOverrides>,
    /// Values of added or changed labels, by the index that [`FamilyOverrides::labels`] refers to.
    pub values: Vec<String>,
}

fn family_index(of: TelemetryFamily) -> usize {
    let all = TelemetryFamily::ALL.iter();
    all.take_while(|family| **family != of).count()
}

impl MetricOverrides {
    /// Sets the overrides of one metric family.
    pub fn set(&mut self, of: TelemetryFamily, rule: FamilyOverrides) {
        if let Some(family) = self.families.get_mut(family_index(of)) {
            *family = rule;
        }
    }
}

impl RelabeledValues {
    /// Applies the overrides to the labels of a sample in a family; returns `None` if the family is disabled.
    pub(crate) fn apply(
        &self,
        of: TelemetryFamily,
        mut labels: Vec<(String, String)>,
    ) -> Option<Vec<(String, String)>> {
        let rule = self.overrides.families.get(family_index(of))?;
        if rule.disabled {
            return None;
        }
        for (name, value) in &rule.labels {
            labels.retain(|(other, _)| *other != name.as_str());
            if let Some(value) = value.and_then(|index| self.values.get(index)) {
                labels.push((name.to_string(), value.clone()));
            }
        }
        Some(labels)
    }
}
