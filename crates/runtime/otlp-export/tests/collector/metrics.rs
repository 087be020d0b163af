//! Tests of metrics exported over HTTP, also to collectors that reject them.

use std::time::Duration;

use ambit_otlp_export::Exporter;
use ambit_rt::Env;
use prometheus_client::registry::Registry;

use crate::{
    fixture::{Program, SENT_COUNTER, comparable_lines, decode_request},
    rendered::sample_lines,
    scripted::{Collector, Reply, TEST_TIMEOUT},
};

#[tokio::test]
async fn pushed_metrics_equal_scraped_ones() {
    let mut collector = Collector::start(&[]).await;
    let program = Program::start(
        &collector.endpoint(),
        &[
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=shop"),
            ("OTEL_RESOURCE_ATTRIBUTES", "team=mesh"),
        ],
    );
    let received = collector.next().await;
    assert!(
        received.head.starts_with("post /v1/metrics http/1.1\r\n"),
        "{}",
        received.head
    );
    for header in [
        "content-type: application/x-protobuf",
        "x-tenant: shop",
        &format!("host: {}", collector.address),
    ] {
        assert!(
            received.head.contains(header),
            "{header} in {}",
            received.head
        );
    }
    let pushed = decode_request(&received.body);
    let scraped = comparable_lines(&program.scrape().await);
    assert!(scraped.len() > 8, "{scraped:?}");
    assert_eq!(comparable_lines(&sample_lines(&pushed)), scraped);
    let resource = pushed.resource_metrics[0].resource.as_ref().unwrap();
    let names: Vec<_> = resource
        .attributes
        .iter()
        .map(|one| one.key.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "team",
            "service.name",
            "service.version",
            "service.instance.id"
        ]
    );
    program.wait_until_counted(SENT_COUNTER).await;
    collector.next().await;
}

#[tokio::test]
async fn failing_collectors_get_their_messages_again() {
    let replies = [
        Reply::Status("503 Service Unavailable\r\nretry-after: 1"),
        Reply::Status("429 Too Many Requests\r\nretry-after: soon"),
        Reply::Hang,
        Reply::Endless,
        Reply::EndlessHead,
        Reply::Close,
        Reply::InvalidHttp,
    ];
    let all = replies.map(|reply| {
        tokio::spawn(async move {
            let mut collector = Collector::start(&[reply]).await;
            let timeout = [("OTEL_EXPORTER_OTLP_TIMEOUT", "300")];
            let program = Program::start(&collector.endpoint(), &timeout);
            let first = collector.next().await;
            // The program is unaffected.
            assert!(program.scrape().await.contains("\nopen -3\n"));
            let again = collector.next().await;
            assert!(first.body == again.body, "{reply:?}");
            program.wait_until_counted(SENT_COUNTER).await;
            let failed = "ambit_otlp_exports_total{signal=\"metrics\",outcome=\"failed\"} 0";
            program.wait_until_shown(failed).await;
        })
    });
    for one in all {
        one.await.unwrap();
    }
}

#[tokio::test]
async fn closed_connections_and_empty_successes_fail_no_export() {
    let replies = [Reply::AcceptAndClose, Reply::Status("204 No Content")];
    let mut collector = Collector::start(&replies).await;
    // Longer than it takes for the close to arrive.
    let interval = [("OTEL_METRIC_EXPORT_INTERVAL", "300")];
    let program = Program::start(&collector.endpoint(), &interval);
    for _ in 0..3 {
        collector.next().await;
    }
    let failed = "ambit_otlp_exports_total{signal=\"metrics\",outcome=\"failed\"} 0";
    assert!(program.scrape().await.contains(failed));
    program.wait_until_counted(SENT_COUNTER).await;
}

#[tokio::test]
async fn refused_messages_are_counted_and_not_sent_again() {
    let mut collector = Collector::start(&[Reply::Status("400 Bad Request")]).await;
    let program = Program::start(&collector.endpoint(), &[]);
    let first = collector.next().await;
    program
        .wait_until_shown("ambit_otlp_exports_total{signal=\"metrics\",outcome=\"failed\"} 1")
        .await;
    let second = collector.next().await;
    assert!(first.body != second.body, "a later export has a later time");
}

#[tokio::test]
async fn collector_that_starts_later_is_used() {
    let listener = tokio::net::TcpListener::bind(("127.9.0.1", 0))
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let program = Program::start(&format!("http://{address}"), &[]);
    assert!(program.scrape().await.contains("\nopen -3\n"));
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let mut collector = Collector::serve(listener, &[]);
    let pushed = decode_request(&collector.next().await.body);
    assert_eq!(
        comparable_lines(&sample_lines(&pushed)),
        comparable_lines(&program.scrape().await)
    );
}

#[tokio::test]
async fn ending_programs_send_their_last_metrics() {
    let mut collector = Collector::start(&[]).await;
    let hour = [("OTEL_METRIC_EXPORT_INTERVAL", "3600000")];
    let program = Program::start(&collector.endpoint(), &hour);
    program.exporter.finish(TEST_TIMEOUT).await;
    assert!(
        !decode_request(&collector.next().await.body)
            .resource_metrics
            .is_empty()
    );
}

#[tokio::test]
async fn hanging_collectors_do_not_delay_the_end_of_a_program() {
    let mut collector = Collector::start(&[Reply::Hang, Reply::Hang]).await;
    let program = Program::start(
        &collector.endpoint(),
        &[("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")],
    );
    collector.next().await;
    let finish = program.exporter.finish(Duration::from_millis(50));
    let finished = tokio::time::timeout(TEST_TIMEOUT, finish).await;
    assert!(finished.is_ok());
}

#[tokio::test]
async fn programs_without_variables_export_nothing_and_have_no_further_metrics() {
    let env = Env::from_pairs::<&str, &str>([]);
    let exporter = Exporter::from_env(&env, "ambit-test").unwrap();
    assert!(exporter.record_sink().is_none());
    let mut registry = Registry::default();
    exporter.register(&mut registry);
    assert_eq!(ambit_rt::metrics::exposition(&registry).unwrap(), "# EOF\n");
    let exporting = exporter.start(|| panic!("nobody reads the metrics"));
    exporting.finish(TEST_TIMEOUT).await;
}
