use prometheus_client::encoding::text::encode;

use super::*;

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    text
}

#[test]
fn every_family_has_the_name_of_the_contract() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let dns = DnsLabels {
        request_query_type: ArcStrLabel("A".into()),
        request_protocol: ArcStrLabel("udp".into()),
        source_canonical_service: ArcStrLabel("client".into()),
        source_canonical_revision: ArcStrLabel("v1".into()),
    };
    let _socket = metrics.open_socket(Reporter::Source);
    metrics.count_on_demand_dns(&Arc::new(WorkloadLabels::default()), &"example.com".into());
    metrics.count_crl_rejection(Reporter::Destination);
    metrics.count_crl_untracked(Reporter::Source);
    metrics.count_xds_termination(XdsTermination::ConnectionError);
    metrics.count_xds_message("type.googleapis.com/istio.workload.Address", 10);
    metrics.count_unknown_fields("type.googleapis.com/istio.workload.Address", 3);
    metrics.count_dns_request(&dns);
    metrics.count_dns_forwarded(&dns, Some(0.002));
    metrics.count_dns_forwarded(&dns, None);
    metrics.proxies_started.inc();
    let text = scrape(&registry);
    for sample in [
        "istio_tcp_sockets_open{reporter=\"source\"} 1",
        "istio_on_demand_dns_total{source_workload=\"unknown\",",
        "istio_crl_policy_rejections_total{reporter=\"destination\"} 1",
        "istio_crl_untracked_connections_total{reporter=\"source\"} 1",
        "istio_xds_connection_terminations_total{reason=\"ConnectionError\"} 1",
        "istio_xds_message_total{url=\"type.googleapis.com/istio.workload.Address\"} 1",
        "istio_xds_message_bytes_total{url=\"type.googleapis.com/istio.workload.Address\"} 10",
        "ambit_xds_unknown_fields_total{url=\"type.googleapis.com/istio.workload.Address\"} 3",
        "istio_dns_requests_total{request_query_type=\"A\",request_protocol=\"udp\",\
         source_canonical_service=\"client\",source_canonical_revision=\"v1\"} 1",
        "istio_dns_upstream_requests_total{",
        "istio_dns_upstream_failures_total{",
        "istio_dns_upstream_request_duration_seconds_bucket{le=\"0.01\",",
        "workload_manager_active_proxy_count 0",
        "workload_manager_pending_proxy_count 0",
        "workload_manager_proxies_started_total 1",
        "workload_manager_proxies_stopped_total 0",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with(sample)),
            "{sample} is missing in\n{text}"
        );
    }
}

#[test]
fn a_socket_counts_until_it_is_dropped() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let one = metrics.open_socket(Reporter::Destination);
    let two = metrics.open_socket(Reporter::Destination);
    drop(one);
    assert!(scrape(&registry).contains("istio_tcp_sockets_open{reporter=\"destination\"} 1\n"));
    drop(two);
    assert!(scrape(&registry).contains("istio_tcp_sockets_open{reporter=\"destination\"} 0\n"));
}
