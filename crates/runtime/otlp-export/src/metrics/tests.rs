//! Tests of metrics of each type, decoded with OpenTelemetry's own messages.

use std::{
    sync::atomic::AtomicU64,
    time::{Duration, UNIX_EPOCH},
};

use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{KeyValue as SentAttribute, any_value::Value as SentValue},
    metrics::v1::{
        AggregationTemporality, Metric as SentMetric, metric::Data as SentData,
        number_data_point::Value as SentNumber,
    },
};
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
        info::Info,
    },
    registry::{Registry, Unit},
};
use prost::Message as _;

use super::*;

const START: Duration = Duration::from_secs(100);
const NOW: Duration = Duration::from_secs(160);

/// Encodes a registry's metrics, decoded again by OpenTelemetry's crate.
fn exported_requests(registry: &Registry) -> Vec<ExportMetricsServiceRequest> {
    let text = ambit_rt::metrics::exposition(registry).unwrap();
    let resource = Resource {
        attributes: vec![attribute("service.name", Value::Text("test".to_owned()))],
    };
    let scope = Scope {
        name: "test".to_owned(),
        version: "1".to_owned(),
    };
    let times = MetricTimes {
        start: UNIX_EPOCH + START,
        now: UNIX_EPOCH + NOW,
    };
    encode_messages(&text, times, &resource, &scope)
        .iter()
        .map(|message| {
            let bytes = message.encode_to_vec();
            ExportMetricsServiceRequest::decode(&*bytes).unwrap()
        })
        .collect()
}

fn metrics(registry: &Registry) -> Vec<SentMetric> {
    let messages = exported_requests(registry).into_iter();
    let resources = messages.flat_map(|message| message.resource_metrics);
    let scopes = resources.flat_map(|resource| resource.scope_metrics);
    scopes.flat_map(|scope| scope.metrics).collect()
}

