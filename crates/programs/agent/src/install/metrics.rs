//! Metrics of the installation, under the names of Istio's agent.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Labels of `istio_cni_installs_total`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct InstallResult {
    /// Result of the installation.
    pub result: &'static str,
}

/// Metrics of the installation.
#[derive(Clone, Debug, Default)]
pub struct InstallMetrics {
    /// 1 while starting pods use the plugin.
    pub ready: Gauge,
    /// Passes that changed something, or failed.
    pub installs: Family<InstallResult, Counter>,
}

impl InstallMetrics {
    /// Registers both metrics.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "istio_cni_install_ready",
            "Whether pods that start reach the CNI plugin",
            metrics.ready.clone(),
        );
        registry.register(
            "istio_cni_installs",
            "Installations of the CNI plugin by result",
            metrics.installs.clone(),
        );
        metrics
    }

    /// Counts an outcome.
    pub fn count(&self, result: &'static str) {
        self.installs.get_or_create(&InstallResult { result }).inc();
    }
}
