//! Merge of the Telemetry objects that apply to a scope: more specific levels come later and override the ones before.

use std::collections::BTreeMap;

use ambit_model::{
    ArcStr, TelemetryFamily, TelemetryMetric, TelemetryScope, TelemetryTracing, WaypointTelemetry,
};

use crate::{
    kinds::telemetry::providers::{self, LogDestination},
    objects::telemetry::{input::TelemetryInput, read::TracingSettings},
    view::MeshView,
};

/// Default number of requests per 10,000 that are traced, as in Istio.
const DEFAULT_SAMPLING_PER_10000: u32 = 100;
/// Maximum length of a span tag's value, as in Istio.
const MAX_TAG_VALUE_LENGTH: u32 = 256;

/// Merges the levels of a scope to one record, and returns notes on parts that have no effect.
pub(crate) fn merge(
    view: &MeshView,
    levels: &[&TelemetryInput],
    scope: TelemetryScope,
) -> (WaypointTelemetry, Vec<String>) {
    let mut wrong = Vec::new();
    let telemetry = WaypointTelemetry {
        scope,
        tracing: merge_tracing(view, levels, &mut wrong),
        logs: merge_access_logs(view, levels, &mut wrong),
        metrics: merge_metrics(view, levels, &mut wrong),
    };
    (telemetry, wrong)
}

fn merge_tracing(
    view: &MeshView,
    levels: &[&TelemetryInput],
    wrong: &mut Vec<String>,
) -> Option<TelemetryTracing> {
    let settings = view.settings();
    let mut merged = TracingSettings {
        providers: settings
            .map(|one| one.telemetry.default_tracing.clone())
            .unwrap_or_default(),
        ..TracingSettings::default()
    };
    for part in levels.iter().flat_map(|level| &level.tracing) {
        if !part.providers.is_empty() {
            merged.providers.clone_from(&part.providers);
        }
        merged.sampling = part.sampling.or(merged.sampling);
        merged.is_disabled = part.is_disabled.or(merged.is_disabled);
        merged.samples_by_request_id = part.samples_by_request_id.or(merged.samples_by_request_id);
        merged.adds_istio_tags = part.adds_istio_tags.or(merged.adds_istio_tags);
        merged.omits_trace_context = part.omits_trace_context.or(merged.omits_trace_context);
        if part.tags.is_some() {
            merged.tags.clone_from(&part.tags);
        }
    }
    let name = merged.providers.first()?;
    if merged.is_disabled == Some(true) {
        return None;
    }
    let collector = match providers::resolve_tracing_provider(view, name) {
        Ok(collector) => collector,
        Err(why) => {
            wrong.push(why);
            return None;
        }
    };
    let of_mesh = settings.and_then(|one| one.telemetry.sampling);
    Some(TelemetryTracing {
        collector,
        sampling: merged
            .sampling
            .or(of_mesh)
            .unwrap_or(DEFAULT_SAMPLING_PER_10000),
        by_request_id: merged.samples_by_request_id.unwrap_or(true),
        istio_tags: merged.adds_istio_tags.unwrap_or(true),
        tags: merged.tags.unwrap_or_default(),
        max_tag: MAX_TAG_VALUE_LENGTH,
        propagates: merged.omits_trace_context != Some(true),
    })
}

/// Merged access log settings of one provider.
#[derive(Clone, Debug, Default)]
struct AccessLogSettings {
    is_disabled: bool,
    filter: Option<ArcStr>,
}

fn merge_access_logs(
    view: &MeshView,
    levels: &[&TelemetryInput],
    wrong: &mut Vec<String>,
) -> Option<Vec<ambit_model::TelemetryLog>> {
    let settings = view.settings();
    let says_something = levels.iter().any(|level| !level.logs.is_empty());
    let of_mesh = settings
        .map(|one| one.telemetry.default_logging.clone())
        .unwrap_or_default();
    let has_file = settings.is_some_and(|one| one.telemetry.access_log.is_some());
    if !says_something && of_mesh.is_empty() && !has_file {
        return None;
    }
    let own = vec![ArcStr::from(providers::BUILTIN_LOG_PROVIDER)];
    let names = if of_mesh.is_empty() { own } else { of_mesh };
    let mut merged: BTreeMap<ArcStr, AccessLogSettings> = names
        .into_iter()
        .map(|name| (name, AccessLogSettings::default()))
        .collect();
    for level in levels {
        let named: Vec<_> = level.logs.iter().flat_map(|part| &part.providers).collect();
        if !named.is_empty() {
            // These, and no others.
            merged.retain(|name, _| named.contains(&name));
            for name in named {
                merged.entry(name.clone()).or_default();
            }
        }
        for part in &level.logs {
            for (name, logging) in &mut merged {
                if part.providers.is_empty() || part.providers.contains(name) {
                    logging.is_disabled = part.is_disabled;
                    logging.filter.clone_from(&part.filter);
                }
            }
        }
    }
    let mut logs = Vec::new();
    for (name, logging) in merged.into_iter().filter(|(_, one)| !one.is_disabled) {
        match providers::resolve_log_provider(view, &name) {
            Ok(LogDestination(mut log)) => {
                log.filter = logging.filter;
                logs.push(log);
            }
            Err(why) => wrong.push(why),
        }
    }
    Some(logs)
}

fn merge_metrics(
    view: &MeshView,
    levels: &[&TelemetryInput],
    wrong: &mut Vec<String>,
) -> Vec<TelemetryMetric> {
    let mut merged: BTreeMap<TelemetryFamily, TelemetryMetric> = BTreeMap::new();
    for part in levels.iter().flat_map(|level| &level.metrics) {
        let mut is_meant = part.providers.is_empty();
        for name in &part.providers {
            match providers::check_metrics_provider(view, name) {
                Ok(()) => is_meant = true,
                Err(why) => wrong.push(why),
            }
        }
        for change in part.overrides.iter().filter(|_| is_meant) {
            for family in &change.families {
                let metric = merged.entry(*family).or_insert_with(|| TelemetryMetric {
                    family: *family,
                    disabled: false,
                    labels: Vec::new(),
                });
                metric.disabled = change.is_disabled.unwrap_or(metric.disabled);
                for label in &change.labels {
                    metric.labels.retain(|(name, _)| *name != label.0);
                    metric.labels.push(label.clone());
                }
            }
        }
    }
    let mut all: Vec<_> = merged.into_values().collect();
    all.retain(|one| one.disabled || !one.labels.is_empty());
    all
}