fn single_metric(registry: &Registry) -> SentMetric {
    let mut all = metrics(registry);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn labels(attributes: &[SentAttribute]) -> Vec<(&str, &str)> {
    let attributes = attributes.iter();
    attributes
        .map(
            |one| match one.value.as_ref().and_then(|any| any.value.as_ref()) {
                Some(SentValue::StringValue(text)) => (one.key.as_str(), text.as_str()),
                other => panic!("{other:?}"),
            },
        )
        .collect()
}

#[test]
fn counters_are_monotonic_cumulative_sums() {
    let mut registry = Registry::default();
    let calls = Family::<[(String, String); 2], Counter>::default();
    registry.register_with_unit("calls", "Calls", Unit::Bytes, calls.clone());
    calls
        .get_or_create(&[("a".into(), "1".into()), ("b".into(), String::new())])
        .inc_by(7);
    let metric = single_metric(&registry);
    assert_eq!(
        (
            metric.name.as_str(),
            metric.description.as_str(),
            metric.unit.as_str()
        ),
        ("calls_bytes", "Calls.", "By")
    );
    let Some(SentData::Sum(sum)) = metric.data else {
        panic!("{metric:?}");
    };
    assert!(sum.is_monotonic);
    assert_eq!(
        sum.aggregation_temporality(),
        AggregationTemporality::Cumulative
    );
    let [point] = &sum.data_points[..] else {
        panic!("{sum:?}");
    };
    assert_eq!(point.value, Some(SentNumber::AsInt(7)));
    assert_eq!(labels(&point.attributes), [("a", "1"), ("b", "")]);
    assert_eq!(u128::from(point.start_time_unix_nano), START.as_nanos());
    assert_eq!(u128::from(point.time_unix_nano), NOW.as_nanos());
}

#[test]
fn gauges_keep_whole_and_unusual_numbers() {
    let mut registry = Registry::default();
    registry.register("whole", "A", ConstGauge::new(i64::MIN));
    registry.register("nan", "B", ConstGauge::new(f64::NAN));
    registry.register("infinite", "C", ConstGauge::new(f64::NEG_INFINITY));
    let large = Gauge::<u64, AtomicU64>::default();
    large.set(u64::MAX);
    registry.register("large", "D", large);
    let values: Vec<_> = metrics(&registry)
        .into_iter()
        .map(|metric| match metric.data {
            Some(SentData::Gauge(gauge)) => {
                assert_eq!(gauge.data_points[0].start_time_unix_nano, 0);
                (metric.name, gauge.data_points[0].value.unwrap())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let value = |name: &str| {
        let mut values = values.iter();
        values.find(|(own, _)| own == name).unwrap().1
    };
    assert_eq!(value("whole"), SentNumber::AsInt(i64::MIN));
    assert!(matches!(value("nan"), SentNumber::AsDouble(number) if number.is_nan()));
    assert_eq!(value("infinite"), SentNumber::AsDouble(f64::NEG_INFINITY));
    assert_eq!(
        value("large"),
        SentNumber::AsDouble(18_446_744_073_709_551_615.0)
    );
}

#[test]
fn histograms_count_between_their_bounds() {
    let mut registry = Registry::default();
    let times = Family::<[(String, String); 1], Histogram>::new_with_constructor(|| {
        Histogram::new([0.5, 1.0, 10.0])
    });
    registry.register_with_unit("took", "Time", Unit::Seconds, times.clone());
    for (label, values) in [("a", &[0.1, 0.7, 0.8, 99.0][..]), ("b", &[])] {
        let histogram = times.get_or_create_owned(&[("of".into(), label.into())]);
        for value in values {
            histogram.observe(*value);
        }
    }
    let metric = single_metric(&registry);
    assert_eq!(
        (metric.name.as_str(), metric.unit.as_str()),
        ("took_seconds", "s")
    );
    let Some(SentData::Histogram(histogram)) = metric.data else {
        panic!("{metric:?}");
    };
    assert_eq!(
        histogram.aggregation_temporality(),
        AggregationTemporality::Cumulative
    );
    let mut points = histogram.data_points;
    points.sort_by_key(|point| std::cmp::Reverse(point.count));
    assert_eq!(points.len(), 2);
    assert_eq!(labels(&points[0].attributes), [("of", "a")]);
    assert_eq!(points[0].explicit_bounds, [0.5, 1.0, 10.0]);
    assert_eq!(points[0].bucket_counts, [1, 2, 0, 1]);
    assert_eq!(points[0].count, 4);
    assert!((points[0].sum.unwrap() - 100.6).abs() < 1e-9);
    assert_eq!(u128::from(points[0].start_time_unix_nano), START.as_nanos());
    assert_eq!(points[1].bucket_counts, [0, 0, 0, 0]);
    assert_eq!(points[1].count, 0);
}

#[test]
fn infos_are_sums_of_one_that_are_not_monotonic() {
    let mut registry = Registry::default();
    registry.register("build", "Build", Info::new([("version", "1.2")]));
    let metric = single_metric(&registry);
    assert_eq!(metric.name, "build_info");
    let Some(SentData::Sum(sum)) = metric.data else {
        panic!("{metric:?}");
    };
    assert!(!sum.is_monotonic);
    assert_eq!(sum.data_points[0].value, Some(SentNumber::AsInt(1)));
    assert_eq!(labels(&sum.data_points[0].attributes), [("version", "1.2")]);
}

#[test]
fn hostile_label_values_arrive_as_they_are() {
    let values = [
        "a\nb\"c\\d\\n",
        "\"} 1\n# TYPE forged counter\nforged_total 9\n",
        "{=,} \u{0}\r\t",
        "ä\u{2028}\u{1F600}",
    ];
    for value in values {
        let mut registry = Registry::default();
        let calls = Family::<[(String, String); 2], Counter>::default();
        registry.register("calls", "Calls", calls.clone());
        calls
            .get_or_create(&[("a".into(), value.into()), ("b".into(), value.into())])
            .inc();
        let metric = single_metric(&registry);
        let Some(SentData::Sum(sum)) = metric.data else {
            panic!("{metric:?}");
        };
        assert_eq!(sum.data_points.len(), 1, "{value:?}");
        assert_eq!(
            labels(&sum.data_points[0].attributes),
            [("a", value), ("b", value)]
        );
    }
}

#[test]
fn exemplars_and_malformed_lines_are_skipped() {
    let text = "stray 1\n# HELP a A.\n# TYPE a counter\na_total{x=\"1\"} 2 # {trace=\"t\"} 1.0\na_total{x=\"2\" 3\n\
                a_total{x=\"3\"} many\na_total\nb_total 4\n# EOF\n";
    let families = exposition::parse(text);
    assert_eq!(families.len(), 1);
    let [sample] = &families[0].samples[..] else {
        panic!("{families:?}");
    };
    assert_eq!(sample.labels, [("x".to_owned(), "1".to_owned())]);
    assert_eq!(sample.value, exposition::Value::Integer(2));
}

#[test]
fn many_series_are_sent_in_messages_of_bounded_size() {
    let mut registry = Registry::default();
    let calls = Family::<[(String, String); 1], Counter>::default();
    registry.register("calls", "Calls", calls.clone());
    let mut expected: Vec<String> = (0..5000).map(|n| format!("{n:0>1000}")).collect();
    // Larger than a whole message.
    expected.push("x".repeat(2 * MAX_MESSAGE_BYTES));
    for value in &expected {
        calls.get_or_create(&[("a".into(), value.clone())]).inc();
    }
    let messages = exported_requests(&registry);
    assert!(messages.len() > 5, "{}", messages.len());
    let mut values = Vec::new();
    for message in messages {
        let size = message.encoded_len();
        let resource = &message.resource_metrics[0];
        assert_eq!(resource.resource.as_ref().unwrap().attributes.len(), 1);
        let mut many = 0;
        for metric in &resource.scope_metrics[0].metrics {
            let Some(SentData::Sum(sum)) = &metric.data else {
                panic!("{metric:?}");
            };
            many += sum.data_points.len();
            for point in &sum.data_points {
                values.push(labels(&point.attributes)[0].1.to_owned());
            }
        }
        assert!(
            size < MAX_MESSAGE_BYTES + 64 * 1024 || many == 1,
            "{size} {many}"
        );
    }
    values.sort();
    expected.sort();
    assert_eq!(values, expected);
}

#[test]
fn registries_without_samples_make_no_message() {
    let mut registry = Registry::default();
    let calls = Family::<[(String, String); 1], Counter>::default();
    registry.register("calls", "Calls", calls);
    assert!(exported_requests(&registry).is_empty());
}
