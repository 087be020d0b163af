//! Converts OTLP metrics to OpenMetrics' text, for comparison with a scrape.

use std::fmt::Write as _;

use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    metrics::v1::{metric::Data, number_data_point::Value as Number},
};

/// Returns the lines of all samples, in no particular order.
pub(crate) fn sample_lines(message: &ExportMetricsServiceRequest) -> String {
    let mut text = String::new();
    let scopes = message
        .resource_metrics
        .iter()
        .flat_map(|one| &one.scope_metrics);
    for metric in scopes.flat_map(|scope| &scope.metrics) {
        let name = &metric.name;
        match metric.data.as_ref().unwrap() {
            Data::Sum(sum) => {
                assert!(sum.is_monotonic);
                for point in &sum.data_points {
                    let labels = labels("", &point.attributes);
                    writeln!(text, "{name}_total{labels} {}", number(point.value)).unwrap();
                }
            }
            Data::Gauge(gauge) => {
                for point in &gauge.data_points {
                    let labels = labels("", &point.attributes);
                    writeln!(text, "{name}{labels} {}", number(point.value)).unwrap();
                }
            }
            Data::Histogram(histogram) => {
                for point in &histogram.data_points {
                    let own = labels("", &point.attributes);
                    writeln!(text, "{name}_sum{own} {:?}", point.sum.unwrap()).unwrap();
                    writeln!(text, "{name}_count{own} {}", point.count).unwrap();
                    let bounds = point
                        .explicit_bounds
                        .iter()
                        .map(|bound| format!("{bound:?}"));
                    let bounds = bounds.chain(["+Inf".to_owned()]);
                    let mut below = 0;
                    for (bound, count) in bounds.zip(&point.bucket_counts) {
                        below += count;
                        let labels = labels(&format!("le=\"{bound}\""), &point.attributes);
                        writeln!(text, "{name}_bucket{labels} {below}").unwrap();
                    }
                }
            }
            other => panic!("{other:?}"),
        }
    }
    text
}

fn number(value: Option<Number>) -> String {
    match value.unwrap() {
        Number::AsInt(number) => number.to_string(),
        Number::AsDouble(number) => format!("{number:?}"),
    }
}

fn labels(first: &str, attributes: &[KeyValue]) -> String {
    let attributes = attributes.iter().map(|one| {
        let Some(Value::StringValue(value)) = one.value.as_ref().and_then(|any| any.value.as_ref())
        else {
            panic!("{one:?}");
        };
        let value = value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        format!("{}=\"{value}\"", one.key)
    });
    let first = (!first.is_empty()).then(|| first.to_owned());
    let all: Vec<_> = first.into_iter().chain(attributes).collect();
    match all.is_empty() {
        true => String::new(),
        false => format!("{{{}}}", all.join(",")),
    }
}
