//! Tests of telemetry records' round trips.

use std::time::Duration;

use ambit_model::{
    NamespacedHostname, OtlpCollector, TelemetryFamily, TelemetryFormat, TelemetryLog,
    TelemetryMetric, TelemetryScope, TelemetryTag, TelemetryTagValue, TelemetryTracing,
    WaypointTelemetry,
};
use prost::Message;

use super::RecordCodec as _;
use crate::ambit as wire;

fn telemetry() -> WaypointTelemetry {
    let collector = OtlpCollector {
        service: NamespacedHostname::new("observability", "otel.observability.svc.cluster.local"),
        port: 4318,
        http_path: Some("/v1/traces".into()),
        timeout: Some(Duration::from_secs(3)),
        headers: vec![("x-tenant".into(), "shop".into())],
    };
    let tag = |name: &str, value| TelemetryTag {
        name: name.into(),
        value,
    };
    WaypointTelemetry {
        scope: TelemetryScope::Waypoint,
        tracing: Some(TelemetryTracing {
            collector: collector.clone(),
            sampling: 100,
            by_request_id: true,
            istio_tags: true,
            tags: vec![
                tag("a", TelemetryTagValue::Literal("x".into())),
                tag(
                    "b",
                    TelemetryTagValue::Environment("HOME".into(), "none".into()),
                ),
                tag("c", TelemetryTagValue::Header("x-team".into(), "".into())),
                tag("d", TelemetryTagValue::Formatter("%PROTOCOL%".into())),
            ],
            max_tag: 256,
            propagates: false,
        }),
        logs: Some(vec![
            TelemetryLog {
                collector: None,
                name: "".into(),
                format: TelemetryFormat::Default,
                filter: Some("response.code >= 400".into()),
            },
            TelemetryLog {
                collector: Some(OtlpCollector {
                    http_path: None,
                    timeout: None,
                    headers: Vec::new(),
                    ..collector
                }),
                name: "mesh".into(),
                format: TelemetryFormat::Json("{}".into()),
                filter: None,
            },
        ]),
        metrics: TelemetryFamily::ALL
            .map(|family| TelemetryMetric {
                family,
                disabled: family == TelemetryFamily::ResponseSize,
                labels: vec![
                    ("host".into(), Some("request.host".into())),
                    ("source_app".into(), None),
                ],
            })
            .into(),
    }
}

#[test]
fn telemetry_arrives_as_it_was_sent() {
    for scope in [
        TelemetryScope::Waypoint,
        TelemetryScope::Namespace("shop".into()),
        TelemetryScope::Service(NamespacedHostname::new("shop", "cart")),
    ] {
        for logs in [telemetry().logs, None, Some(Vec::new())] {
            let sent = WaypointTelemetry {
                scope: scope.clone(),
                logs,
                ..telemetry()
            };
            let bytes = wire::WaypointTelemetry::from(&sent).encode_to_vec();
            assert_eq!(WaypointTelemetry::decode("gw/w", &bytes), Ok(sent));
        }
    }
}

#[test]
fn telemetry_that_is_not_understood_is_refused() {
    let mut sent = wire::WaypointTelemetry::from(&telemetry());
    sent.metrics[0].family = 99;
    assert!(WaypointTelemetry::decode("gw/w", &sent.encode_to_vec()).is_err());
    let mut sent = wire::WaypointTelemetry::from(&telemetry());
    sent.tracing.as_mut().unwrap().collector = None;
    assert!(WaypointTelemetry::decode("gw/w", &sent.encode_to_vec()).is_err());
    let mut later = wire::WaypointTelemetry::from(&telemetry()).encode_to_vec();
    later.extend([0xf8, 0x06, 1]);
    assert!(WaypointTelemetry::decode("gw/w", &later).is_err());
}
