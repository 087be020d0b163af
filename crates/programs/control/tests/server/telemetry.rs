//! Tests of metrics and logs of the real program at an OpenTelemetry collector.

use std::process::{Child, Command, Stdio};

use ambit_testkit::OtlpCollector;

use super::*;

/// Process that is killed when the test ends.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn metrics_and_logs_reach_an_opentelemetry_collector() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::create_dir(path("manifests")).unwrap();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    std::fs::write(path("keys.pem"), public_pem(&key)).unwrap();
    let (collector, endpoint) = OtlpCollector::start_on_free_port().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ambit-control"));
    command
        .args(["--manifests", &path("manifests")])
        .args(["--token-keys", &path("keys.pem")])
        .args(["--ca-dir", &path("ca")])
        .args(["--listen-xds", "127.0.0.1:0"])
        .args(["--listen-monitoring", "127.0.0.1:0"])
        .env_clear()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .env("OTEL_METRIC_EXPORT_INTERVAL", "100")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let _program = KillOnDrop(command.spawn().unwrap());
    collector.wait_until_exported("ambit-control", "pilot_xds", "xDS and certificates");
}
