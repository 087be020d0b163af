//! Telemetry configuration from the control plane (`Telemetry` objects), compiled once: access logs, traces and metric
//! labels of requests and connections.

mod line;
mod queue;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use ambit_model::{
    ArcStr, NamespacedHostname, TelemetryFormat, TelemetryLog, TelemetryScope, TelemetryTagValue,
    TelemetryTracing, WaypointTelemetry,
};
use ambit_observation::{
    Expression, ExpressionError, FormatError, ISTIO_TEXT_FORMAT, LogFormat, NeededHeaders,
    RequestObservation,
    span::{self, SpanTag, TagSource},
};
use ambit_telemetry::http::{FamilyOverrides, MetricOverrides, RelabeledValues};
use http::HeaderName;
use serde_json::Value;

use crate::record_store::{RecordStore, RemovedRecord, to_json};

pub(crate) use queue::{ExportItem, ExportQueue, Exporters, NewQueue};

/// Compiled telemetry configuration of a service, a namespace or the waypoint.
#[derive(Debug)]
pub(crate) struct TelemetryConfig {
    pub(crate) tracing: Option<Tracing>,
    /// Access logs, which replace the waypoint's default one; `None` keeps the default.
    pub(crate) logs: Option<Vec<AccessLog>>,
    labels: Option<LabelOverrides>,
    /// Request and response headers that access logs and span tags read.
    pub(crate) needed_headers: NeededHeaders,
}

/// Compiled tracing configuration: sampling, tags and the collector's queue.
#[derive(Debug)]
pub(crate) struct Tracing {
    pub(crate) settings: TelemetryTracing,
    pub(crate) tags: Vec<SpanTag>,
    pub(crate) queue: ExportQueue,
}

/// Access log of a telemetry configuration: filter, format and destination.
#[derive(Debug)]
pub(crate) struct AccessLog {
    filter: Option<Expression>,
    format: LogFormat,
    /// OpenTelemetry collector's queue and the log name sent to it; `None` for an access log on standard output.
    collector: Option<(ExportQueue, ArcStr)>,
}

impl AccessLog {
    /// Whether the log's filter matches a request or connection.
    fn matches(&self, observation: &RequestObservation<'_>) -> bool {
        let filter = self.filter.as_ref();
        filter.is_none_or(|filter| filter.matches(observation))
    }
}

/// Overrides of metric labels, by expressions over request attributes.
#[derive(Debug)]
struct LabelOverrides {
    metric_overrides: Arc<MetricOverrides>,
    expressions: Vec<Expression>,
}

/// Maximum length of a label value, in bytes.
const MAX_LABEL_VALUE_BYTES: usize = 256;

