//! External authorization providers (Istio's `envoyExtAuthzGrpc` and `envoyExtAuthzHttp`).

use std::time::Duration;

use arcstr::ArcStr;
use serde::Serialize;

use crate::{NamespacedHostname, StringMatch, json};

/// External authorization provider of CUSTOM policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Provider {
    /// Name of the provider in MeshConfig.
    pub name: ArcStr,
    /// Service and port of the provider. An error is the reason why it cannot be called; the policy then denies every
    /// request that it applies to.
    #[serde(rename = "place")]
    pub target: Result<(NamespacedHostname, u16), ArcStr>,
    /// Timeout of a check.
    #[serde(serialize_with = "json::duration")]
    pub timeout: Duration,
    /// Response status for requests whose check fails.
    pub status_on_error: u16,
    /// Whether requests are allowed when their check fails.
    pub fail_open: bool,
    /// Limits of request bodies in checks; `None` sends no body.
    pub body: Option<ProviderBody>,
    /// Protocol of the provider's checks.
    pub protocol: ProviderProtocol,
}

/// How much of a request body a check carries, and in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderBody {
    /// Maximum length of a body in a check, in bytes.
    pub max_bytes: u32,
    /// Whether a larger body is truncated to the limit; if not, the request is rejected with 413.
    pub allow_partial: bool,
    /// Whether gRPC checks carry the body as bytes instead of text (`raw_body`).
    pub as_bytes: bool,
}

/// Protocol of a provider's checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ProviderProtocol {
    /// gRPC service `envoy.service.auth.v3.Authorization`.
    Grpc,
    /// HTTP request with the path and selected headers of the original request.
    Http(HttpProvider),
}

/// Settings of an HTTP provider: headers of its checks, and headers that are copied from its responses. Header names
/// are in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpProvider {
    /// Prefix that checks add to the original path.
    pub path_prefix: ArcStr,
    /// Request headers that are included in checks, in addition to those that every check includes.
    pub headers: Vec<StringMatch>,
    /// Fixed headers that are added to checks.
    #[serde(serialize_with = "json::secret_values")]
    pub added: Vec<(ArcStr, ArcStr)>,
    /// Response headers of the provider that are copied to the request for the application.
    pub to_application: Vec<StringMatch>,
    /// Response headers of the provider that are copied to the client's response when the request is allowed.
    pub to_client_allowed: Vec<StringMatch>,
    /// Response headers of the provider that are copied to the client's response on a denial, in addition to those that
    /// always are. All headers if empty.
    pub to_client_denied: Vec<StringMatch>,
}
