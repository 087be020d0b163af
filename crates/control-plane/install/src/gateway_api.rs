//! Checks whether a cluster has the CRDs of the Gateway API, in a known release.

use ambit_k8s_api::{UnknownRelease, check_release};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::cluster::{ClusterApi, ClusterError};

/// CRDs that the mesh reads.
pub const REQUIRED_CRDS: [&str; 3] = [
    "gateways.gateway.networking.k8s.io",
    "gatewayclasses.gateway.networking.k8s.io",
    "httproutes.gateway.networking.k8s.io",
];

/// Advice on how to install missing or unsuitable CRDs.
pub const INSTALL_ADVICE: &str = "for waypoints and routes install the standard definitions of the Gateway API, \
    v1.0 to v1.6: https://gateway-api.sigs.k8s.io/guides/getting-started/";

/// Reason why a CRD of the Gateway API cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CrdProblem {
    /// The CRD serves only these versions, not `v1`.
    NotServed(String),
    /// The CRD is of an unknown release.
    UnknownRelease(UnknownRelease),
}

/// Returns the reason why a CRD cannot be used, if there is one.
pub fn find_crd_problem(definition: &CustomResourceDefinition) -> Option<CrdProblem> {
    let served = definition.spec.versions.iter();
    let served = served.filter(|version| version.served);
    let served: Vec<_> = served.map(|version| version.name.as_str()).collect();
    if !served.contains(&"v1") {
        return Some(CrdProblem::NotServed(served.join(", ")));
    }
    let annotations = definition.metadata.annotations.as_ref();
    check_release(annotations)
        .err()
        .map(CrdProblem::UnknownRelease)
}

/// Describes the cluster's CRDs of the Gateway API in one line of the installation's output.
///
/// # Errors
///
/// When the API server refuses or is unavailable.
pub async fn describe_crds(cluster: &ClusterApi) -> Result<String, ClusterError> {
    let [gateways, ..] = REQUIRED_CRDS;
    let definition: Option<CustomResourceDefinition> = cluster.get_typed(None, gateways).await?;
    let Some(definition) = definition else {
        return Ok(format!("no Gateway API: {INSTALL_ADVICE}"));
    };
    Ok(match find_crd_problem(&definition) {
        None => {
            let release = check_release(definition.metadata.annotations.as_ref());
            format!("Gateway API {}", release.unwrap_or_default())
        }
        Some(CrdProblem::NotServed(served)) => {
            format!("warning: the Gateway API serves {served} and not v1; {INSTALL_ADVICE}")
        }
        Some(CrdProblem::UnknownRelease(unknown)) => format!("warning: {unknown}"),
    })
}