/// Invalid telemetry setting from the control plane.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TelemetryConfigError {
    #[error("the expression {0:?}: {1}")]
    Expression(ArcStr, #[source] ExpressionError),
    #[error("a format: {0}")]
    Format(#[from] FormatError),
    #[error("the format is no JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0:?} is no header's name")]
    InvalidHeaderName(ArcStr),
}

fn parse_expression(text: &ArcStr) -> Result<Expression, TelemetryConfigError> {
    Expression::new(text).map_err(|error| TelemetryConfigError::Expression(text.clone(), error))
}

impl TelemetryConfig {
    /// Compiles the record of a telemetry configuration.
    pub(crate) fn new(
        sent: WaypointTelemetry,
        to: &Exporters,
    ) -> Result<Self, TelemetryConfigError> {
        let mut wants = NeededHeaders::default();
        let tracing = sent
            .tracing
            .map(|sent| compile_tracing(sent, to, &mut wants));
        let logs = sent.logs.map(|all| {
            let all = all
                .into_iter()
                .map(|sent| compile_log(sent, to, &mut wants));
            all.collect::<Result<Vec<_>, _>>()
        });
        let (tracing, logs) = (tracing.transpose()?, logs.transpose()?);
        let (mut relabel, mut values) = (MetricOverrides::default(), Vec::new());
        let is_changed = !sent.metrics.is_empty();
        for metric in sent.metrics {
            let mut labels = Vec::new();
            for (name, value) in metric.labels {
                let place = match value {
                    Some(text) => {
                        let value = parse_expression(&text)?;
                        wants.merge(&value.needed_headers());
                        values.push(value);
                        Some(values.len() - 1)
                    }
                    None => None,
                };
                labels.push((name, place));
            }
            let disabled = metric.disabled;
            relabel.set(metric.family, FamilyOverrides { disabled, labels });
        }
        let relabel = Arc::new(relabel);
        Ok(Self {
            tracing,
            logs,
            labels: is_changed.then_some(LabelOverrides {
                metric_overrides: relabel,
                expressions: values,
            }),
            needed_headers: wants,
        })
    }

    /// Whether none of the access logs is written to standard output.
    pub(crate) fn has_no_stdout_log(&self) -> bool {
        let logs = self.logs.as_ref();
        logs.is_some_and(|logs| logs.iter().all(|log| log.collector.is_some()))
    }

    /// Evaluates the overridden metric labels of a request or connection; `None` without overrides.
    pub(crate) fn labels(&self, observation: &RequestObservation<'_>) -> Option<RelabeledValues> {
        let labels = self.labels.as_ref()?;
        let value = |value: &Expression| {
            let mut text = value
                .evaluate_text(observation)
                .unwrap_or_else(|| "unknown".to_owned());
            let mut end = MAX_LABEL_VALUE_BYTES.min(text.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text
        };
        Some(RelabeledValues {
            overrides: labels.metric_overrides.clone(),
            values: labels.expressions.iter().map(value).collect(),
        })
    }
}

fn compile_tracing(
    settings: TelemetryTracing,
    exporters: &Exporters,
    needed_headers: &mut NeededHeaders,
) -> Result<Tracing, TelemetryConfigError> {
    needed_headers.merge(&span::span_headers());
    let mut tags = Vec::new();
    for tag in &settings.tags {
        let source = match &tag.value {
            TelemetryTagValue::Literal(text) => TagSource::Fixed(text.clone()),
            TelemetryTagValue::Environment(name, default) => TagSource::Fixed(
                exporters
                    .environment(name)
                    .unwrap_or_else(|| default.clone()),
            ),
            TelemetryTagValue::Header(name, default) => {
                let header = HeaderName::from_bytes(name.as_bytes());
                let header =
                    header.map_err(|_| TelemetryConfigError::InvalidHeaderName(name.clone()))?;
                let default = Some(default.clone()).filter(|text| !text.is_empty());
                TagSource::Header(header, default)
            }
            TelemetryTagValue::Formatter(text) => TagSource::Format(LogFormat::parse_text(text)?),
        };
        let tag = SpanTag {
            name: tag.name.clone(),
            source,
        };
        needed_headers.merge(&tag.needed_headers());
        tags.push(tag);
    }
    Ok(Tracing {
        queue: exporters.queue(&settings.collector),
        settings,
        tags,
    })
}

fn compile_log(
    settings: TelemetryLog,
    exporters: &Exporters,
    needed_headers: &mut NeededHeaders,
) -> Result<AccessLog, TelemetryConfigError> {
    let format = match &settings.format {
        TelemetryFormat::Default => LogFormat::parse_text(ISTIO_TEXT_FORMAT)?,
        TelemetryFormat::Text(text) => LogFormat::parse_text(text)?,
        TelemetryFormat::Json(text) => LogFormat::from_json(&serde_json::from_str(text)?)?,
    };
    let filter = settings.filter.as_ref().map(parse_expression).transpose()?;
    needed_headers.merge(&format.needed_headers());
    if let Some(filter) = &filter {
        needed_headers.merge(&filter.needed_headers());
    }
    let collector = settings.collector.as_ref();
    Ok(AccessLog {
        filter,
        format,
        collector: collector.map(|collector| (exporters.queue(collector), settings.name.clone())),
    })
}

/// Telemetry configurations by target.
#[derive(Debug, Default)]
pub(crate) struct TelemetryConfigs {
    waypoint: Option<Arc<TelemetryConfig>>,
    namespaces: HashMap<ArcStr, Arc<TelemetryConfig>>,
    services: HashMap<NamespacedHostname, Arc<TelemetryConfig>>,
    /// Target of each record, by xDS resource name.
    targets: HashMap<ArcStr, TelemetryScope>,
    /// Published records, kept for `/config_dump` because compiled configurations cannot be dumped.
    records: BTreeMap<ArcStr, WaypointTelemetry>,
    exporters: Arc<Exporters>,
}

impl RecordStore for TelemetryConfigs {
    type Record = WaypointTelemetry;

    /// Whether requests wait for the initial telemetry records. They do not, since requests can be served without
    /// telemetry.
    const BLOCKS_READINESS: bool = false;

    fn put(&mut self, resource: ArcStr, record: WaypointTelemetry) {
        let target = record.scope.clone();
        let kept = record.clone();
        let config = match TelemetryConfig::new(record, &self.exporters) {
            Ok(config) => Arc::new(config),
            Err(error) => {
                tracing::warn!(%resource, %error, "telemetry that cannot be used, the configuration before it stays");
                return;
            }
        };
        self.records.insert(resource.clone(), kept);
        self.targets.insert(resource, target.clone());
        match target {
            TelemetryScope::Waypoint => self.waypoint = Some(config),
            TelemetryScope::Namespace(name) => drop(self.namespaces.insert(name, config)),
            TelemetryScope::Service(name) => drop(self.services.insert(name, config)),
        }
    }

    fn remove(&mut self, resource: &ArcStr) -> Option<RemovedRecord> {
        self.records.remove(resource);
        match self.targets.remove(resource)? {
            TelemetryScope::Waypoint => self.waypoint = None,
            TelemetryScope::Namespace(name) => drop(self.namespaces.remove(&name)),
            TelemetryScope::Service(name) => drop(self.services.remove(&name)),
        }
        None
    }

    fn dump(&self) -> Value {
        self.records.values().map(to_json).collect()
    }
}

impl TelemetryConfigs {
    pub(crate) fn new(exporters: Arc<Exporters>) -> Self {
        Self {
            exporters,
            ..Self::default()
        }
    }

    /// Whether no `Telemetry` configuration exists, so that the waypoint's own settings apply.
    pub(crate) fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Returns the telemetry configuration for requests to these services: that of the first service that has one, else
    /// that of the namespace, else that of the waypoint.
    pub(crate) fn effective(
        &self,
        services: &[NamespacedHostname],
        namespace: &str,
    ) -> Option<&Arc<TelemetryConfig>> {
        let mut of_services = services.iter();
        of_services
            .find_map(|service| self.services.get(service))
            .or_else(|| self.namespaces.get(namespace))
            .or(self.waypoint.as_ref())
    }
}
