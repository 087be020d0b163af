//! Settings of a waypoint, and the services that it serves, which a waypoint receives in addition to WDS.
//!
//! Routes are in [`crate::HttpRoute`] and [`crate::StreamRoute`], policies in [`crate::HttpPolicy`].

use std::{collections::BTreeSet, net::IpAddr};

use arcstr::ArcStr;
use ipnet::IpNet;
use serde::Serialize;

use crate::{GatewayName, HttpRoute, NamespacedHostname, StreamRoute};

/// Settings of one waypoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaypointGateway {
    /// Gateway to which the settings belong.
    pub gateway: GatewayName,
    /// Path normalization before routing, authorization and forwarding.
    pub path_normalization: PathNormalization,
    /// Number of trusted addresses at the end of `x-forwarded-for`, added by proxies in front of the mesh
    /// (`numTrustedProxies`). The remote address is the one before them.
    pub trusted_proxies: u32,
    /// Whether applications receive the client's identity in `x-forwarded-client-cert`
    /// (`ambient.istio.io/xfcc-include-client-identity`).
    pub client_identity_header: bool,
    /// Addresses of the API server and the nodes. The waypoint never calls them on behalf of an object (SSRF
    /// protection).
    pub cluster_addresses: BTreeSet<IpAddr>,
    /// Address ranges that waypoints may call on behalf of objects, although they are blocked by default. The
    /// administrator allows them.
    pub allowed_addresses: Vec<IpNet>,
    /// Whether service-attached policies and routes apply only to requests to the services, and not to requests to
    /// their pods.
    #[serde(rename = "servicesAlone")]
    pub policies_only_for_services: bool,
}

/// Path normalization (Istio's `pathNormalization`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PathNormalization {
    /// No path normalization.
    None,
    /// RFC 3986: resolves dot segments, decodes percent-encoded unreserved characters, and turns backslashes into
    /// slashes.
    #[default]
    Base,
    /// `Base`, then merges adjacent slashes.
    MergeSlashes,
    /// `MergeSlashes` after decoding percent-encoded slashes and backslashes.
    DecodeAndMergeSlashes,
}

/// Service that a waypoint serves because the service or one of its endpoints is bound to the waypoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaypointService {
    /// Name of the service in WDS.
    pub service: NamespacedHostname,
    /// HTTP routes of the service, oldest first and then by name. Without HTTP routes, requests are forwarded to the
    /// service itself.
    pub routes: Vec<HttpRoute>,
    /// TCP routes for ports without HTTP routes, oldest first and then by name.
    pub tcp_routes: Vec<StreamRoute>,
    /// TLS routes by server name, which precede `tcp_routes`.
    pub tls_routes: Vec<StreamRoute>,
    /// Whether the hostname is a wildcard, so that the waypoint resolves the hostname of each request.
    pub resolves_hosts: bool,
    /// Grants that let policies and routes of this service apply to its endpoints in other namespaces.
    pub grantors: Vec<PodGrant>,
}

/// Grant that lets policies and routes attached to a service of another namespace apply to requests to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGrant {
    /// Namespace of the pods, whose owner gives the grant.
    pub namespace: ArcStr,
    /// Name of the pod; all pods of the namespace if empty.
    pub pod: ArcStr,
}
