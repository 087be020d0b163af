//! What metrics say of the policies.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::gauge::ConstGauge,
};

use crate::state::SharedState;

/// Looks at the policies whenever the metrics are read.
#[derive(Debug)]
pub(crate) struct PolicyCollector(pub(crate) SharedState);

impl Collector for PolicyCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let count = u64::try_from(self.0.policies().not_understood()).unwrap_or(u64::MAX);
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
