//! Metrics of the certificate authority: results of certificate requests, and the expiry of its
//! root.

use std::{
    sync::atomic::AtomicU64,
    time::{SystemTime, UNIX_EPOCH},
};

use ambit_rt::metrics::{PlainCounter, start_series};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// Outcomes of certificate requests.
const CSR_OUTCOMES: [&str; 5] = ["received", "issued", "failed", "denied", "unauthenticated"];

/// Metrics of the certificate authority. A clone counts into the same metrics.
#[derive(Clone, Debug)]
pub struct CaMetrics {
    certificate_requests: Family<OutcomeLabels, PlainCounter>,
    root_expiry: Gauge<f64, AtomicU64>,
}

impl Default for CaMetrics {
    fn default() -> Self {
        let metrics = Self {
            certificate_requests: Family::default(),
            root_expiry: Gauge::default(),
        };
        let outcomes = CSR_OUTCOMES.map(|outcome| OutcomeLabels { outcome });
        start_series(&metrics.certificate_requests, outcomes);
        metrics
    }
}

impl CaMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "citadel_server_csr_count",
            "Certificate requests, by outcome",
            self.certificate_requests.clone(),
        );
        registry.register(
            "citadel_server_root_cert_expiry_timestamp",
            "When the root expires, in seconds since 1970",
            self.root_expiry.clone(),
        );
    }

    /// Counts a certificate request under one of [`CSR_OUTCOMES`].
    pub(crate) fn count_csr(&self, outcome: &'static str) {
        self.certificate_requests
            .get_or_create(&OutcomeLabels { outcome })
            .inc();
    }

    pub(crate) fn set_root_expiry(&self, at: SystemTime) {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.root_expiry.set(since.as_secs_f64());
    }
}
