//! Providers that decide about requests instead of a waypoint (Istio's `envoyExtAuthzGrpc` and `envoyExtAuthzHttp`).

use std::time::Duration;

use arcstr::ArcStr;
use serde::Serialize;

use crate::{NamespacedHostname, StringMatch, json};

/// External authorizer of CUSTOM policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Provider {
    /// Its name in MeshConfig.
    pub name: ArcStr,
    /// Destination of the provider; an error gives the reason why it cannot be called: then the policy denies every
    /// request to its targets.
    pub place: Result<(NamespacedHostname, u16), ArcStr>,
    /// How long it may take.
    #[serde(serialize_with = "json::duration")]
    pub timeout: Duration,
    /// The status of requests about which it does not answer.
    pub status_on_error: u16,
    /// Whether they pass instead.
    pub fail_open: bool,
    /// Part of requests' bodies that the provider receives, if any.
    pub body: Option<ProviderBody>,
    /// Protocol of its checks.
    pub protocol: ProviderProtocol,
}

/// How much of a request's body a provider gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderBody {
    /// Largest part of a body, in bytes.
    pub max_bytes: u32,
    /// Of a larger one its beginning; otherwise the request is refused.
    pub allow_partial: bool,
    /// Of gRPC: as bytes and not as text.
    pub as_bytes: bool,
}

/// Protocol of a provider's checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ProviderProtocol {
    /// gRPC service `envoy.service.auth.v3.Authorization`.
    Grpc,
    /// By a request like the one that it is about.
    Http(HttpProvider),
}

/// Headers that a provider over HTTP receives, and those that are taken over from its answers. Names of headers are in
/// lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpProvider {
    /// Before the path.
    pub path_prefix: ArcStr,
    /// Which of the request's headers it gets, besides those that it always gets.
    pub headers: Vec<StringMatch>,
    /// Headers that it gets besides.
    #[serde(serialize_with = "json::secret_values")]
    pub added: Vec<(ArcStr, ArcStr)>,
    /// Which of its headers the application gets.
    pub to_application: Vec<StringMatch>,
    /// Which of its headers the client gets with the application's answer.
    pub to_client_allowed: Vec<StringMatch>,
    /// Which it gets with a denial, besides those that it always gets; all if there are none.
    pub to_client_denied: Vec<StringMatch>,
}
