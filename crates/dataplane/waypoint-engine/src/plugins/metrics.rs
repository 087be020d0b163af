//! Collects the metrics of plugins: those that their modules define, and counters of failures.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use ambit_wasm::MetricValue;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use crate::{
    extensions::{Plugin, PluginCounters, PluginState},
    published::PublishedConfig,
};

/// Collector of the metrics of plugins and of their modules.
#[derive(Debug)]
pub struct PluginMetrics(pub PublishedConfig);

impl Collector for PluginMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let plugins = self.0.desired_plugins();
        if plugins.is_empty() {
            return Ok(());
        }
        encode_counters(&mut encoder, &plugins)?;
        // A name has one kind, that of its first definition.
        let mut all: BTreeMap<String, Vec<(&Plugin, MetricValue)>> = BTreeMap::new();
        for plugin in &plugins {
            for (name, value) in plugin.metrics.named_values() {
                let of = all.entry(metric_name(&name)).or_default();
                let is_same = of.first().is_none_or(|(_, first)| {
                    std::mem::discriminant(first) == std::mem::discriminant(&value)
                });
                let is_there = of
                    .iter()
                    .any(|(known, _)| known.version_id == plugin.version_id);
                if is_same && !is_there {
                    of.push((plugin, value));
                }
            }
        }
        for (name, series) in all {
            encode_custom_metric(&mut encoder, &name, &series)?;
        }
        Ok(())
    }
}

fn encode_counters(encoder: &mut DescriptorEncoder<'_>, plugins: &[Arc<Plugin>]) -> fmt::Result {
    let (name, help) = (
        "ambit_wasm_plugin_ready",
        "Whether a plugin's module can be run",
    );
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for plugin in plugins {
        let is_ready = matches!(plugin.state(), PluginState::Ready(_));
        let labels = [("plugin", plugin.key.as_str())];
        let value = ConstGauge::new(i64::from(is_ready));
        value.encode(metric.encode_family(&labels)?)?;
    }
    let (name, help) = (
        "ambit_wasm_plugin_failures",
        "The total number of instances of a plugin that failed",
    );
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for plugin in plugins {
        let labels = [("plugin", plugin.key.as_str())];
        let value = ConstCounter::new(plugin.counts.failures.load(Relaxed));
        value.encode(metric.encode_family(&labels)?)?;
    }
    let (name, help) = (
        "ambit_wasm_plugin_requests_undecided",
        "The total number of requests that a plugin could not decide about, by result",
    );
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for plugin in plugins {
        let PluginCounters {
            rejected_requests: refused,
            bypassed_requests: passed,
            ..
        } = &*plugin.counts;
        for (outcome, count) in [("refused", refused), ("passed", passed)] {
            let labels = [("plugin", plugin.key.as_str()), ("outcome", outcome)];
            ConstCounter::new(count.load(Relaxed)).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn encode_custom_metric(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    series: &[(&Plugin, MetricValue)],
) -> fmt::Result {
    let help = "Defined by a plugin";
    let Some((_, first)) = series.first() else {
        return Ok(());
    };
    match first {
        MetricValue::Histogram(..) => {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            for (plugin, value) in series {
                let MetricValue::Histogram(buckets, count, sum) = value else {
                    continue;
                };
                let labels = [("plugin", plugin.key.as_str())];
                let mut family = metric.encode_family(&labels)?;
                let mut below = 0;
                let each = buckets.iter().map(|(end, upto)| {
                    let own = upto - below;
                    below = *upto;
                    (as_f64(*end), own)
                });
                let mut buckets: Vec<(f64, u64)> = each.collect();
                buckets.push((f64::MAX, count.saturating_sub(below)));
                family.encode_histogram::<NoLabelSet>(as_f64(*sum), *count, &buckets, None)?;
            }
        }
        MetricValue::Counter(_) | MetricValue::Gauge(_) => {
            let is_counter = matches!(first, MetricValue::Counter(_));
            let kind = if is_counter {
                MetricType::Counter
            } else {
                MetricType::Gauge
            };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (plugin, value) in series {
                let labels = [("plugin", plugin.key.as_str())];
                let family = metric.encode_family(&labels)?;
                match value {
                    MetricValue::Counter(value) => ConstCounter::new(*value).encode(family)?,
                    MetricValue::Gauge(value) => {
                        let value = i64::try_from(*value).unwrap_or(i64::MAX);
                        ConstGauge::new(value).encode(family)?;
                    }
                    MetricValue::Histogram(..) => {}
                }
            }
        }
    }
    Ok(())
}

/// Converts a counter to the value of a sample.
#[expect(clippy::cast_precision_loss, reason = "scrapes carry floating numbers")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Converts the name of a module's metric to Envoy's form: with the prefix `envoy_wasmcustom`, and invalid characters
/// replaced.
fn metric_name(name: &str) -> String {
    let plain = |of: char| if of.is_ascii_alphanumeric() { of } else { '_' };
    format!(
        "envoy_wasmcustom_{}",
        name.chars().map(plain).collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_are_valid_for_prometheus() {
        assert_eq!(metric_name("a.b{c=\"d\"}"), "envoy_wasmcustom_a_b_c__d__");
    }
}
