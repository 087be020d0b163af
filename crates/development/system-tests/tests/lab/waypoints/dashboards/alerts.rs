//! Tests that alerts fire on the intended series, during the whole of their `for` duration, and on no others.

use std::collections::BTreeSet;

use super::{alert_rules_path, prometheus, prometheus::Input};

/// Interval between samples, in seconds.
const SAMPLE_INTERVAL_SECONDS: u64 = 60;
/// Evaluation time in seconds after the first sample, later than the `for` duration of any alert.
const EVALUATION_TIME_SECONDS: f64 = 24_000.0;

/// Series on which an alert fires, and series on which it does not, in the notation of Prometheus' rule tests.
struct AlertCase {
    alert: &'static str,
    firing_series: &'static [&'static str],
    silent_series: &'static [&'static str],
}

const CASES: &[AlertCase] = &[
    AlertCase {
        alert: "AmbitControlPlaneUnreachable",
        firing_series: &[
            r#"istio_xds_connection_terminations_total{pod="ztunnel-a", reason="ConnectionError"} 0+60x400"#,
        ],
        silent_series: &[
            r#"istio_xds_connection_terminations_total{pod="ztunnel-a", reason="Reconnect"} 0+60x400"#,
        ],
    },
    AlertCase {
        alert: "AmbitControlPlaneGone",
        firing_series: &[r#"up{job="kubernetes-pods"} 1x400"#],
        silent_series: &["pilot_xds 3x400"],
    },
    AlertCase {
        alert: "AmbitConfigurationSlow",
        firing_series: &[
            r#"pilot_proxy_convergence_time_bucket{le="3"} 0+1x400"#,
            r#"pilot_proxy_convergence_time_bucket{le="10"} 0+60x400"#,
            r#"pilot_proxy_convergence_time_bucket{le="+Inf"} 0+60x400"#,
        ],
        silent_series: &[
            r#"pilot_proxy_convergence_time_bucket{le="3"} 0+60x400"#,
            r#"pilot_proxy_convergence_time_bucket{le="+Inf"} 0+60x400"#,
        ],
    },
    AlertCase {
        alert: "AmbitConfigurationRejected",
        firing_series: &[r#"pilot_total_xds_rejects{type="WADS"} 0x395 1x9"#],
        silent_series: &[r#"pilot_total_xds_rejects{type="WADS"} 1x400"#],
    },
    AlertCase {
        alert: "AmbitObjectsInvalid",
        firing_series: &[r#"ambit_object_problems{severity="error"} 2x400"#],
        silent_series: &[r#"ambit_object_problems{severity="warning"} 2x400"#],
    },
    AlertCase {
        alert: "AmbitVersionsDiffer",
        firing_series: &[
            r#"istio_build{component="pilot", tag="2"} 1x400"#,
            r#"istio_build{component="ztunnel", tag="1"} 1x400"#,
        ],
        silent_series: &[
            r#"istio_build{component="pilot", tag="2"} 1x400"#,
            r#"istio_build{component="ztunnel", tag="2"} 1x400"#,
        ],
    },
    AlertCase {
        alert: "AmbitRootExpires",
        firing_series: &["citadel_server_root_cert_expiry_timestamp 900000x400"],
        silent_series: &["citadel_server_root_cert_expiry_timestamp 9000000x400"],
    },
    AlertCase {
        alert: "AmbitCertificatesNotRenewed",
        firing_series: &[r#"ambit_certificates{pod="ztunnel-a", state="overdue"} 1x400"#],
        silent_series: &[r#"ambit_certificates{pod="ztunnel-a", state="available"} 9x400"#],
    },
    AlertCase {
        alert: "AmbitCertificateRequestsFail",
        firing_series: &[r#"citadel_server_csr_count{outcome="denied"} 0+1x400"#],
        silent_series: &[r#"citadel_server_csr_count{outcome="issued"} 0+9x400"#],
    },
    AlertCase {
        alert: "AmbitPodsNotCaptured",
        firing_series: &[
            r#"ambit_agent_pods_wanted{pod="agent-a"} 9x400"#,
            r#"ambit_agent_pods_captured{pod="agent-a"} 8x400"#,
        ],
        silent_series: &[
            r#"ambit_agent_pods_wanted{pod="agent-a"} 9x400"#,
            r#"ambit_agent_pods_captured{pod="agent-a"} 9x400"#,
        ],
    },
    AlertCase {
        alert: "AmbitEnrolmentFails",
        firing_series: &[r#"ambit_agent_pods_failing{pod="agent-a"} 1x400"#],
        silent_series: &[r#"ambit_agent_pods_failing{pod="agent-a"} 0x400"#],
    },
    AlertCase {
        alert: "AmbitPluginNotInstalled",
        firing_series: &[r#"istio_cni_install_ready{pod="agent-a"} 0x400"#],
        silent_series: &[r#"istio_cni_install_ready{pod="agent-a"} 1x400"#],
    },
    AlertCase {
        alert: "AmbitPodStartsFail",
        firing_series: &[
            r#"istio_cni_plugin_requests_total{pod="agent-a", response_code="500"} 0+1x400"#,
        ],
        silent_series: &[
            r#"istio_cni_plugin_requests_total{pod="agent-a", response_code="200"} 0+1x400"#,
        ],
    },
    AlertCase {
        alert: "AmbitNodeProxyGone",
        firing_series: &[r#"ztunnel_connected{pod="agent-a"} 0x400"#],
        silent_series: &[r#"ztunnel_connected{pod="agent-a"} 2x400"#],
    },
    AlertCase {
        alert: "AmbitProcessPanics",
        firing_series: &[r#"ambit_panics_total{pod="ztunnel-a"} 0x395 1x9"#],
        silent_series: &[r#"ambit_panics_total{pod="ztunnel-a"} 1x400"#],
    },
    AlertCase {
        alert: "AmbitOpenFilesRunOut",
        firing_series: &[
            r#"process_open_fds{pod="ztunnel-a"} 900x400"#,
            r#"process_max_fds{pod="ztunnel-a"} 1000x400"#,
            r#"istio_build{pod="ztunnel-a"} 1x400"#,
        ],
        // Of a program outside of the mesh.
        silent_series: &[
            r#"process_open_fds{pod="database"} 900x400"#,
            r#"process_max_fds{pod="database"} 1000x400"#,
            r#"istio_build{pod="ztunnel-a"} 1x400"#,
        ],
    },
    AlertCase {
        alert: "AmbitConnectionsDenied",
        firing_series: &[
            r#"istio_tcp_connections_failed_total{destination_workload="a", reporter="destination", response_flags="DENY"} 0x380 60+60x30"#,
        ],
        // The number is unchanged.
        silent_series: &[
            r#"istio_tcp_connections_failed_total{destination_workload="a", reporter="destination", response_flags="DENY"} 0+60x400"#,
        ],
    },
    AlertCase {
        alert: "AmbitHandshakesFail",
        firing_series: &[
            r#"istio_tcp_connections_failed_total{pod="ztunnel-a", response_flags="TLS_FAILURE"} 0+60x400"#,
        ],
        silent_series: &[
            r#"istio_tcp_connections_failed_total{pod="ztunnel-a", response_flags="DENY"} 0+60x400"#,
        ],
    },
    AlertCase {
        alert: "AmbitConnectionsFail",
        firing_series: &[
            r#"istio_tcp_connections_failed_total{destination_service="a", reporter="source", response_flags="CONNECT"} 0+20x400"#,
            r#"istio_tcp_connections_opened_total{destination_service="a", reporter="source"} 0+60x400"#,
        ],
        silent_series: &[
            r#"istio_tcp_connections_failed_total{destination_service="a", reporter="source", response_flags="CONNECT"} 0+1x400"#,
            r#"istio_tcp_connections_opened_total{destination_service="a", reporter="source"} 0+60x400"#,
        ],
    },
    AlertCase {
        alert: "AmbitWaypointErrors",
        firing_series: &[
            r#"istio_requests_total{destination_service="a", reporter="waypoint", response_code="503"} 0+6x400"#,
            r#"istio_requests_total{destination_service="a", reporter="waypoint", response_code="200"} 0+60x400"#,
        ],
        silent_series: &[
            r#"istio_requests_total{destination_service="a", reporter="waypoint", response_code="404"} 0+6x400"#,
            r#"istio_requests_total{destination_service="a", reporter="waypoint", response_code="200"} 0+60x400"#,
        ],
    },
    AlertCase {
        alert: "AmbitWaypointNoEndpoints",
        firing_series: &[
            r#"istio_requests_total{reporter="waypoint", response_code="503", response_flags="UH,URX"} 0+1x400"#,
        ],
        silent_series: &[
            r#"istio_requests_total{reporter="waypoint", response_code="503", response_flags="UF"} 0+1x400"#,
        ],
    },
    AlertCase {
        alert: "AmbitWaypointMemoryFull",
        firing_series: &[
            r#"ambit_memory_budget_held_bytes{pod="waypoint"} 90x400"#,
            r#"ambit_memory_budget_bytes{pod="waypoint"} 100x400"#,
        ],
        silent_series: &[
            r#"ambit_memory_budget_held_bytes{pod="waypoint"} 10x400"#,
            r#"ambit_memory_budget_bytes{pod="waypoint"} 100x400"#,
        ],
    },
    AlertCase {
        alert: "AmbitNamesFail",
        firing_series: &[
            r#"istio_dns_upstream_failures_total{pod="ztunnel-a"} 0+20x400"#,
            r#"istio_dns_upstream_requests_total{pod="ztunnel-a"} 0+60x400"#,
        ],
        silent_series: &[
            r#"istio_dns_upstream_failures_total{pod="ztunnel-a"} 0+1x400"#,
            r#"istio_dns_upstream_requests_total{pod="ztunnel-a"} 0+60x400"#,
        ],
    },
];

/// Evaluates an expression once a minute during its alert's `for` duration, and counts the results.
fn count_results(series: &[&str], expr: &str, seconds: f64) -> f64 {
    let range = seconds.max(60.0);
    let queries = vec![format!("count_over_time(count({expr})[{range}s:60s])")];
    let output = prometheus::query(&Input {
        series: series.iter().map(|one| (*one).to_owned()).collect(),
        interval: SAMPLE_INTERVAL_SECONDS,
        queries,
        time: EVALUATION_TIME_SECONDS,
        ..Input::default()
    });
    let answer = &output.results[0];
    assert_eq!(answer.error, "", "{expr}");
    let value = answer.samples.first().map(|sample| &sample.value);
    value.map_or(0.0, |value| value.parse().unwrap())
}

#[test]
fn alerts_fire_only_on_their_intended_series() {
    let alerts = prometheus::query(&Input {
        rules: alert_rules_path().display().to_string(),
        ..Input::default()
    })
    .alerts;
    let names: BTreeSet<_> = alerts.iter().map(|alert| alert.name.as_str()).collect();
    let tested: BTreeSet<_> = CASES.iter().map(|case| case.alert).collect();
    assert_eq!(names, tested);
    for alert in &alerts {
        let case = CASES.iter().find(|case| case.alert == alert.name).unwrap();
        let required = (alert.r#for / 60.0).max(1.0);
        let fires = count_results(case.firing_series, &alert.expr, alert.r#for);
        assert!(fires >= required, "{}: {fires} of {required}", alert.name);
        let silent = count_results(case.silent_series, &alert.expr, alert.r#for);
        assert!(silent == 0.0, "{} fires: {silent}", alert.name);
        let summary = &alert.annotations["summary"];
        assert!(summary.len() > 80, "{}: {summary}", alert.name);
        let severity = alert.labels["severity"].as_str();
        assert!(["critical", "warning", "info"].contains(&severity));
    }
}
