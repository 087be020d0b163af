//! Metrics of the exporter itself, which are registered only if it exports something.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
};

use crate::{queue::LogQueue, settings::Signal};

/// Counters of one signal's exports, by outcome.
#[derive(Debug, Default)]
pub(crate) struct ExportCounts {
    pub(crate) sent: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) rejected: AtomicU64,
}

/// Counters of the exports of metrics and logs.
#[derive(Clone, Debug)]
pub(crate) struct OwnMetrics {
    pub(crate) counts: Vec<(Signal, Arc<ExportCounts>)>,
    pub(crate) logs: Option<LogQueue>,
}

impl Collector for OwnMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Messages to the OpenTelemetry collector, by signal (metrics, logs) and outcome (sent, failed)";
        let mut exports =
            encoder.encode_descriptor("ambit_otlp_exports", help, None, MetricType::Counter)?;
        for (signal, counts) in &self.counts {
            for (outcome, count) in [("sent", &counts.sent), ("failed", &counts.failed)] {
                let labels = [("signal", signal.metric_label()), ("outcome", outcome)];
                let count = ConstCounter::new(count.load(Relaxed));
                count.encode(exports.encode_family(&labels)?)?;
            }
        }
        let help = "Data points and log records that the OpenTelemetry collector rejected from messages it took";
        let mut rejected =
            encoder.encode_descriptor("ambit_otlp_rejected", help, None, MetricType::Counter)?;
        for (signal, counts) in &self.counts {
            let count = ConstCounter::new(counts.rejected.load(Relaxed));
            count.encode(rejected.encode_family(&[("signal", signal.metric_label())])?)?;
        }
        let Some(logs) = &self.logs else {
            return Ok(());
        };
        let dropped = encoder.encode_descriptor(
            "ambit_otlp_log_records_dropped",
            "Log records that were not exported, since too many waited or the collector did not take them",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(logs.dropped()).encode(dropped)
    }
}
