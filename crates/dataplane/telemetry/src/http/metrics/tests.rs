//! Tests of request metrics as a scrape reads them.

use std::time::SystemTime;

use ambit_model::{Service, Workload};
use prometheus_client::encoding::text::encode;

use super::*;
use crate::{
    Reporter, SecurityPolicy, TrafficLabels, WorkloadLabels,
    http::{RequestProtocol, ResponseCode, ResponseFlag, ResponseFlags},
};

fn workload(name: &str) -> Workload {
    Workload {
        workload_name: name.into(),
        canonical_name: name.into(),
        canonical_revision: "v1".into(),
        namespace: "ns".into(),
        service_account: name.into(),
        ..Workload::default()
    }
}

fn traffic() -> TrafficLabels {
    let client = workload("client");
    let service = Service {
        name: "svc".into(),
        namespace: "ns".into(),
        hostname: "svc.ns.svc.cluster.local".into(),
        ..Service::default()
    };
    TrafficLabels {
        reporter: Reporter::Waypoint,
        source: Some(Arc::new(WorkloadLabels::new(
            &client,
            Some(client.identity()),
        ))),
        destination: Some(Arc::new(WorkloadLabels::destination(&workload("server")))),
        service: Some((&service).into()),
        security: SecurityPolicy::MutualTls,
    }
}

fn labels(code: u16) -> HttpLabels {
    HttpLabels::new(
        traffic(),
        RequestProtocol::Http,
        ResponseCode::new(code),
        ResponseFlags::default(),
    )
}

fn report(milliseconds: u64, bytes: u64) -> HttpRequestReport<'static> {
    let address = "10.0.0.1:80".parse().unwrap();
    HttpRequestReport {
        request_bytes: bytes,
        request_messages: 2,
        response_messages: 3,
        ..HttpRequestReport::new(
            SystemTime::UNIX_EPOCH,
            Duration::from_millis(milliseconds),
            address,
            address,
        )
    }
}

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    text
}

fn value<'a>(text: &'a str, name: &str, having: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    let line = lines.find(|l| l.starts_with(&format!("{name}{{")) && l.contains(having))?;
    line.rsplit_once(' ').map(|(_, value)| value)
}

#[test]
fn labels_have_the_names_of_the_contract() {
    let mut registry = Registry::default();
    let metrics = HttpMetrics::register(&mut registry);
    metrics.record(&labels(200), &report(1, 1));
    let text = scrape(&registry);
    let line = text
        .lines()
        .find(|l| l.starts_with("istio_requests_total{"));
    assert_eq!(
        line.unwrap(),
        "istio_requests_total{reporter=\"waypoint\",source_workload=\"client\",\
         source_canonical_service=\"client\",source_canonical_revision=\"v1\",\
         source_workload_namespace=\"ns\",\
         source_principal=\"spiffe://cluster.local/ns/ns/sa/client\",source_app=\"client\",\
         source_version=\"v1\",source_cluster=\"Kubernetes\",\
         destination_service=\"svc.ns.svc.cluster.local\",destination_service_namespace=\"ns\",\
         destination_service_name=\"svc\",destination_workload=\"server\",\
         destination_canonical_service=\"server\",destination_canonical_revision=\"v1\",\
         destination_workload_namespace=\"ns\",\
         destination_principal=\"spiffe://cluster.local/ns/ns/sa/server\",\
         destination_app=\"server\",destination_version=\"v1\",destination_cluster=\"Kubernetes\",\
         request_protocol=\"http\",response_code=\"200\",response_flags=\"-\",\
         connection_security_policy=\"mutual_tls\"} 1"
    );
}

#[test]
fn hidden_principals_are_unknown() {
    let mut registry = Registry::default();
    let metrics = HttpMetrics::register(&mut registry);
    metrics.hide_principals();
    metrics.record(&labels(200), &report(1, 1));
    let text = scrape(&registry);
    assert!(!text.contains("spiffe://"), "{text}");
    let line = "source_principal=\"unknown\",source_app=\"client\"";
    assert!(text.contains(line), "{text}");
}

