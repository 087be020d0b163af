//! Metrics of the memory budget of callers.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::waypoint::Waypoint;

/// Collector of two gauges: bytes charged to callers' memory budgets, and their limit.
#[derive(Debug)]
pub struct MemoryGauge(pub Arc<Waypoint>);

impl Collector for MemoryGauge {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (held, limit) = self.0.memory_budget();
        let gauges = [
            (
                "ambit_memory_budget_held_bytes",
                "Bytes that callers make the waypoint hold, as their budgets are charged",
                held,
            ),
            (
                "ambit_memory_budget_bytes",
                "Bytes that all callers together may make the waypoint hold",
                limit,
            ),
        ];
        for (name, help, bytes) in gauges {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(bytes).unwrap_or(i64::MAX)).encode(metric)?;
        }
        Ok(())
    }
}
