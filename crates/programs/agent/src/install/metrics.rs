//! Metrics of the installation, under the names of Istio's agent.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Labels of `istio_cni_installs_total`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct InstallResult {
    /// Result of the installation: `SUCCESS`, or the code of the failure.
    pub result: &'static str,
}

/// Metrics of the installation.
#[derive(Clone, Debug, Default)]
pub struct InstallMetrics {
    /// Gauge that is 1 while the runtime calls the plugin for starting pods.
    pub ready: Gauge,
    /// Number of checks that changed the installation or failed, by result.
    pub installs: Family<InstallResult, Counter>,
}

impl InstallMetrics {
    /// Creates both metrics and registers them.
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

    /// Counts a check of the installation with this result.
    pub fn count(&self, result: &'static str) {
        self.installs.get_or_create(&InstallResult { result }).inc();
    }
}
