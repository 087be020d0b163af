//! Plugins in the dump (`envoy.config.core.v3.TypedExtensionConfig` of `envoy.extensions.filters.http.wasm.v3.Wasm`).
//! Configuration and environment of a plugin may hold secrets, and are omitted.

use ambit_model::WaypointExtension;
use serde_json::{Value, json};

use super::proto_json::{any_message, duration, remove_empty_fields};
use crate::config::PluginTimeouts;

/// Renders the HTTP filter of a plugin.
pub(super) fn filter(plugin: &WaypointExtension, times: PluginTimeouts) -> Value {
    let name = format!("{}.{}", plugin.namespace, plugin.name);
    // Envoy requires a checksum for remote code; without one, only the VM id names the source.
    let sha256 = Some(plugin.sha256.as_str()).filter(|sha256| !sha256.is_empty());
    let code = sha256.map(|sha256| {
        let uri =
            json!({"uri": plugin.url.as_str(), "cluster": "_", "timeout": duration(times.fetch)});
        json!({"remote": {"http_uri": uri, "sha256": sha256}})
    });
    let wasm = any_message(
        "envoy.extensions.filters.http.wasm.v3.Wasm",
        json!({"config": {
            "name": name,
            "root_id": plugin.plugin_name.as_str(),
            "fail_open": plugin.fail_open,
            "vm_config": {
                "vm_id": plugin.url.as_str(),
                "runtime": "envoy.wasm.runtime.wasmtime",
                "code": code,
            },
        }}),
    );
    remove_empty_fields(json!({"ecds_filter": any_message(
        "envoy.config.core.v3.TypedExtensionConfig",
        json!({"name": name, "typed_config": wasm}),
    )}))
}