#[test]
fn durations_and_sizes_are_histograms_with_envoys_buckets() {
    let mut registry = Registry::default();
    let metrics = HttpMetrics::register(&mut registry);
    for (milliseconds, bytes) in [(0, 0), (5, 10), (6, 3_600_000), (20, 3_600_001)] {
        metrics.record(&labels(200), &report(milliseconds, bytes));
    }
    let text = scrape(&registry);
    let milliseconds = "istio_request_duration_milliseconds";
    let bucket = |name: &str, le: &str| {
        let having = format!("le=\"{le}\"");
        value(&text, &format!("{name}_bucket"), &having)
            .unwrap()
            .to_owned()
    };
    for (le, count) in [
        ("0.5", "1"),
        ("1.0", "1"),
        ("5.0", "2"),
        ("10.0", "3"),
        ("25.0", "4"),
    ] {
        assert_eq!(bucket(milliseconds, le), count, "{le}");
    }
    assert_eq!(
        value(&text, &format!("{milliseconds}_sum"), ""),
        Some("31.0")
    );
    assert_eq!(
        value(&text, &format!("{milliseconds}_count"), ""),
        Some("4")
    );
    assert_eq!(bucket("istio_request_bytes", "3600000.0"), "3");
    assert_eq!(bucket("istio_request_bytes", "+Inf"), "4");
    assert_eq!(bucket("istio_response_bytes", "0.5"), "4");
}

#[test]
fn only_grpc_messages_are_counted() {
    let mut registry = Registry::default();
    let metrics = HttpMetrics::register(&mut registry);
    metrics.record(&labels(200), &report(1, 1));
    assert!(!scrape(&registry).contains("istio_request_messages"));
    let grpc = |status| {
        let code = ResponseCode::new(200);
        let flags = ResponseFlag::UpstreamRemoteReset.into();
        HttpLabels::new(traffic(), RequestProtocol::Grpc(status), code, flags)
    };
    for status in [Some(14), Some(17), Some(99), None] {
        metrics.record(&grpc(status), &report(1, 1));
    }
    let text = scrape(&registry);
    let known = "request_protocol=\"grpc\",response_code=\"200\",grpc_response_status=\"14\",response_flags=\"UR\"";
    let unknown = "grpc_response_status=\"unknown\"";
    for (family, known_count, unknown_count) in [
        ("istio_requests_total", "1", "3"),
        ("istio_request_messages_total", "2", "6"),
        ("istio_response_messages_total", "3", "9"),
    ] {
        assert_eq!(value(&text, family, known), Some(known_count), "{family}");
        assert_eq!(value(&text, family, unknown), Some(unknown_count));
    }
}

#[test]
fn invalid_codes_share_one_series() {
    let mut registry = Registry::default();
    let metrics = HttpMetrics::register(&mut registry);
    for code in [0, 1, 99, 600, 999, u16::MAX] {
        metrics.record(&labels(code), &report(1, 1));
    }
    let text = scrape(&registry);
    assert_eq!(
        value(&text, "istio_requests_total", "response_code=\"0\""),
        Some("6")
    );
    for code in [100, 599] {
        assert_eq!(ResponseCode::new(code).to_string(), code.to_string());
    }
}

#[test]
fn series_have_a_limit_which_drops_the_longest_unused() {
    let series = SeriesTable::default();
    let start = Instant::now();
    let with = |number: usize| {
        let traffic = TrafficLabels {
            source: Some(Arc::new(WorkloadLabels::new(
                &workload(&number.to_string()),
                None,
            ))),
            ..traffic()
        };
        let flags = ResponseFlags::default();
        HttpLabels::new(
            traffic,
            RequestProtocol::Http,
            ResponseCode::new(200),
            flags,
        )
    };
    let used = start + Duration::from_secs(5);
    for number in 0..=MAX_SERIES {
        let one = series.find_or_insert(&with(number), start);
        if number % 3 == 0 {
            one.add(&report(1, 1), used);
        }
    }
    let series_count = series.table.read().len();
    assert_eq!(series_count, MAX_SERIES / 2 + 1);
    assert_eq!(series.dropped_series.get(), (MAX_SERIES / 2) as u64);
    for number in (0..MAX_SERIES).step_by(3) {
        assert!(series.table.read().contains_key(&with(number)), "{number}");
    }
    series.drop_unused(start + UNUSED_SERIES_TTL);
    assert_eq!(series.table.read().len(), MAX_SERIES / 3 + 1);
    series.drop_unused(used + UNUSED_SERIES_TTL);
    assert!(series.table.read().is_empty());
}

