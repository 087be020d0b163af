//! Tests of settings from OpenTelemetry's environment variables.

use super::*;

fn settings(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    Settings::from_env(&Env::from_pairs(pairs.iter().copied()))
}

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/base/");

#[test]
fn nothing_is_exported_without_an_endpoint_or_when_disabled() {
    for variables in [
        &[][..],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
        &[("OTEL_METRIC_EXPORT_INTERVAL", "1000")],
        &[ENDPOINT, ("OTEL_SDK_DISABLED", "true")],
        &[
            ENDPOINT,
            ("OTEL_METRICS_EXPORTER", "none"),
            ("OTEL_LOGS_EXPORTER", "none"),
        ],
        &[
            ENDPOINT,
            ("OTEL_METRICS_EXPORTER", "prometheus"),
            ("OTEL_LOGS_EXPORTER", "console"),
        ],
    ] {
        let settings = settings(variables).unwrap();
        assert_eq!(
            (settings.metrics, settings.logs),
            (None, None),
            "{variables:?}"
        );
    }
}

#[test]
fn common_endpoint_is_extended_and_signal_endpoint_is_unchanged() {
    let both = settings(&[
        ENDPOINT,
        ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://[fd00::1]/take"),
    ])
    .unwrap();
    let metrics = both.metrics.unwrap();
    assert_eq!(metrics.uri, "http://collector:4318/base/v1/metrics");
    assert_eq!((metrics.host.as_str(), metrics.port), ("collector", 4318));
    assert_eq!(metrics.timeout, Duration::from_secs(10));
    let logs = both.logs.unwrap();
    assert_eq!(logs.uri, "http://[fd00::1]/take");
    assert_eq!((logs.host.as_str(), logs.port), ("fd00::1", 80));
    assert_eq!(both.interval, Duration::from_secs(60));
}

#[test]
fn grpc_ignores_the_endpoints_path() {
    let grpc = settings(&[
        ENDPOINT,
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/protobuf"),
    ])
    .unwrap();
    assert_eq!(
        grpc.metrics.unwrap().uri.path(),
        "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
    );
    assert_eq!(grpc.logs.unwrap().uri.path(), "/base/v1/logs");
}

#[test]
fn a_signal_named_otlp_has_the_default_endpoint() {
    let settings = settings(&[
        ("OTEL_METRICS_EXPORTER", "otlp,prometheus"),
        ("OTEL_LOGS_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "grpc"),
    ])
    .unwrap();
    assert_eq!(
        settings.metrics.unwrap().uri,
        "http://localhost:4318/v1/metrics"
    );
    assert_eq!(settings.logs.unwrap().port, 4317);
}

#[test]
fn https_trusts_the_systems_authorities_or_those_of_a_file() {
    let of = |more: &[(&str, &str)]| {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector");
        let variables: Vec<_> = [endpoint].into_iter().chain(more.iter().copied()).collect();
        let metrics = settings(&variables).unwrap().metrics.unwrap();
        assert_eq!(metrics.port, 443);
        assert_eq!(metrics.uri, "https://collector/v1/metrics");
        metrics.tls.unwrap()
    };
    assert_eq!(of(&[]), TlsRoots::System);
    let variable = "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE".to_owned();
    let file = of(&[(&variable, "/ca.pem")]);
    let path = "/ca.pem".to_owned();
    assert_eq!(file, TlsRoots::File { variable, path });
    assert_eq!(settings(&[ENDPOINT]).unwrap().logs.unwrap().tls, None);
}

#[test]
fn headers_timeouts_and_attributes_are_read() {
    let settings = settings(&[
        ENDPOINT,
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "authorization=Bearer%20a%2Cb, x-tenant = shop,",
        ),
        ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "x-tenant=logs"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
        ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "700"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1500"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=mesh,where=a%3Db"),
    ])
    .unwrap();
    let (metrics, logs) = (settings.metrics.unwrap(), settings.logs.unwrap());
    assert_eq!(metrics.headers["authorization"], "Bearer a,b");
    assert!(metrics.headers["authorization"].is_sensitive());
    assert_eq!(metrics.headers["x-tenant"], "shop");
    assert_eq!(logs.headers.len(), 1);
    assert_eq!(logs.headers["x-tenant"], "logs");
    assert_eq!(metrics.timeout, Duration::from_millis(500));
    assert_eq!(logs.timeout, Duration::from_millis(700));
    assert_eq!(settings.interval, Duration::from_millis(1500));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        settings.attributes,
        [pair("team", "mesh"), pair("where", "a=b")]
    );
}

#[test]
fn unsupported_values_are_refused_by_name_and_value() {
    for (variable, value) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "udp"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://collector:4318"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key.pem"),
        ("OTEL_EXPORTER_OTLP_LOGS_CLIENT_CERTIFICATE", "/cert.pem"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:99999"),
        ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_METRICS_EXPORTER", "console"),
        ("OTEL_LOGS_EXPORTER", "otlp,elsewhere"),
        ("OTEL_RESOURCE_ATTRIBUTES", "no value"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=%zz"),
        ("OTEL_SDK_DISABLED", "perhaps"),
    ] {
        let error = settings(&[ENDPOINT, (variable, value)]).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(variable) && error.contains(&format!("{value:?}")),
            "{error}"
        );
    }
}

#[test]
fn errors_never_repeat_secrets() {
    let endpoint = (
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
        "http://user:hunter2@collector",
    );
    let error = settings(&[endpoint]).unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(
        shown.contains("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT") && !shown.contains("hunter2"),
        "{shown}"
    );
    for secret in ["hunter2", "name=hunter2%", "na me=hunter2", "a=hunter2%0a"] {
        let error = settings(&[ENDPOINT, ("OTEL_EXPORTER_OTLP_HEADERS", secret)]).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(
            shown.contains("OTEL_EXPORTER_OTLP_HEADERS") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
}
