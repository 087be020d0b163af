//! Label set of Istio's traffic metrics. Names and order are fixed, since Istio's dashboards use them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use ambit_model::{ArcStr, FailureReason, Identity, Service, Workload};
use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder};

/// Proxy that reports a connection (label `reporter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reporter {
    /// Proxy of the client.
    Source,
    /// Proxy of the server.
    Destination,
    /// Waypoint between source and destination.
    Waypoint,
}

impl Reporter {
    /// Returns the value of the label `reporter`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Waypoint => "waypoint",
        }
    }
}

impl EncodeLabelSet for Reporter {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        ("reporter", self.as_str()).encode(encoder.encode_label())
    }
}

/// Transport security of a connection (label `connection_security_policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SecurityPolicy {
    /// Mutual TLS between proxies.
    MutualTls,
    /// No mutual TLS.
    #[default]
    Unknown,
}

impl SecurityPolicy {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::MutualTls => "mutual_tls",
            Self::Unknown => "unknown",
        }
    }
}

/// Labels of a workload as source or destination. Empty ones are written as unknown. Created once per workload and
/// shared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the fields are those of `Workload`")]
pub struct WorkloadLabels {
    pub workload: ArcStr,
    pub namespace: ArcStr,
    pub canonical_service: ArcStr,
    pub canonical_revision: ArcStr,
    pub cluster: ArcStr,
    pub region: ArcStr,
    pub zone: ArcStr,
    /// Principal of the workload; of a source only if mTLS verified it, of a destination always.
    pub principal: Option<Identity>,
}

impl WorkloadLabels {
    /// Creates the labels of a workload with the principal to report.
    pub fn new(workload: &Workload, principal: Option<Identity>) -> Self {
        Self {
            workload: workload.workload_name.clone(),
            namespace: workload.namespace.clone(),
            canonical_service: workload.canonical_name.clone(),
            canonical_revision: workload.canonical_revision.clone(),
            cluster: workload.cluster_id.clone(),
            region: workload.locality.region.clone(),
            zone: workload.locality.zone.clone(),
            principal,
        }
    }

    /// Creates the labels of a workload as destination, with its own identity as principal.
    pub fn destination(workload: &Workload) -> Self {
        Self::new(workload, Some(workload.identity()))
    }

    pub(crate) fn without_principal(&self) -> Arc<Self> {
        Arc::new(Self {
            principal: None,
            ..self.clone()
        })
    }
}

/// Switch for principals in metric labels, which are named until [`Self::hide`] is called.
#[derive(Debug, Default)]
pub(crate) struct Principals {
    hidden: AtomicBool,
}

impl Principals {
    /// Reports every principal as "unknown" from now on.
    pub(crate) fn hide(&self) {
        self.hidden.store(true, Relaxed);
    }

    pub(crate) fn are_hidden(&self) -> bool {
        self.hidden.load(Relaxed)
    }
}

/// Destination service of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceName {
    /// Host name of the service.
    pub hostname: ArcStr,
    /// Namespace of the service.
    pub namespace: ArcStr,
    /// Name of the service's Kubernetes object.
    pub name: ArcStr,
}

impl From<&Service> for ServiceName {
    fn from(service: &Service) -> Self {
        Self {
            hostname: service.hostname.clone(),
            namespace: service.namespace.clone(),
            name: service.name.clone(),
        }
    }
}

/// Labels of all connections between the same workloads and service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TrafficLabels {
    /// Proxy that reports the connections.
    pub reporter: Reporter,
    /// Source workload; `None` if the client is not a workload.
    pub source: Option<Arc<WorkloadLabels>>,
    /// Destination workload; `None` if the server is not a workload.
    pub destination: Option<Arc<WorkloadLabels>>,
    /// Service that the client addressed, or to which the server's port belongs.
    pub service: Option<ServiceName>,
    /// Transport security of the connections.
    pub security: SecurityPolicy,
}

impl TrafficLabels {
    pub(crate) fn without_principals(&self) -> Self {
        let party = |party: &Option<Arc<WorkloadLabels>>| {
            party.as_deref().map(WorkloadLabels::without_principal)
        };
        Self {
            source: party(&self.source),
            destination: party(&self.destination),
            ..self.clone()
        }
    }
}

const UNKNOWN: &str = "unknown";

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { UNKNOWN } else { text }
}

/// Label sink that writes into a scrape.
pub(crate) struct LabelWriter<'a, 'b>(pub(crate) &'a mut LabelSetEncoder<'b>);

/// Sink that receives metric labels, for a scrape or a list.
pub(crate) trait LabelSink {
    fn put_label(&mut self, key: &str, value: &str) -> fmt::Result;
}

impl LabelSink for LabelWriter<'_, '_> {
    fn put_label(&mut self, key: &str, value: &str) -> fmt::Result {
        (key, or_unknown(value)).encode(self.0.encode_label())
    }
}

