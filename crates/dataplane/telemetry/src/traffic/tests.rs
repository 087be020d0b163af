//! Tests of traffic metrics as a scrape reads them.

use ambit_model::{Identity, Service, TelemetryFamily, Workload};
use prometheus_client::{encoding::text::encode, registry::Registry};

use super::*;
use crate::{
    Reporter, SecurityPolicy, WorkloadLabels,
    http::{FamilyOverrides, MetricOverrides, RelabeledValues},
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

fn labels() -> TrafficLabels {
    let client = workload("client");
    let service = Service {
        name: "svc".into(),
        namespace: "ns".into(),
        hostname: "svc.ns.svc.cluster.local".into(),
        ..Service::default()
    };
    TrafficLabels {
        reporter: Reporter::Source,
        source: Some(Arc::new(WorkloadLabels::new(
            &client,
            Some(client.identity()),
        ))),
        destination: Some(Arc::new(WorkloadLabels::destination(&workload("server")))),
        service: Some((&service).into()),
        security: SecurityPolicy::MutualTls,
    }
}

fn scrape(traffic: &Arc<Traffic>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(TrafficCollector(traffic.clone())));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

fn sample<'a>(text: &'a str, metric: &str, flag: &str) -> Option<&'a str> {
    let flag = format!("response_flags=\"{flag}\"");
    text.lines()
        .find(|line| line.starts_with(&format!("{metric}{{")) && line.contains(&flag))
        .and_then(|line| line.rsplit_once(' '))
        .map(|(_, value)| value)
}

#[test]
fn labels_have_the_names_and_order_of_the_contract() {
    let traffic = Arc::new(Traffic::default());
    let _open = traffic.open_connection(&labels());
    let text = scrape(&traffic);
    let line = text
        .lines()
        .find(|line| line.starts_with("istio_tcp_connections_opened_total{"));
    assert_eq!(
        line.unwrap(),
        "istio_tcp_connections_opened_total{reporter=\"source\",source_workload=\"client\",\
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
         request_protocol=\"tcp\",response_flags=\"-\",\
         connection_security_policy=\"mutual_tls\",source_region=\"unknown\",\
         source_zone=\"unknown\",destination_region=\"unknown\",destination_zone=\"unknown\"} 1"
    );
}

#[test]
fn without_workloads_everything_is_unknown_and_there_is_no_locality() {
    let traffic = Arc::new(Traffic::default());
    traffic
        .open_connection(&TrafficLabels {
            reporter: Reporter::Destination,
            source: None,
            destination: None,
            service: None,
            security: SecurityPolicy::Unknown,
        })
        .close(FailureReason::None);
    let text = scrape(&traffic);
    assert!(text.contains("source_principal=\"unknown\""));
    assert!(text.contains("destination_service=\"unknown\""));
    assert!(!text.contains("region") && !text.contains("zone"));
}

#[test]
fn hidden_principals_are_unknown_and_share_one_series() {
    let traffic = Arc::new(Traffic::default());
    traffic.hide_principals();
    let proven = labels();
    let mut nobody = labels();
    nobody.source = nobody.source.map(|party| party.without_principal());
    let _open = [&proven, &nobody].map(|labels| traffic.open_connection(labels));
    let unchanged = RelabeledValues {
        overrides: Arc::default(),
        values: Vec::new(),
    };
    let _changed = traffic
        .relabeled_series(&proven, Some(unchanged))
        .open_connection();
    let text = scrape(&traffic);
    assert!(!text.contains("spiffe://"), "{text}");
    for side in ["source", "destination"] {
        assert!(
            text.contains(&format!("{side}_principal=\"unknown\"")),
            "{text}"
        );
        assert!(text.contains(&format!("{side}_app=")), "{text}");
    }
    assert_eq!(traffic.series.read().len(), 1);
}

#[test]
fn bytes_count_while_open_and_the_end_has_the_flag() {
    let traffic = Arc::new(Traffic::default());
    let connection = traffic.open_connection(&labels());
    connection.add_received(3);
    connection.add_sent(5);
    let text = scrape(&traffic);
    assert_eq!(
        sample(&text, "istio_tcp_received_bytes_total", "-"),
        Some("3")
    );
    assert_eq!(sample(&text, "istio_tcp_sent_bytes_total", "-"), Some("5"));
    assert!(
        !text.contains("istio_tcp_connections_closed"),
        "families without samples: {text}"
    );
    connection.close(FailureReason::Deny);
    drop(traffic.open_connection(&labels()));
    let text = scrape(&traffic);
    assert_eq!(
        sample(&text, "istio_tcp_connections_opened_total", "-"),
        Some("2")
    );
    assert_eq!(
        sample(&text, "istio_tcp_connections_closed_total", "DENY"),
        Some("1")
    );
    assert_eq!(
        sample(&text, "istio_tcp_connections_closed_total", "-"),
        Some("1")
    );
    assert_eq!(
        sample(&text, "istio_tcp_connections_failed_total", "DENY"),
        Some("1")
    );
    assert_eq!(
        sample(&text, "istio_tcp_connections_failed_total", "-"),
        None
    );
    assert_eq!(traffic.len(), 1);
}

