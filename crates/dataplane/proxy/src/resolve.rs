//! Resolving the workloads that have a host name instead of addresses.

use std::net::IpAddr;

use ambit_model::ArcStr;
use ambit_route::PendingRoute;
use rand::seq::IndexedRandom;

/// A host name without a usable address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The resolver found nothing, or failed.
    #[error("cannot resolve {host}: {why}")]
    Lookup {
        /// The name.
        host: ArcStr,
        /// What the resolver said.
        why: String,
    },
    /// Still without an address after it was resolved.
    #[error("{0} has no address")]
    Unresolved(ArcStr),
}

/// One address of the route's host: of the family that was dialled if there is one, chosen at random.
///
/// # Errors
/// When there is none that can be used.
pub async fn resolve(pending: &PendingRoute, ipv6_enabled: bool) -> Result<IpAddr, ResolveError> {
    let host = &pending.hostname;
    let lookup = |why: String| ResolveError::Lookup {
        host: host.clone(),
        why,
    };
    let found = ambit_rt::lookup_host(host.as_str())
        .await
        .map_err(|error| lookup(error.to_string()))?;
    let all: Vec<IpAddr> = found
        .into_iter()
        .map(|ip| ip.to_canonical())
        .filter(|ip| ipv6_enabled || ip.is_ipv4())
        .collect();
    let wanted: Vec<IpAddr> = all
        .iter()
        .copied()
        .filter(|ip| ip.is_ipv6() == pending.prefer_ipv6)
        .collect();
    let candidates = if wanted.is_empty() { &all } else { &wanted };
    candidates
        .choose(&mut rand::rng())
        .copied()
        .ok_or_else(|| lookup("no addresses".to_owned()))
}
