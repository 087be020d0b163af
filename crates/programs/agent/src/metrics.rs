//! Metrics of the agent, under the names of Istio's agent where it has them.

use ambit_zds::PodUid;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::{enrolment::PodCounts, source::SourceEvent};

/// Labels of `istio_cni_plugin_requests_total`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResponseCode {
    /// HTTP status code of the response.
    pub response_code: u16,
}

/// Labels of `nodeagent_reconcile_events_total`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EventType {
    /// Kind of the event: `update` or `delete`.
    pub r#type: &'static str,
}

/// Labels of `ambit_agent_steps_total`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StepOutcome {
    /// Name of the step, see `Step::name`.
    pub step: &'static str,
    /// Outcome of the step: `ok` or `failed`.
    pub result: &'static str,
}

/// Labels of `ambit_agent_earlier_connections_total`, the number of pre-capture connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PreCaptureOutcome {
    /// Outcome of closing the connection: `closed` or `failed`.
    pub result: &'static str,
}

/// All metrics of the agent.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Number of plugin calls, by the status code of the response.
    pub plugin_requests: Family<ResponseCode, Counter>,
    /// Number of pod and namespace events from the source.
    pub reconcile_events: Family<EventType, Counter>,
    /// Number of connected proxies.
    pub proxies: Gauge,
    /// Number of steps carried out, by outcome.
    pub steps: Family<StepOutcome, Counter>,
    /// Duration of plugin calls that ended with the pod captured, in seconds.
    pub enrolment_seconds: Histogram,
    /// Number of pre-capture connections of pods that were captured late, by outcome of closing them.
    pub pre_capture_connections: Family<PreCaptureOutcome, Counter>,
    /// Number of connections of the node's processes that were exempt from redirection as kubelet's probes.
    pub probe_connections: Counter,
    desired: Gauge,
    captured: Gauge,
    failing: Gauge,
    warned: Gauge,
}

impl Metrics {
    /// Creates all metrics and registers them.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            plugin_requests: Family::default(),
            reconcile_events: Family::default(),
            proxies: Gauge::default(),
            steps: Family::default(),
            enrolment_seconds: Histogram::new([
                0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
            ]),
            pre_capture_connections: Family::default(),
            probe_connections: Counter::default(),
            desired: Gauge::default(),
            captured: Gauge::default(),
            failing: Gauge::default(),
            warned: Gauge::default(),
        };
        let m = metrics.clone();
        registry.register(
            "istio_cni_plugin_requests",
            "Calls of the plugin",
            m.plugin_requests,
        );
        registry.register(
            "nodeagent_reconcile_events",
            "Events taken",
            m.reconcile_events,
        );
        registry.register("ztunnel_connected", "Node proxies connected", m.proxies);
        registry.register("ambit_agent_steps", "Enrolment steps carried out", m.steps);
        registry.register(
            "ambit_agent_enrolment_seconds",
            "Duration of plugin calls that ended with the pod captured",
            m.enrolment_seconds,
        );
        registry.register(
            "ambit_agent_earlier_connections",
            "Plaintext connections that pods had which should have started captured and did not, by whether they could be closed",
            m.pre_capture_connections,
        );
        registry.register(
            "ambit_agent_probe_connections",
            "Connections of the node's own processes that passed pods' proxies, policies and waypoints as kubelet's probes",
            m.probe_connections,
        );
        registry.register(
            "ambit_agent_pods_wanted",
            "Pods of the mesh on this node",
            m.desired,
        );
        registry.register("ambit_agent_pods_captured", "Pods captured", m.captured);
        registry.register(
            "ambit_agent_pods_failing",
            "Pods whose last step failed",
            m.failing,
        );
        registry.register(
            "ambit_agent_pods_warned",
            "Pods captured with a warning, which their reports have",
            m.warned,
        );
        metrics
    }

    /// Sets the gauges of pods by state.
    pub fn set_counts(&self, counts: PodCounts) {
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        self.desired.set(number(counts.desired));
        self.captured.set(number(counts.captured));
        self.failing.set(number(counts.failing));
        self.warned.set(number(counts.warned));
    }

    /// Counts a pod or namespace event of the source.
    pub fn count_event(&self, event: &SourceEvent) {
        let r#type = match event {
            SourceEvent::Pod(_) | SourceEvent::Namespace(..) => "update",
            SourceEvent::PodGone(_) | SourceEvent::NamespaceGone(_) => "delete",
            SourceEvent::Recorded(_) | SourceEvent::Synced => return,
        };
        self.reconcile_events
            .get_or_create(&EventType { r#type })
            .inc();
    }

    /// Counts a step, and logs it if it failed.
    pub fn count_step(&self, uid: &PodUid, step: &'static str, result: &Result<(), String>) {
        let outcome = StepOutcome {
            step,
            result: if result.is_ok() { "ok" } else { "failed" },
        };
        self.steps.get_or_create(&outcome).inc();
        if let Err(error) = result {
            tracing::warn!(%uid, step, error, "an enrolment step failed and is tried again");
        }
    }
}