impl LabelSink for Vec<(String, String)> {
    fn put_label(&mut self, key: &str, value: &str) -> fmt::Result {
        self.push((key.to_owned(), or_unknown(value).to_owned()));
        Ok(())
    }
}

/// Encodes the labels of the source, which the families of traffic and of on-demand DNS share.
fn encode_source(labels: &mut impl LabelSink, source: Option<&WorkloadLabels>) -> fmt::Result {
    let part =
        |of: fn(&WorkloadLabels) -> &ArcStr| source.map_or(UNKNOWN, |party| of(party).as_str());
    labels.put_label("source_workload", part(|p| &p.workload))?;
    labels.put_label("source_canonical_service", part(|p| &p.canonical_service))?;
    labels.put_label("source_canonical_revision", part(|p| &p.canonical_revision))?;
    labels.put_label("source_workload_namespace", part(|p| &p.namespace))?;
    labels.put_label("source_principal", &principal_text(source))?;
    labels.put_label("source_app", part(|p| &p.canonical_service))?;
    labels.put_label("source_version", part(|p| &p.canonical_revision))?;
    labels.put_label("source_cluster", part(|p| &p.cluster))
}

fn principal_text(party: Option<&WorkloadLabels>) -> String {
    party
        .and_then(|party| party.principal.as_ref())
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// Encodes the labels that TCP and HTTP families share: reporter, source, destination and service.
pub(crate) fn encode_traffic_labels(
    labels: &mut impl LabelSink,
    traffic: &TrafficLabels,
) -> fmt::Result {
    let (source, destination) = (traffic.source.as_deref(), traffic.destination.as_deref());
    labels.put_label("reporter", traffic.reporter.as_str())?;
    encode_source(labels, source)?;
    let part = |of: fn(&WorkloadLabels) -> &ArcStr| {
        destination.map_or(UNKNOWN, |party| of(party).as_str())
    };
    let service = traffic.service.as_ref();
    labels.put_label(
        "destination_service",
        service.map_or(UNKNOWN, |s| &s.hostname),
    )?;
    labels.put_label(
        "destination_service_namespace",
        service.map_or(UNKNOWN, |s| &s.namespace),
    )?;
    labels.put_label(
        "destination_service_name",
        service.map_or(UNKNOWN, |s| &s.name),
    )?;
    labels.put_label("destination_workload", part(|p| &p.workload))?;
    labels.put_label(
        "destination_canonical_service",
        part(|p| &p.canonical_service),
    )?;
    labels.put_label(
        "destination_canonical_revision",
        part(|p| &p.canonical_revision),
    )?;
    labels.put_label("destination_workload_namespace", part(|p| &p.namespace))?;
    labels.put_label("destination_principal", &principal_text(destination))?;
    labels.put_label("destination_app", part(|p| &p.canonical_service))?;
    labels.put_label("destination_version", part(|p| &p.canonical_revision))?;
    labels.put_label("destination_cluster", part(|p| &p.cluster))
}

/// Label set of one sample: traffic labels and the response flag.
pub(crate) struct LabelsWithReason<'a>(pub(crate) &'a TrafficLabels, pub(crate) FailureReason);

impl EncodeLabelSet for LabelsWithReason<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        self.put_labels(&mut LabelWriter(encoder))
    }
}

impl LabelsWithReason<'_> {
    /// Encodes all labels of a sample.
    pub(crate) fn put_labels(&self, labels: &mut impl LabelSink) -> fmt::Result {
        let Self(traffic, flag) = self;
        encode_traffic_labels(labels, traffic)?;
        labels.put_label("request_protocol", "tcp")?;
        labels.put_label("response_flags", flag.as_str())?;
        labels.put_label("connection_security_policy", traffic.security.as_str())?;
        let (source, destination) = (traffic.source.as_deref(), traffic.destination.as_deref());
        let is_nobody = source.is_none() && destination.is_none();
        // Envoy, and so Istio's waypoint, reports no localities.
        if is_nobody || traffic.reporter == Reporter::Waypoint {
            return Ok(());
        }
        let locality = |party: Option<&WorkloadLabels>, of: fn(&WorkloadLabels) -> &ArcStr| {
            party.map(|party| of(party).clone()).unwrap_or_default()
        };
        labels.put_label("source_region", &locality(source, |p| &p.region))?;
        labels.put_label("source_zone", &locality(source, |p| &p.zone))?;
        labels.put_label("destination_region", &locality(destination, |p| &p.region))?;
        labels.put_label("destination_zone", &locality(destination, |p| &p.zone))
    }
}

/// Labels of the on-demand DNS family: the source workload, and the host name that was resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OnDemandDnsLabels {
    pub(crate) source: Arc<WorkloadLabels>,
    pub(crate) hostname: ArcStr,
}

impl EncodeLabelSet for OnDemandDnsLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        let mut labels = LabelWriter(encoder);
        encode_source(&mut labels, Some(&self.source))?;
        labels.put_label("hostname", &self.hostname)
    }
}
