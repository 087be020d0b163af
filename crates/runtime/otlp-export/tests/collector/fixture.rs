//! Program that exports its metrics, for the tests.

use std::{sync::Arc, time::Duration};

use ambit_otlp_export::{Exporter, RunningExporter};
use ambit_rt::{Env, http::Request};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::ConstGauge, histogram::Histogram},
    registry::Registry,
};
use prost::Message as _;

use crate::scripted::TEST_TIMEOUT;

/// Builds a registry with metrics of each type that programs have.
fn registry() -> Registry {
    let mut registry = Registry::default();
    let calls = Family::<[(String, String); 2], Counter>::default();
    registry.register("calls", "Calls", calls.clone());
    for (from, many) in [("a", 3), ("b \"quoted\"\n", 5)] {
        let labels = [("from".into(), from.into()), ("to".into(), "c".into())];
        calls.get_or_create(&labels).inc_by(many);
    }
    registry.register("seconds_busy", "Busy", ConstGauge::new(1.5));
    registry.register("open", "Open", ConstGauge::new(-3_i64));
    let took = Histogram::new([0.005, 1.0, 10.0]);
    for value in [0.001, 0.5, 0.5, 99.0] {
        took.observe(value);
    }
    registry.register("took", "Time", took);
    registry
}

/// Simulated program with a metrics registry and its exporter.
pub(crate) struct Program {
    pub(crate) registry: Arc<Registry>,
    pub(crate) exporter: RunningExporter,
}

impl Program {
    pub(crate) fn start(endpoint: &str, more: &[(&str, &str)]) -> Self {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            ("OTEL_LOGS_EXPORTER", "none"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "20"),
        ];
        let variables = variables.into_iter().chain(more.iter().copied());
        let env = Env::from_pairs(variables);
        let exporter = Exporter::from_env(&env, "ambit-test").unwrap();
        let (registry, exporting) = exporter.start_with(registry());
        Self {
            registry,
            exporter: exporting,
        }
    }

    /// Returns the metrics as Prometheus scrapes them.
    pub(crate) async fn scrape(&self) -> String {
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = "/metrics".parse().unwrap();
        let response = ambit_rt::metrics::serve_metrics(&self.registry, &request);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    /// Waits until a scrape of the program contains a text.
    pub(crate) async fn wait_until_shown(&self, text: &str) {
        self.wait_until(text, |scrape| scrape.contains(text)).await;
    }

    /// Waits until the counter with a name and labels is above zero.
    pub(crate) async fn wait_until_counted(&self, counter: &str) {
        let zero = format!("{counter} 0\n");
        let is_counted = |scrape: &str| scrape.contains(counter) && !scrape.contains(&zero);
        self.wait_until(counter, is_counted).await;
    }

    async fn wait_until(&self, what: &str, is_shown: impl Fn(&str) -> bool) {
        let mut looks = tokio::time::interval(Duration::from_millis(5));
        let shown = async {
            while !is_shown(&self.scrape().await) {
                looks.tick().await;
            }
        };
        let shown = tokio::time::timeout(TEST_TIMEOUT, shown).await;
        assert!(shown.is_ok(), "{what} in {}", self.scrape().await);
    }
}

/// Counter of the export requests that the collector accepted.
pub(crate) const SENT_COUNTER: &str =
    "ambit_otlp_exports_total{signal=\"metrics\",outcome=\"sent\"}";

pub(crate) fn decode_request(body: &[u8]) -> ExportMetricsServiceRequest {
    ExportMetricsServiceRequest::decode(body).unwrap()
}

/// Returns the lines of a scrape without comments and the exporter's own metrics, which change with
/// each export.
pub(crate) fn comparable_lines(scrape: &str) -> Vec<String> {
    let lines = scrape.lines();
    let lines = lines.filter(|line| !line.starts_with('#') && !line.starts_with("ambit_otlp_"));
    let mut lines: Vec<_> = lines.map(str::to_owned).collect();
    lines.sort();
    lines
}
