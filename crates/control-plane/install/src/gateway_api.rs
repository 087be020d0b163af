//! The Gateway API in a cluster: whether its definitions are there, and such as are known.

use ambit_k8s_api::{UnknownRelease, known_release};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::cluster::{Cluster, ClusterError};

/// The definitions that the mesh reads.
pub const DEFINITIONS: [&str; 3] = [
    "gateways.gateway.networking.k8s.io",
    "gatewayclasses.gateway.networking.k8s.io",
    "httproutes.gateway.networking.k8s.io",
];

/// Advice on missing definitions, or wrong ones.
pub const ADVICE: &str = "for waypoints and routes install the standard definitions of the Gateway API, \
    v1.0 to v1.6: https://gateway-api.sigs.k8s.io/guides/getting-started/";

/// Why a definition is not one that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Definition that does not serve `v1`, but these versions.
    NotServed(String),
    /// Of another release.
    Release(UnknownRelease),
}

/// Problem of a definition, if there is one.
pub fn problem(definition: &CustomResourceDefinition) -> Option<Problem> {
    let served = definition.spec.versions.iter();
    let served = served.filter(|version| version.served);
    let served: Vec<_> = served.map(|version| version.name.as_str()).collect();
    if !served.contains(&"v1") {
        return Some(Problem::NotServed(served.join(", ")));
    }
    let annotations = definition.metadata.annotations.as_ref();
    known_release(annotations).err().map(Problem::Release)
}

/// Definitions of a cluster, as a line of the installation's output.
///
/// # Errors
/// When the API server refuses or is away.
pub async fn describe(cluster: &Cluster) -> Result<String, ClusterError> {
    let [gateways, ..] = DEFINITIONS;
    let definition: Option<CustomResourceDefinition> = cluster.read(None, gateways).await?;
    let Some(definition) = definition else {
        return Ok(format!("no Gateway API: {ADVICE}"));
    };
    Ok(match problem(&definition) {
        None => {
            let release = known_release(definition.metadata.annotations.as_ref());
            format!("Gateway API {}", release.unwrap_or_default())
        }
        Some(Problem::NotServed(served)) => {
            format!("warning: the Gateway API serves {served} and not v1; {ADVICE}")
        }
        Some(Problem::Release(unknown)) => format!("warning: {unknown}"),
    })
}
