//! Converts metrics in scrape format to OTLP.
//!
//! By OpenTelemetry's specification of compatibility with Prometheus and OpenMetrics: counters become monotonic
//! cumulative sums, gauges and untyped metrics gauges, histograms have explicit bounds, and infos become sums that
//! are not monotonic. A sum has the family's name, without `_total`, which collectors add again for Prometheus; names
//! of infos keep `_info`. Labels become attributes, and `# UNIT` is converted to UCUM. Exemplars are not sent.

use std::time::SystemTime;

use crate::{
    exposition::{self, Family, MetricKind, Sample},
    message::{
        CUMULATIVE, Data, ExportMetrics, Gauge, Histogram, HistogramPoint, KeyValue, Metric,
        Number, NumberPoint, Resource, ResourceMetrics, Scope, ScopeMetrics, Sum, Value, attribute,
        nanoseconds,
    },
};

/// Size of data points above which the exporter begins a new message, in bytes: collectors accept messages of 4 MiB
/// over gRPC by default.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// Times of all data points in one export.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetricTimes {
    /// Start of the process, from which counters count.
    pub(crate) start: SystemTime,
    /// Time of the export, which all data points have.
    pub(crate) now: SystemTime,
}

/// Encodes the metrics of a scrape response as export requests.
pub(crate) fn encode_messages(
    text: &str,
    times: MetricTimes,
    resource: &Resource,
    scope: &Scope,
) -> Vec<ExportMetrics> {
    let mut messages = Vec::new();
    let mut metrics = Vec::new();
    let mut bytes = 0;
    for family in exposition::parse(text) {
        let mut points = DataPoints::from_family(&family, times);
        loop {
            let rest = points.split(&mut bytes);
            if !points.is_empty() {
                metrics.push(points.into_metric(&family));
            }
            let Some(rest) = rest else {
                break;
            };
            messages.push(export_request(
                resource,
                scope,
                std::mem::take(&mut metrics),
            ));
            bytes = 0;
            points = rest;
        }
    }
    if !metrics.is_empty() {
        messages.push(export_request(resource, scope, metrics));
    }
    messages
}

fn export_request(resource: &Resource, scope: &Scope, metrics: Vec<Metric>) -> ExportMetrics {
    ExportMetrics {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource.clone()),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope.clone()),
                metrics,
            }],
        }],
    }
}

/// Data points of one metric.
enum DataPoints {
    Numbers(Vec<NumberPoint>),
    Histograms(Vec<HistogramPoint>),
}

impl DataPoints {
    fn from_family(family: &Family, times: MetricTimes) -> Self {
        match family.kind {
            MetricKind::Histogram => Self::Histograms(histogram_points(family, times)),
            _ => Self::Numbers(number_points(family, times)),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Numbers(points) => points.is_empty(),
            Self::Histograms(points) => points.is_empty(),
        }
    }

    /// Adds the points' sizes to `bytes`, and splits off the points that would make a message too large.
    fn split(&mut self, bytes: &mut usize) -> Option<Self> {
        match self {
            Self::Numbers(points) => split(points, bytes).map(Self::Numbers),
            Self::Histograms(points) => split(points, bytes).map(Self::Histograms),
        }
    }

    fn into_metric(self, family: &Family) -> Metric {
        let suffix = match family.kind {
            MetricKind::Info => "_info",
            _ => "",
        };
        Metric {
            name: format!("{}{suffix}", family.name),
            description: family.help.clone(),
            unit: ucum_unit(&family.unit).to_owned(),
            data: Some(match self {
                Self::Histograms(data_points) => Data::Histogram(Histogram {
                    data_points,
                    aggregation_temporality: CUMULATIVE,
                }),
                Self::Numbers(data_points) => match family.kind {
                    MetricKind::Counter | MetricKind::Info => Data::Sum(Sum {
                        data_points,
                        aggregation_temporality: CUMULATIVE,
                        is_monotonic: family.kind == MetricKind::Counter,
                    }),
                    _ => Data::Gauge(Gauge { data_points }),
                },
            }),
        }
    }
}