#[test]
fn unopened_connections_count_as_failed_only_with_a_reason() {
    let traffic = Arc::new(Traffic::default());
    traffic
        .series(&labels())
        .count_failure(FailureReason::IdentityError);
    traffic.series(&labels()).count_failure(FailureReason::None);
    let text = scrape(&traffic);
    let failed = "istio_tcp_connections_failed_total";
    assert_eq!(sample(&text, failed, "IDENTITY_ERROR"), Some("1"));
    assert_eq!(sample(&text, failed, "-"), None);
    assert_eq!(
        sample(&text, "istio_tcp_connections_closed_total", "-"),
        Some("1")
    );
}

#[test]
fn waypoint_reporter_has_no_localities() {
    let traffic = Arc::new(Traffic::default());
    let _open = traffic.open_connection(&TrafficLabels {
        reporter: Reporter::Waypoint,
        ..labels()
    });
    let text = scrape(&traffic);
    assert!(text.contains("{reporter=\"waypoint\",source_workload=\"client\""));
    assert!(text.contains("connection_security_policy=\"mutual_tls\"} 1"));
}

#[test]
fn families_and_labels_follow_their_configuration() {
    use TelemetryFamily as Family;
    let mut relabel = MetricOverrides::default();
    let rule = |disabled, labels: Vec<(&str, Option<usize>)>| FamilyOverrides {
        disabled,
        labels: labels
            .into_iter()
            .map(|(name, at)| (name.into(), at))
            .collect(),
    };
    let labels_of = vec![("source_app", None), ("team", Some(0))];
    relabel.set(Family::OpenedConnections, rule(false, labels_of));
    relabel.set(Family::SentBytes, rule(true, Vec::new()));
    relabel.set(Family::ClosedConnections, rule(true, Vec::new()));
    let changed = |team: &str| {
        Some(RelabeledValues {
            overrides: Arc::new(relabel.clone()),
            values: vec![team.to_owned()],
        })
    };
    let traffic = Arc::new(Traffic::default());
    let mut other = labels();
    other.source = Some(Arc::new(WorkloadLabels {
        canonical_service: "elsewhere".into(),
        ..WorkloadLabels::default()
    }));
    for team in ["cart", "cart", "web"] {
        let open = traffic
            .relabeled_series(&labels(), changed(team))
            .open_connection();
        open.add_received(2);
        open.add_sent(3);
        open.close(FailureReason::Deny);
    }
    let text = scrape(&traffic);
    let opened: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("istio_tcp_connections_opened_total{"))
        .collect();
    assert_eq!(opened.len(), 2, "{text}");
    assert!(opened.iter().all(|line| !line.contains("source_app=")));
    let of_team = |team: &str| {
        let label = format!("team=\"{team}\"");
        opened.iter().find(|line| line.contains(&label)).copied()
    };
    assert!(of_team("cart").unwrap().ends_with(" 2"), "{text}");
    assert!(of_team("web").unwrap().ends_with(" 1"), "{text}");
    // Disabled families, and families that are off by default.
    for family in ["sent_bytes", "connections_closed", "connections_failed"] {
        assert!(
            !text.contains(&format!("istio_tcp_{family}_total{{")),
            "{text}"
        );
    }
    assert_eq!(
        sample(&text, "istio_tcp_received_bytes_total", "-"),
        Some("6")
    );
    // Other connections keep their labels.
    traffic
        .relabeled_series(&other, None)
        .open_connection()
        .add_sent(5);
    let text = scrape(&traffic);
    assert_eq!(sample(&text, "istio_tcp_sent_bytes_total", "-"), Some("5"));
    assert!(text.contains("source_app=\"elsewhere\""), "{text}");
    traffic.drop_unused(Instant::now() + 2 * UNUSED_SERIES_TTL);
    assert!(traffic.is_empty());
}

#[test]
fn no_families_are_written_without_traffic() {
    assert_eq!(scrape(&Arc::new(Traffic::default())), "# EOF\n");
}

