//! Benchmark of a plugin that changes headers, the same module on both sides: a WasmPlugin in Ambit, the Wasm filter on
//! V8 in Envoy.

use std::{fs, path::Path};

use anyhow::Result;
use serde_json::{Value, json};

use super::compared_proxy::AMBIT_WAYPOINT;

/// Module that sets a header of each request, and adds one to each response.
const MODULE: &str = include_str!("../../../../dataplane/wasm/tests/modules/headers.wat");
const FILE: &str = "headers.wasm";

/// Returns the manifests for Ambit's waypoint; writes the module into the directory.
pub(super) fn manifests(directory: &Path) -> Result<String> {
    let path = directory.join(FILE);
    fs::write(&path, wat::parse_str(MODULE)?)?;
    let gateway = AMBIT_WAYPOINT.name;
    Ok(format!(
        "apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {{name: headers, namespace: {gateway}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: {gateway}}}]
  url: file://{path}
  pluginConfig: {{mark: bench}}
---
",
        path = path.display(),
    ))
}

/// Returns the configuration of Envoy's Wasm filter.
pub(super) fn envoy_filter(directory: &Path) -> Value {
    json!({"config": {
        "name": "headers",
        "root_id": "headers",
        "vm_config": {
            "runtime": "envoy.wasm.runtime.v8",
            "code": {"local": {"filename": directory.join(FILE)}},
        },
        "configuration": {
            "@type": "type.googleapis.com/google.protobuf.StringValue",
            "value": "{\"mark\":\"bench\"}",
        },
    }})
}
