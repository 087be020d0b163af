//! Spec of a `WasmPlugin`; field names as in Istio's definition.
//!
//! Unknown fields are errors. Numbers are parsed as wider types than their valid range, so that an
//! error can name the value.

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    istio::{PolicyTargetReference, WorkloadSelector},
    status::{self, Status},
};

/// Proxy-Wasm plugin that waypoints run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WasmPlugin {
    /// API version of the object.
    #[serde(default)]
    pub api_version: String,
    /// Kind of the object.
    #[serde(default)]
    pub kind: String,
    /// Metadata of the object.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Specification of the object.
    #[serde(default)]
    pub spec: WasmPluginSpec,
    /// Status that controllers wrote.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub status: Value,
}

impl k8s_openapi::Resource for WasmPlugin {
    const API_VERSION: &'static str = "extensions.istio.io/v1alpha1";
    const GROUP: &'static str = "extensions.istio.io";
    const KIND: &'static str = "WasmPlugin";
    const VERSION: &'static str = "v1alpha1";
    const URL_PATH_SEGMENT: &'static str = "wasmplugins";
    type Scope = NamespaceResourceScope;
}

impl k8s_openapi::Metadata for WasmPlugin {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Status for WasmPlugin {
    fn api_version(&self) -> &str {
        &self.api_version
    }

    fn conditions(&self) -> Vec<Value> {
        status::conditions(&self.status)
    }
}

/// Specification of a [`WasmPlugin`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are the contract's")]
pub struct WasmPluginSpec {
    pub selector: Option<WorkloadSelector>,
    pub target_ref: Option<PolicyTargetReference>,
    pub target_refs: Vec<PolicyTargetReference>,
    pub url: String,
    pub sha256: String,
    pub image_pull_policy: PullPolicy,
    pub image_pull_secret: String,
    pub verification_key: String,
    pub plugin_config: Option<Value>,
    pub plugin_name: String,
    pub phase: PluginPhase,
    pub priority: Option<i64>,
    pub fail_strategy: FailStrategy,
    pub vm_config: Option<VmConfig>,
    #[serde(rename = "match")]
    pub matches: Vec<TrafficSelector>,
    #[serde(rename = "type")]
    pub plugin_type: PluginType,
}

impl WasmPluginSpec {
    /// Returns whether the object has target references.
    pub fn is_attached(&self) -> bool {
        self.target_ref.is_some() || !self.target_refs.is_empty()
    }
}

/// Pull policy of the image with a plugin's module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullPolicy {
    /// Unset policy, which depends on the tag: as `Always` for `latest`, as `IfNotPresent` for others.
    #[default]
    #[serde(rename = "UNSPECIFIED_POLICY")]
    Unspecified,
    /// The waypoint pulls the image if the module is not cached.
    IfNotPresent,
    /// The waypoint pulls the image again whenever the plugin object changes.
    Always,
}

/// Filter-chain phase of a plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the values are the contract's")]
pub enum PluginPhase {
    #[default]
    #[serde(rename = "UNSPECIFIED_PHASE")]
    Unspecified,
    Authn,
    Authz,
    Stats,
}

/// Failure policy: handling of requests when the plugin cannot be loaded or fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FailStrategy {
    /// Requests fail if the plugin fails.
    #[default]
    FailClose,
    /// Requests bypass the plugin if it fails.
    FailOpen,
    /// Requests fail, and the plugin is restarted.
    FailReload,
}

/// Kind of traffic that a plugin processes: HTTP or TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PluginType {
    /// Unset type, which means HTTP requests.
    #[default]
    #[serde(rename = "UNSPECIFIED_PLUGIN_TYPE")]
    Unspecified,
    /// HTTP requests, by an explicit type.
    Http,
    /// TCP connections (network filter).
    Network,
}

/// Configuration of a plugin's virtual machine: environment variables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct VmConfig {
    /// Environment variables of the plugin's virtual machine.
    pub env: Vec<EnvVar>,
}

/// Environment variable of a plugin's virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are the contract's")]
pub struct EnvVar {
    pub name: String,
    pub value_from: EnvValueSource,
    pub value: String,
}

/// Source of an environment variable's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EnvValueSource {
    /// The value is in the WasmPlugin object.
    #[default]
    Inline,
    /// The value is that of the same variable in the proxy's environment.
    Host,
}

/// Selection of traffic by the proxy's role and by port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are the contract's")]
pub struct TrafficSelector {
    pub mode: WorkloadMode,
    pub ports: Vec<PortSelector>,
}

/// Role of the proxy that traffic is matched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(missing_docs, reason = "the values are the contract's")]
pub enum WorkloadMode {
    #[default]
    Undefined,
    Client,
    Server,
    ClientAndServer,
}

/// Selection of a service port by its number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PortSelector {
    /// Number of the port.
    pub number: i64,
}