#[test]
fn hostile_names_cannot_add_labels() {
    let traffic = Arc::new(Traffic::default());
    let mut labels = labels();
    labels.service = Some(crate::ServiceName {
        hostname: "a\"\n\\b".into(),
        namespace: "ns".into(),
        name: "n".into(),
    });
    traffic.open_connection(&labels).close(FailureReason::None);
    assert!(scrape(&traffic).contains(r#"destination_service="a\"\n\\b""#));
}

#[test]
fn unused_series_expire_and_those_in_use_stay() {
    let traffic = Arc::new(Traffic::default());
    let _open = traffic.open_connection(&labels());
    let mut other = labels();
    other.reporter = Reporter::Destination;
    traffic.open_connection(&other).close(FailureReason::None);
    traffic.drop_unused(Instant::now() + UNUSED_SERIES_TTL / 2);
    assert_eq!(traffic.len(), 2);
    traffic.drop_unused(Instant::now() + 2 * UNUSED_SERIES_TTL);
    assert_eq!(traffic.len(), 1);
}

/// Checks that sums never decrease: Prometheus takes a falling counter for a restart, and its whole value for an
/// increase.
#[test]
fn sum_of_series_never_falls_when_one_is_dropped() {
    let mut relabel = MetricOverrides::default();
    for family in [
        TelemetryFamily::ClosedConnections,
        TelemetryFamily::ReceivedBytes,
    ] {
        let without_revisions = FamilyOverrides {
            disabled: false,
            labels: vec![
                ("source_version".into(), None),
                ("source_canonical_revision".into(), None),
            ],
        };
        relabel.set(family, without_revisions);
    }
    let relabel = Arc::new(relabel);
    let of = |revision: &str| {
        let mut labels = labels();
        labels.source = Some(Arc::new(WorkloadLabels {
            canonical_revision: revision.into(),
            ..WorkloadLabels::default()
        }));
        let changed = RelabeledValues {
            overrides: relabel.clone(),
            values: Vec::new(),
        };
        (labels, changed)
    };
    let traffic = Arc::new(Traffic::default());
    let connect = |revision: &str, bytes| {
        let (labels, changed) = of(revision);
        let open = traffic
            .relabeled_series(&labels, Some(changed))
            .open_connection();
        open.add_received(bytes);
        open
    };
    connect("gone", 5).close(FailureReason::Deny);
    let stays = connect("stays", 7);
    let received =
        |text: &str| sample(text, "istio_tcp_received_bytes_total", "-").map(str::to_owned);
    assert_eq!(received(&scrape(&traffic)).as_deref(), Some("12"));
    traffic.drop_unused(Instant::now() + 2 * UNUSED_SERIES_TTL);
    assert_eq!(traffic.len(), 1);
    let text = scrape(&traffic);
    assert_eq!(received(&text).as_deref(), Some("12"));
    for family in ["closed", "failed"] {
        let family = format!("istio_tcp_connections_{family}_total");
        assert_eq!(sample(&text, &family, "DENY"), Some("1"), "{family}");
    }
    // A family that distinguishes the labels continues with its existing series.
    assert_eq!(
        sample(&text, "istio_tcp_connections_opened_total", "-"),
        Some("1")
    );
    assert_eq!(received(&scrape(&traffic)).as_deref(), Some("12"), "once");

    drop(stays);
    traffic.drop_unused(Instant::now() + 2 * UNUSED_SERIES_TTL);
    assert_eq!(scrape(&traffic), "# EOF\n", "nobody is left");
    let _new = connect("new", 1);
    assert_eq!(received(&scrape(&traffic)).as_deref(), Some("1"));
}

#[test]
fn open_connections_share_the_labels_of_their_series() {
    let traffic = Arc::new(Traffic::default());
    let mut ends = [(); 2].map(|()| Arc::new(labels()));
    let open = ends.each_mut().map(|labels| traffic.open_in_series(labels));
    let [first, second] = ends;
    assert_eq!(*first, labels());
    assert!(Arc::ptr_eq(&first, &second));
    open[0].close_connection(FailureReason::Connect);
    let text = scrape(&traffic);
    for (what, flags, count) in [
        ("opened", "-", "2"),
        ("closed", "CONNECT", "1"),
        ("failed", "CONNECT", "1"),
    ] {
        let family = format!("istio_tcp_connections_{what}_total");
        assert_eq!(sample(&text, &family, flags), Some(count), "{what}");
    }
}

#[test]
fn the_table_is_bounded() {
    let traffic = Traffic::default();
    let mut labels = labels();
    let open = traffic.open_connection(&labels);
    for index in 0..MAX_SERIES + 10 {
        let mut party = WorkloadLabels::destination(&workload("server"));
        party.principal = Some(Identity::new("td", "ns", index.to_string()));
        labels.destination = Some(Arc::new(party));
        drop(traffic.open_connection(&labels));
    }
    assert!(traffic.len() <= MAX_SERIES);
    assert!(
        traffic
            .series
            .read()
            .values()
            .any(|series| Arc::ptr_eq(series, &open.series))
    );
}
