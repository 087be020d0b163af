//! Metrics of xDS streams and responses, with Istio's names where the meaning is the same.

use ambit_rt::metrics::{PlainCounter, start_series};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::resource::ResourceType;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabels {
    r#type: &'static str,
}

/// Metrics of the xDS server. A clone counts into the same metrics.
#[derive(Clone, Debug)]
pub struct XdsMetrics {
    pushes: Family<TypeLabels, PlainCounter>,
    pushed_resources: Family<TypeLabels, PlainCounter>,
    rejects: Family<TypeLabels, PlainCounter>,
    stale_nonces: PlainCounter,
    streams: Gauge,
}

impl Default for XdsMetrics {
    fn default() -> Self {
        let metrics = Self {
            pushes: Family::default(),
            pushed_resources: Family::default(),
            rejects: Family::default(),
            stale_nonces: PlainCounter::default(),
            streams: Gauge::default(),
        };
        let types = ResourceType::all().map(|of| TypeLabels {
            r#type: of.short_name(),
        });
        start_series(&metrics.rejects, types);
        metrics
    }
}

impl XdsMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("pilot_xds", "Open xDS streams", self.streams.clone());
        registry.register(
            "pilot_xds_pushes",
            "Responses sent, by type",
            self.pushes.clone(),
        );
        registry.register(
            "ambit_xds_resources_sent",
            "Resources sent, by type",
            self.pushed_resources.clone(),
        );
        registry.register(
            "pilot_total_xds_rejects",
            "Responses rejected by clients, by type",
            self.rejects.clone(),
        );
        registry.register(
            "pilot_xds_expired_nonce",
            "Answers to other than the last response",
            self.stale_nonces.clone(),
        );
    }

    pub(crate) fn record_push(&self, of: ResourceType, resources: usize) {
        let label = TypeLabels {
            r#type: of.short_name(),
        };
        self.pushes.get_or_create(&label).inc();
        let resources = u64::try_from(resources).unwrap_or(u64::MAX);
        self.pushed_resources
            .get_or_create(&label)
            .inc_by(resources);
    }

    pub(crate) fn record_rejection(&self, type_url: &str) {
        let r#type =
            ResourceType::from_type_url(type_url).map_or("unknown", ResourceType::short_name);
        self.rejects.get_or_create(&TypeLabels { r#type }).inc();
    }

    pub(crate) fn record_stale_nonce(&self) {
        self.stale_nonces.inc();
    }

    pub(crate) fn set_streams(&self, streams: usize) {
        self.streams.set(i64::try_from(streams).unwrap_or(i64::MAX));
    }
}
