//! Benchmark of tracing: spans go to one collector, by a Telemetry in Ambit, by the OpenTelemetry tracer in Envoy.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{compared_proxy::AMBIT_WAYPOINT, servers::extension_provider};

/// Environment variable with the path of the collector's program.
const COLLECTOR_PATH_VARIABLE: &str = "AMBIT_BENCH_COLLECTOR";
/// Namespace and name of the collector's pod.
pub(super) const NAMESPACED_NAME: (&str, &str) = ("observability", "collector");
/// Port of OTLP over gRPC.
pub(super) const PORT: u16 = 4317;

/// Returns the manifests of the collector, and of the objects for Ambit's waypoint.
pub(super) fn manifests(percentage: u32) -> Result<String> {
    let program =
        PathBuf::from(std::env::var_os(COLLECTOR_PATH_VARIABLE).context("no collector is named")?);
    ensure!(
        program.exists(),
        "there is no collector at {}",
        program.display()
    );
    let command = format!("sh, -c, {} > /dev/null", program.display());
    let provider = extension_provider(NAMESPACED_NAME, &command, PORT, ("spans", "opentelemetry"));
    let ours = AMBIT_WAYPOINT.name;
    Ok(format!(
        "{provider}apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {{name: traced, namespace: {ours}}}
spec: {{tracing: [{{providers: [{{name: spans}}], randomSamplingPercentage: {percentage}}}]}}
---
"
    ))
}

/// Returns the configuration of Envoy's tracer.
pub(super) fn tracer(percentage: u32) -> Value {
    json!({
        "random_sampling": {"value": percentage},
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                "service_name": "waypoint",
                "grpc_service": {"envoy_grpc": {"cluster_name": NAMESPACED_NAME.1}, "timeout": "10s"},
            },
        },
    })
}
