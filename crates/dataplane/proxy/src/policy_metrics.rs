//! Metrics of the policies that the proxy has received.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::gauge::ConstGauge,
};

use crate::state::SharedState;

/// Prometheus collector that counts the policies in the mesh state at each scrape.
#[derive(Debug)]
pub struct PolicyCollector(pub SharedState);

impl Collector for PolicyCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let count = u64::try_from(self.0.policies().invalid_policies()).unwrap_or(u64::MAX);
        let gauge = ConstGauge::new(count);
        let encoder = encoder.encode_descriptor(
            "ambit_policies_not_understood",
            "The number of policies that are not understood in full, in whose place a deny-all is",
            None,
            gauge.metric_type(),
        )?;
        gauge.encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use ambit_model::{Authorization, PolicyKey, Scope};
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;
    use crate::{
        config_dump::{DumpExtras, config_dump},
        state::{MeshUpdate, StateConfig},
    };

    #[test]
    fn a_policy_that_is_not_understood_is_counted_and_dumped_with_the_reason() {
        let state = SharedState::new(StateConfig::default());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(PolicyCollector(state.clone())));
        let count = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let line = text.lines().find(|line| line.starts_with("ambit_policies"));
            line.unwrap().to_owned()
        };
        assert_eq!(count(), "ambit_policies_not_understood 0");
        let key = PolicyKey::from_resource_name("ns/odd");
        let odd =
            Authorization::substitute(key, Scope::Global, false, "field 99 is unknown".into());
        state.apply(&mut vec![MeshUpdate::Policy(odd)]);
        assert_eq!(count(), "ambit_policies_not_understood 1");
        let dump = config_dump(&state, &DumpExtras::default()).unwrap();
        let dump: serde_json::Value = serde_json::from_slice(&dump).unwrap();
        assert_eq!(dump["policies"][0]["notUnderstood"], "field 99 is unknown");
        state.apply(&mut vec![MeshUpdate::PolicyRemoved("ns/odd".into())]);
        assert_eq!(count(), "ambit_policies_not_understood 0");
    }
}
