//! Counters and histograms of requests, one series for each [`HttpLabels`].

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ambit_model::{PolicyKey, TelemetryFamily};
use parking_lot::RwLock;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, counter::Counter, family::Family},
    registry::Registry,
};

use super::{DestinationMetrics, HttpLabels, HttpRequestReport, histogram::Histogram};
use crate::{
    labels::Principals,
    retired_series::{LabelPairs, MergedFamily, RetiredSeries, add_counter},
};

#[cfg(test)]
mod tests;

/// Time after which a series without requests is dropped: several scrapes see its last values first.
const UNUSED_SERIES_TTL: Duration = Duration::from_secs(3600);
/// Maximum series; beyond it the longest unused ones are dropped at once.
const MAX_SERIES: usize = 20_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemoryLabels {
    reason: &'static str,
    scope: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    policy: String,
}

/// Outcome of a mirrored request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MirrorOutcome {
    /// The mirror responded.
    Answered,
    /// The mirror could not be reached, or broke off the exchange.
    Failed,
    /// The mirror received the body too slowly.
    BodyTimeout,
    /// The mirror did not respond in time.
    Late,
    /// The limit of mirrored requests was reached; nothing was sent.
    LimitReached,
    /// A policy of the mirror's service denied the request.
    Denied,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AuthorizedLabels {
    provider: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RateLimitLabels {
    /// Name of the RateLimit, `namespace/name`.
    rate_limit: String,
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderLabels {
    provider: String,
}

/// OpenTelemetry signal that is exported to collectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExportSignal {
    /// Spans of requests.
    Traces,
    /// Log records of requests, from the access log.
    Logs,
}

/// Outcome of exporting a span or log record to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExportOutcome {
    /// The collector accepted the item.
    Sent,
    /// The export queue was full, so that the item was dropped.
    Dropped,
    /// The collector was unreachable, or rejected the item.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExportLabels {
    signal: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// Request metrics of a waypoint, created once and shared.
#[derive(Debug, Default)]
pub struct HttpMetrics {
    series: Arc<SeriesTable>,
    principals: Principals,
    refused_requests: Family<ReasonLabels, Counter>,
    dry_run_denied: Family<PolicyLabels, Counter>,
    /// Metrics of outlier detection and circuit breakers.
    pub destinations: DestinationMetrics,
    mirrored_requests: Family<OutcomeLabels, Counter>,
    authorization_checks: Family<AuthorizedLabels, Counter>,
    refused_provider_headers: Family<ProviderLabels, Counter>,
    exported_items: Family<ExportLabels, Counter>,
    rate_limit_decisions: Family<RateLimitLabels, Counter>,
    memory_refusals: Family<MemoryLabels, Counter>,
}

#[derive(Debug)]
struct SeriesTable {
    /// Table of series by labels. It is locked for reading when a request ends, and for writing to add a series or to
    /// drop unused ones.
    table: RwLock<Table>,
    /// Dropped series whose counts are to be merged into others, since they may have the same labels.
    retired_series: RetiredSeries<HttpLabels, Series>,
    dropped_series: Counter,
}

type Table = HashMap<Arc<HttpLabels>, Arc<Series>>;

impl Default for SeriesTable {
    fn default() -> Self {
        Self {
            table: RwLock::default(),
            retired_series: RetiredSeries::new(MAX_SERIES),
            dropped_series: Counter::default(),
        }
    }
}

#[derive(Debug)]
struct Series {
    requests: AtomicU64,
    duration_ms: Histogram,
    request_bytes: Histogram,
    response_bytes: Histogram,
    request_messages: AtomicU64,
    response_messages: AtomicU64,
    created_at: Instant,
    /// Time of the last use of the series, in milliseconds since `born`.
    last_used_ms: AtomicU64,
}

impl Series {
    fn new(now: Instant) -> Self {
        Self {
            requests: AtomicU64::default(),
            duration_ms: Histogram::default(),
            request_bytes: Histogram::default(),
            response_bytes: Histogram::default(),
            request_messages: AtomicU64::default(),
            response_messages: AtomicU64::default(),
            created_at: now,
            last_used_ms: AtomicU64::default(),
        }
    }

    fn add(&self, report: &HttpRequestReport<'_>, now: Instant) {
        self.requests.fetch_add(1, Relaxed);
        self.duration_ms.observe(milliseconds(report.duration));
        self.request_bytes.observe(report.request_bytes);
        self.response_bytes.observe(report.response_bytes);
        self.request_messages
            .fetch_add(report.request_messages, Relaxed);
        self.response_messages
            .fetch_add(report.response_messages, Relaxed);
        let age = milliseconds(now.saturating_duration_since(self.created_at));
        self.last_used_ms.fetch_max(age, Relaxed);
    }

    fn last_use(&self) -> Instant {
        self.created_at + Duration::from_millis(self.last_used_ms.load(Relaxed))
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl HttpMetrics {
    /// Creates and registers all families.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_collector(Box::new(HttpCollector(metrics.series.clone())));
        registry.register(
            "ambit_http_series_dropped",
            "The total number of series of requests dropped because there were too many",
            metrics.series.dropped_series.clone(),
        );
        registry.register(
            "ambit_requests_refused",
            "The total number of requests refused before any policy or route was evaluated",
            metrics.refused_requests.clone(),
        );
        registry.register(
            "ambit_policy_dry_run_denied",
            "The total number of requests, and of connections that are not HTTP, that a dry-run policy would have denied",
            metrics.dry_run_denied.clone(),
        );
        metrics.destinations.register(registry);
        registry.register(
            "ambit_requests_mirrored",
            "The total number of mirrored requests, by result",
            metrics.mirrored_requests.clone(),
        );
        registry.register(
            "ambit_ext_authz",
            "The total number of ext_authz checks of requests and connections, by result",
            metrics.authorization_checks.clone(),
        );
        registry.register(
            "ambit_ext_authz_headers_refused",
            "The total number of headers that providers tried to set or remove and may not",
            metrics.refused_provider_headers.clone(),
        );
        registry.register(
            "ambit_rate_limit_decisions",
            "The total number of requests that rate limits refused or rate-limit services checked, by result",
            metrics.rate_limit_decisions.clone(),
        );
        registry.register(
            "ambit_memory_budget_refused",
            "The total number of allocations that a memory budget refused, by reason and budget",
            metrics.memory_refusals.clone(),
        );
        registry.register(
            "ambit_telemetry_exported",
            "The total number of spans and access log lines for collectors, by result",
            metrics.exported_items.clone(),
        );
        metrics
    }

    /// Reports every principal label as "unknown" from now on: requests that differ only in principals share one
    /// series.
    pub fn hide_principals(&self) {
        self.principals.hide();
    }

    /// Counts a finished request.
    pub fn record(&self, labels: &HttpLabels, report: &HttpRequestReport<'_>) {
        let now = Instant::now();
        let series = if self.principals.are_hidden() {
            self.series
                .find_or_insert(&labels.without_principals(), now)
        } else {
            self.series.find_or_insert(labels, now)
        };
        series.add(report, now);
    }

    /// Counts a request that was refused as invalid, before any policy or route was evaluated.
    pub fn count_refused_request(&self, reason: &'static str) {
        self.refused_requests
            .get_or_create(&ReasonLabels { reason })
            .inc();
    }

    /// Counts a request that was refused because a memory budget is exhausted; `scope` is the budget's: connection,
    /// caller or process.
    pub fn count_memory_refusal(&self, reason: &'static str, scope: &'static str) {
        let labels = MemoryLabels { reason, scope };
        self.memory_refusals.get_or_create(&labels).inc();
    }

    /// Counts a mirrored request, which is not in the request metrics.
    pub fn count_mirrored_request(&self, outcome: MirrorOutcome) {
        let outcome = match outcome {
            MirrorOutcome::Answered => "answered",
            MirrorOutcome::Failed => "failed",
            MirrorOutcome::BodyTimeout => "too_slow",
            MirrorOutcome::Late => "late",
            MirrorOutcome::LimitReached => "busy",
            MirrorOutcome::Denied => "denied",
        };
        self.mirrored_requests
            .get_or_create(&OutcomeLabels { outcome })
            .inc();
    }

    /// Counts an ext_authz check by the provider's name, which is empty if no provider could be called.
    pub fn count_authorization(&self, provider: &str, outcome: &'static str) {
        let provider = provider.to_owned();
        let labels = AuthorizedLabels { provider, outcome };
        self.authorization_checks.get_or_create(&labels).inc();
    }

    /// Counts a decision of a RateLimit; `kind` is `local` or `global`.
    pub fn count_rate_limit_decision(
        &self,
        rate_limit: &PolicyKey,
        kind: &'static str,
        outcome: &'static str,
    ) {
        let labels = RateLimitLabels {
            rate_limit: rate_limit.to_string(),
            kind,
            outcome,
        };
        self.rate_limit_decisions.get_or_create(&labels).inc();
    }

    /// Counts header changes in a provider's response that are not allowed.
    pub fn count_refused_provider_headers(&self, provider: &str, count: u64) {
        if count > 0 {
            let provider = provider.to_owned();
            let labels = ProviderLabels { provider };
            self.refused_provider_headers
                .get_or_create(&labels)
                .inc_by(count);
        }
    }
    /// Counts spans or log records that were exported or dropped.
    pub fn count_exported(&self, signal: ExportSignal, outcome: ExportOutcome, many: u64) {
        let labels = ExportLabels {
            signal: match signal {
                ExportSignal::Traces => "traces",
                ExportSignal::Logs => "logs",
            },
            outcome: match outcome {
                ExportOutcome::Sent => "sent",
                ExportOutcome::Dropped => "dropped",
                ExportOutcome::Failed => "failed",
            },
        };
        self.exported_items.get_or_create(&labels).inc_by(many);
    }

    /// Counts a request that a dry-run policy would have denied.
    pub fn count_dry_run_denial(&self, policy: &PolicyKey) {
        let labels = PolicyLabels {
            policy: policy.to_string(),
        };
        self.dry_run_denied.get_or_create(&labels).inc();
    }

    /// Removes the series that name a deleted policy.
    pub fn remove_policy(&self, policy: &PolicyKey) {
        let policy = policy.to_string();
        self.dry_run_denied.remove(&PolicyLabels { policy });
    }
}

impl SeriesTable {
    fn find_or_insert(&self, labels: &HttpLabels, now: Instant) -> Arc<Series> {
        if let Some(series) = self.table.read().get(labels) {
            return series.clone();
        }
        let mut table = self.table.write();
        if table.len() >= MAX_SERIES && !table.contains_key(labels) {
            let dropped = evict_unused(&mut table);
            self.dropped_series.inc_by(dropped.len() as u64);
            self.retire(dropped);
        }
        let series = table.entry(Arc::new(labels.clone()));
        series.or_insert_with(|| Arc::new(Series::new(now))).clone()
    }

    fn drop_unused(&self, now: Instant) {
        let mut table = self.table.write();
        let is_unused =
            |series: &Series| now.saturating_duration_since(series.last_use()) >= UNUSED_SERIES_TTL;
        self.retire(table.extract_if(|_, series| is_unused(series)));
    }

    fn retire(&self, dropped: impl IntoIterator<Item = (Arc<HttpLabels>, Arc<Series>)>) {
        let dropped = dropped.into_iter();
        self.retired_series
            .extend(dropped.filter(|(labels, _)| labels.has_overrides()));
    }
}

/// Drops the longest unused half of the series.
fn evict_unused(table: &mut Table) -> Vec<(Arc<HttpLabels>, Arc<Series>)> {
    let mut uses: Vec<_> = table.values().map(|series| series.last_use()).collect();
    if uses.is_empty() {
        return Vec::new();
    }
    let middle = (uses.len() - 1) / 2;
    let (_, limit, _) = uses.select_nth_unstable(middle);
    let limit = *limit;
    // Of several series last used at the same time, at most half of all series are dropped.
    let mut left = table.len().div_ceil(2);
    let dropped = table.extract_if(|_, series| {
        let goes = left > 0 && series.last_use() <= limit;
        left -= usize::from(goes);
        goes
    });
    dropped.collect()
}

/// Request metric families, with the functions by which dropped series are merged.
const FAMILIES: [MergedFamily<HttpLabels, Series>; 6] = [
    MergedFamily {
        labels: |labels| labels.family_labels(TelemetryFamily::RequestCount),
        merge: |to, from| add_counter(&to.requests, &from.requests),
    },
    MergedFamily {
        labels: |labels| labels.family_labels(TelemetryFamily::RequestDuration),
        merge: |to, from| to.duration_ms.add(&from.duration_ms),
    },
    MergedFamily {
        labels: |labels| labels.family_labels(TelemetryFamily::RequestSize),
        merge: |to, from| to.request_bytes.add(&from.request_bytes),
    },
    MergedFamily {
        labels: |labels| labels.family_labels(TelemetryFamily::ResponseSize),
        merge: |to, from| to.response_bytes.add(&from.response_bytes),
    },
    MergedFamily {
        labels: |labels| grpc_family_labels(labels, TelemetryFamily::RequestMessages),
        merge: |to, from| add_counter(&to.request_messages, &from.request_messages),
    },
    MergedFamily {
        labels: |labels| grpc_family_labels(labels, TelemetryFamily::ResponseMessages),
        merge: |to, from| add_counter(&to.response_messages, &from.response_messages),
    },
];

fn grpc_family_labels(labels: &HttpLabels, family: TelemetryFamily) -> Option<LabelPairs> {
    labels.family_labels(family).filter(|_| labels.is_grpc())
}

/// Collector that encodes the request metrics at a scrape.
#[derive(Debug)]
struct HttpCollector(Arc<SeriesTable>);

type Rows = Vec<(Arc<HttpLabels>, Arc<Series>)>;

impl Collector for HttpCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.drop_unused(Instant::now());
        let rows: Rows = {
            let table = self.0.table.read();
            table.iter().map(|(l, s)| (l.clone(), s.clone())).collect()
        };
        let stay = rows.iter().map(|(labels, series)| (&**labels, &**series));
        self.0.retired_series.merge_into_remaining(stay, &FAMILIES);
        if rows.is_empty() {
            return Ok(());
        }
        let mut out = FamilyEncoder {
            encoder: &mut encoder,
            rows: &rows,
            has_overrides: rows.iter().any(|(labels, _)| labels.has_overrides()),
        };
        use TelemetryFamily as Family;
        out.counter(
            ("istio_requests", Family::RequestCount),
            "The total number of requests",
            |_| true,
            |series| &series.requests,
        )?;
        out.histogram(
            (
                "istio_request_duration_milliseconds",
                Family::RequestDuration,
            ),
            "The duration of requests in milliseconds",
            |series| &series.duration_ms,
        )?;
        out.histogram(
            ("istio_request_bytes", Family::RequestSize),
            "The size of requests' bodies in bytes",
            |series| &series.request_bytes,
        )?;
        out.histogram(
            ("istio_response_bytes", Family::ResponseSize),
            "The size of responses' bodies in bytes",
            |series| &series.response_bytes,
        )?;
        out.counter(
            ("istio_request_messages", Family::RequestMessages),
            "The total number of gRPC messages from clients",
            HttpLabels::is_grpc,
            |series| &series.request_messages,
        )?;
        out.counter(
            ("istio_response_messages", Family::ResponseMessages),
            "The total number of gRPC messages from servers",
            HttpLabels::is_grpc,
            |series| &series.response_messages,
        )
    }
}