#[test]
fn refusals_and_dry_runs_are_counted() {
    let mut registry = Registry::default();
    let metrics = HttpMetrics::register(&mut registry);
    metrics.count_refused_request("path_form");
    let policy = PolicyKey::from_resource_name("ns/p");
    metrics.count_dry_run_denial(&policy);
    let text = scrape(&registry);
    assert!(text.contains("ambit_requests_refused_total{reason=\"path_form\"} 1"));
    assert!(text.contains("ambit_policy_dry_run_denied_total{policy=\"ns/p\"} 1"));
    assert!(text.contains("ambit_http_series_dropped_total 0"));
    metrics.remove_policy(&policy);
    assert!(!scrape(&registry).contains("ns/p"));
}

#[test]
fn configured_labels_replace_others_and_merged_series_add_up() {
    use crate::http::{FamilyOverrides, MetricOverrides, RelabeledValues};
    let mut registry = Registry::default();
    let metrics = HttpMetrics::register(&mut registry);
    let mut relabel = MetricOverrides::default();
    relabel.set(
        TelemetryFamily::RequestCount,
        FamilyOverrides {
            disabled: false,
            labels: vec![("host".into(), Some(0)), ("response_code".into(), None)],
        },
    );
    relabel.set(
        TelemetryFamily::ResponseSize,
        FamilyOverrides {
            disabled: true,
            labels: Vec::new(),
        },
    );
    let relabel = Arc::new(relabel);
    for (code, host) in [(200, "a"), (404, "a"), (200, "b")] {
        let changed = RelabeledValues {
            overrides: relabel.clone(),
            values: vec![host.to_owned()],
        };
        metrics.record(&labels(code).with_overrides(Some(changed)), &report(1, 2));
    }
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let counts: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("istio_requests_total{"))
        .map(|line| {
            assert!(!line.contains("response_code="), "{line}");
            let at = line.find("host=").unwrap();
            line[at..].to_owned()
        })
        .collect();
    assert_eq!(counts, ["host=\"a\"} 2", "host=\"b\"} 1"]);
    assert!(!text.contains("istio_response_bytes"), "{text}");
    // Families without an override keep their labels.
    let durations = text.lines();
    let durations =
        durations.filter(|line| line.starts_with("istio_request_duration_milliseconds_count"));
    assert_eq!(
        durations
            .filter(|line| line.contains("response_code="))
            .count(),
        2
    );
}

/// Checks that sums never decrease: Prometheus takes a falling counter for a restart, and its whole value for an
/// increase.
#[test]
fn sum_of_series_never_falls_when_series_are_dropped() {
    use crate::http::{FamilyOverrides, MetricOverrides, RelabeledValues};
    let mut relabel = MetricOverrides::default();
    for family in TelemetryFamily::ALL {
        let without_codes = FamilyOverrides {
            disabled: false,
            labels: vec![("response_code".into(), None)],
        };
        relabel.set(family, without_codes);
    }
    let changed = RelabeledValues {
        overrides: Arc::new(relabel),
        values: Vec::new(),
    };
    let labels = |code| {
        let code = ResponseCode::new(code);
        let grpc = RequestProtocol::Grpc(Some(0));
        let labels = HttpLabels::new(traffic(), grpc, code, ResponseFlags::default());
        labels.with_overrides(Some(changed.clone()))
    };
    let mut registry = Registry::default();
    let metrics = HttpMetrics::register(&mut registry);
    let reported = report(4, 100);
    let start = Instant::now();
    for (code, at) in [
        (200, start),
        (500, start),
        (404, start + UNUSED_SERIES_TTL / 2),
    ] {
        metrics
            .series
            .find_or_insert(&labels(code), start)
            .add(&reported, at);
    }
    let exposed = || -> Vec<String> {
        let text = scrape(&registry);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    };
    let before = exposed();
    assert!(before.iter().any(|line| line.ends_with(" 9")), "{before:?}");
    metrics.series.drop_unused(start + UNUSED_SERIES_TTL);
    assert_eq!(metrics.series.table.read().len(), 1);
    assert_eq!(exposed(), before);
    assert_eq!(exposed(), before, "once");

    // Also when series are dropped to make room.
    metrics
        .series
        .find_or_insert(&labels(201), start)
        .add(&reported, start);
    let before = exposed();
    let dropped = evict_unused(&mut metrics.series.table.write());
    assert_eq!(dropped.len(), 1);
    assert_ne!(exposed(), before, "not yet left to anybody");
    metrics.series.retire(dropped);
    assert_eq!(exposed(), before);

    metrics.series.drop_unused(start + 2 * UNUSED_SERIES_TTL);
    assert_eq!(value(&scrape(&registry), "istio_requests_total", ""), None);
}
