//! Metrics of the control plane, with Istio's names where the meaning is the same.

use std::fmt;

use ambit_ca::CaMetrics;
use ambit_caller_auth::CallerMetrics;
use ambit_rt::metrics::PlainCounter;
use ambit_xds_server::{ResourceType, XdsMetrics};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabels {
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SeverityLabels {
    severity: &'static str,
}

/// Metrics of the control plane, with the registry that they are exported from.
pub struct Metrics {
    registry: Mutex<Registry>,
    /// Metrics of the xDS server.
    pub xds: XdsMetrics,
    records: Family<TypeLabels, Gauge>,
    problems: Family<SeverityLabels, Gauge>,
    object_events: PlainCounter,
    changed_records: PlainCounter,
    convergence: Histogram,
    /// Metrics of the CA.
    pub ca: CaMetrics,
    /// Metrics of callers' authentication.
    pub callers: CallerMetrics,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let buckets = [
            0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0,
        ];
        let metrics = Self {
            registry: Mutex::new(Registry::default()),
            xds: XdsMetrics::default(),
            records: Family::default(),
            problems: Family::default(),
            object_events: PlainCounter::default(),
            changed_records: PlainCounter::default(),
            convergence: Histogram::new(buckets),
            ca: CaMetrics::default(),
            callers: CallerMetrics::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&self) {
        let registry = &mut *self.registry.lock();
        self.xds.register(registry);
        registry.register(
            "ambit_records",
            "Records of the mesh, by type",
            self.records.clone(),
        );
        registry.register(
            "ambit_object_problems",
            "Problems of objects that stand now",
            self.problems.clone(),
        );
        registry.register(
            "pilot_k8s_cfg_events",
            "Changes of objects",
            self.object_events.clone(),
        );
        registry.register(
            "ambit_records_changed",
            "Changes of records",
            self.changed_records.clone(),
        );
        registry.register(
            "pilot_proxy_convergence_time",
            "Seconds from a change of objects until its records are offered to clients",
            self.convergence.clone(),
        );
        self.ca.register(registry);
        self.callers.register(registry);
        ambit_rt::metrics::register_process(registry);
        ambit_rt::metrics::register_build(registry, "pilot", env!("CARGO_PKG_VERSION"));
    }

    /// Registers the metrics of the OpenTelemetry export, if there is one.
    pub fn register_exporter(&self, exporter: &ambit_otlp_export::Exporter) {
        exporter.register(&mut self.registry.lock());
    }

    /// Returns the metrics in the exposition format.
    ///
    /// # Errors
    ///
    /// When a metric cannot be formatted.
    pub fn exposition(&self) -> Result<String, fmt::Error> {
        ambit_rt::metrics::exposition(&self.registry.lock())
    }

    /// Responds to a Prometheus scrape.
    pub fn respond(&self, request: &ambit_rt::http::Request) -> ambit_rt::http::Response {
        ambit_rt::metrics::serve_metrics(&self.registry.lock(), request)
    }

    pub(crate) fn count_changed_objects(&self, events: usize) {
        self.object_events
            .inc_by(u64::try_from(events).unwrap_or(u64::MAX));
    }

    pub(crate) fn record_publication(
        &self,
        changed: usize,
        after: std::time::Duration,
        records: impl Iterator<Item = (ResourceType, usize)>,
    ) {
        self.changed_records
            .inc_by(u64::try_from(changed).unwrap_or(u64::MAX));
        self.convergence.observe(after.as_secs_f64());
        for (of, count) in records {
            let r#type = of.short_name();
            self.records
                .get_or_create(&TypeLabels { r#type })
                .set(to_gauge_value(count));
        }
    }

    pub(crate) fn set_problems(&self, errors: usize, warnings: usize) {
        self.problems
            .get_or_create(&SeverityLabels { severity: "error" })
            .set(to_gauge_value(errors));
        self.problems
            .get_or_create(&SeverityLabels {
                severity: "warning",
            })
            .set(to_gauge_value(warnings));
    }
}

fn to_gauge_value(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
