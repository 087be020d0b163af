//! Tests of exported logs in a process of their own, since logging can be set up only once.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "collector/scripted.rs"]
#[expect(dead_code, reason = "what exports of metrics meet is tested beside")]
mod scripted;

use std::time::Duration;

use ambit_otlp_export::Exporter;
use ambit_rt::{Env, logging};
use opentelemetry_proto::tonic::{
    collector::logs::v1::ExportLogsServiceRequest,
    common::v1::any_value::Value,
    logs::v1::{LogRecord, SeverityNumber},
};
use prost::Message as _;
use scripted::{Collector, Reply, TEST_TIMEOUT};

async fn received_records(collector: &mut Collector) -> Vec<LogRecord> {
    let received = collector.next().await;
    assert!(received.head.starts_with("post /v1/logs http/1.1\r\n"));
    let message = ExportLogsServiceRequest::decode(&*received.body).unwrap();
    let scopes = message
        .resource_logs
        .into_iter()
        .flat_map(|one| one.scope_logs);
    scopes.flat_map(|scope| scope.log_records).collect()
}

fn body_text(record: &LogRecord) -> &str {
    match record.body.as_ref().and_then(|any| any.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// Checks with every log level enabled that the logs of the exporter and its libraries are not exported: each export
/// would create further records.
#[tokio::test]
async fn logs_are_exported_but_none_of_the_exporters_own() {
    let replies = [
        Reply::Status("503 Service Unavailable"),
        Reply::Accept,
        Reply::Accept,
    ];
    let mut collector = Collector::start(&replies).await;
    let endpoint = collector.endpoint();
    let env = Env::from_pairs([
        (
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
            format!("{endpoint}/v1/logs").as_str(),
        ),
        ("RUST_LOG", "trace,hyper=trace,h2=trace"),
    ]);
    let exporter = Exporter::from_env(&env, "ambit-test").unwrap();
    let _logs = logging::init_with_sink(&env, exporter.record_sink()).unwrap();
    tracing::warn!(target: "access", bytes_sent = 7, error = "refused", "connection complete");
    logging::write_line("GET / 200\n");
    let exporting = exporter.start(|| panic!("metrics are not exported"));
    // The first message is rejected, and sent again.
    let (first, again) = (
        received_records(&mut collector).await,
        received_records(&mut collector).await,
    );
    assert_eq!(first, again);
    let bodies: Vec<_> = again.iter().map(body_text).collect();
    assert_eq!(bodies, ["connection complete", "GET / 200"]);
    assert_eq!(again[0].severity_number(), SeverityNumber::Warn);
    assert_eq!(again[0].severity_text, "warn");
    assert!(again[0].time_unix_nano > 0);
    let attributes: Vec<_> = again[0]
        .attributes
        .iter()
        .map(|one| one.key.as_str())
        .collect();
    assert_eq!(attributes, ["target", "bytes_sent", "error"]);
    // Records of the exporter itself, if any were exported, would precede this one.
    tracing::info!("second");
    let second = received_records(&mut collector).await;
    assert_eq!(second.iter().map(body_text).collect::<Vec<_>>(), ["second"]);
    tracing::info!("last");
    exporting.finish(TEST_TIMEOUT).await;
    let last = received_records(&mut collector).await;
    assert_eq!(last.iter().map(body_text).collect::<Vec<_>>(), ["last"]);
    logging::flush(Duration::from_secs(5));
}
