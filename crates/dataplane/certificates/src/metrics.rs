//! Metrics of a process's certificates: how many identities have one, and when the first of them expires.

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

/// Identities of a process by the state of their certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CertificateCounts {
    /// Identities with a certificate that need not be renewed yet.
    pub available: i64,
    /// Identities with a certificate that is still valid but past the time of its renewal.
    pub overdue: i64,
    /// Identities whose first certificate is being fetched.
    pub initializing: i64,
    /// Identities without a valid certificate: the CA gave none, or the last one has expired.
    pub unavailable: i64,
    /// The earliest end of a certificate's validity.
    pub earliest_expiry: Option<SystemTime>,
}

/// Writes [`CertificateCounts`] at each scrape.
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
