//! Metrics of a process's certificates: numbers of identities by state, and the earliest expiry.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::Certificates;

/// Collector that encodes [`CertificateCounts`] at each scrape.
#[derive(Debug)]
pub struct CertificateMetrics(pub Certificates);

impl Collector for CertificateMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counts = self.0.counts(SystemTime::now());
        let mut states = encoder.encode_descriptor(
            "ambit_certificates",
            "Identities of this process by the state of their certificates",
            None,
            MetricType::Gauge,
        )?;
        for (state, count) in [
            ("available", counts.available),
            ("overdue", counts.overdue),
            ("initializing", counts.initializing),
            ("unavailable", counts.unavailable),
        ] {
            ConstGauge::new(count).encode(states.encode_family(&[("state", state)])?)?;
        }
        let Some(expiry) = counts.earliest_expiry else {
            return Ok(());
        };
        let expiry = expiry.duration_since(UNIX_EPOCH).unwrap_or_default();
        let metric = encoder.encode_descriptor(
            "ambit_certificate_earliest_expiry_timestamp_seconds",
            "When the first of this process's certificates expires, in seconds since 1970",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(expiry.as_secs_f64()).encode(metric)
    }
}