fn split<P: prost::Message>(points: &mut Vec<P>, bytes: &mut usize) -> Option<Vec<P>> {
    let end = points.iter().position(|point| {
        let size = point.encoded_len();
        // A point that is too large by itself gets a message of its own.
        let is_full = *bytes > 0 && *bytes + size > MAX_MESSAGE_BYTES;
        *bytes += size;
        is_full
    });
    end.map(|end| points.split_off(end))
}

/// Converts an OpenMetrics unit to UCUM.
fn ucum_unit(unit: &str) -> &str {
    match unit {
        "seconds" => "s",
        "bytes" => "By",
        "ratios" => "1",
        other => other,
    }
}

fn attributes(labels: &[(String, String)]) -> Vec<KeyValue> {
    let labels = labels.iter();
    labels
        .map(|(name, value)| attribute(name, Value::Text(value.clone())))
        .collect()
}

fn number_points(family: &Family, times: MetricTimes) -> Vec<NumberPoint> {
    let (suffix, is_sum) = match family.kind {
        MetricKind::Counter => ("_total", true),
        MetricKind::Info => ("_info", true),
        _ => ("", false),
    };
    let samples = family.samples.iter();
    let samples = samples.filter(|sample| sample.suffix == suffix);
    // Gauges have no start.
    let start = if is_sum { nanoseconds(times.start) } else { 0 };
    let points = samples.map(|sample| NumberPoint {
        start_time_unix_nano: start,
        time_unix_nano: nanoseconds(times.now),
        value: Some(match sample.value {
            exposition::Value::Integer(value) => Number::Int(value),
            exposition::Value::Float(value) => Number::Double(value),
        }),
        attributes: attributes(&sample.labels),
    });
    points.collect()
}

/// Label of a histogram bucket's upper bound.
const BUCKET_BOUND_LABEL: &str = "le";

/// Builds the histograms of a family. The exposition has `_sum`, `_count` and the buckets, in this order; its buckets
/// are cumulative, whereas each OTLP bucket counts only the values above the previous bound.
fn histogram_points(family: &Family, times: MetricTimes) -> Vec<HistogramPoint> {
    let mut points: Vec<HistogramPoint> = Vec::new();
    let mut below = 0;
    for sample in &family.samples {
        match sample.suffix.as_str() {
            "_sum" => {
                below = 0;
                points.push(HistogramPoint {
                    start_time_unix_nano: nanoseconds(times.start),
                    time_unix_nano: nanoseconds(times.now),
                    sum: Some(sample.value.as_f64()),
                    attributes: attributes(&sample.labels),
                    ..HistogramPoint::default()
                });
            }
            "_bucket" => {
                let Some((point, (bound, count))) = points.last_mut().zip(parse_bucket(sample))
                else {
                    continue;
                };
                if bound.is_finite() {
                    point.explicit_bounds.push(bound);
                }
                point.bucket_counts.push(count.saturating_sub(below));
                below = count.max(below);
                // OTLP's count is the sum of its buckets; the exposition's count may have been read
                // a moment earlier.
                point.count = below;
            }
            _ => {}
        }
    }
    for point in &mut points {
        // The last bucket has no bound.
        if point.bucket_counts.len() == point.explicit_bounds.len() {
            point.bucket_counts.push(0);
        }
    }
    points
}

#[cfg(test)]
mod tests;

/// Returns upper bound and count of a histogram bucket.
fn parse_bucket(sample: &Sample) -> Option<(f64, u64)> {
    let exposition::Value::Integer(count) = sample.value else {
        return None;
    };
    let mut labels = sample.labels.iter();
    let (_, bound) = labels.find(|(name, _)| name == BUCKET_BOUND_LABEL)?;
    Some((bound.parse().ok()?, u64::try_from(count).ok()?))
}