struct FamilyEncoder<'a, 'b> {
    encoder: &'a mut DescriptorEncoder<'b>,
    rows: &'a Rows,
    /// Whether label overrides may give several series the same labels.
    has_overrides: bool,
}

impl FamilyEncoder<'_, '_> {
    fn counter(
        &mut self,
        (name, of): (&str, TelemetryFamily),
        help: &str,
        has: impl Fn(&HttpLabels) -> bool,
        value: impl Fn(&Series) -> &AtomicU64,
    ) -> fmt::Result {
        let mut rows = self
            .rows
            .iter()
            .filter(|(labels, _)| has(labels))
            .peekable();
        // Families without samples are left out.
        if rows.peek().is_none() {
            return Ok(());
        }
        let kind = MetricType::Counter;
        if self.has_overrides {
            let mut sums: BTreeMap<_, u64> = BTreeMap::new();
            for (labels, series) in rows {
                if let Some(labels) = labels.family_labels(of) {
                    *sums.entry(labels).or_default() += value(series).load(Relaxed);
                }
            }
            if sums.is_empty() {
                return Ok(());
            }
            let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, sum) in sums {
                ConstCounter::new(sum).encode(family.encode_family(&labels)?)?;
            }
            return Ok(());
        }
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, series) in rows {
            let count = ConstCounter::new(value(series).load(Relaxed));
            count.encode(family.encode_family(labels.as_ref())?)?;
        }
        Ok(())
    }

    fn histogram(
        &mut self,
        (name, of): (&str, TelemetryFamily),
        help: &str,
        value: impl Fn(&Series) -> &Histogram,
    ) -> fmt::Result {
        let kind = MetricType::Histogram;
        if self.has_overrides {
            let mut sums: BTreeMap<_, Histogram> = BTreeMap::new();
            for (labels, series) in self.rows {
                if let Some(labels) = labels.family_labels(of) {
                    sums.entry(labels).or_default().add(value(series));
                }
            }
            if sums.is_empty() {
                return Ok(());
            }
            let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, sum) in &sums {
                sum.encode(family.encode_family(labels)?)?;
            }
            return Ok(());
        }
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, series) in self.rows {
            value(series).encode(family.encode_family(labels.as_ref())?)?;
        }
        Ok(())
    }
}
