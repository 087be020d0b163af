//! Resolution of workloads with a host name instead of addresses.

use std::net::IpAddr;

use ambit_model::ArcStr;
use ambit_route::PendingRoute;
use rand::seq::IndexedRandom;

/// Error of resolving a host name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The resolver found nothing, or failed.
    #[error("cannot resolve {host}: {why}")]
    Lookup {
        /// Hostname to resolve.
        host: ArcStr,
        /// Error of the resolver.
        why: String,
    },
    /// Hostname without an address after resolution.
    #[error("{0} has no address")]
    Unresolved(ArcStr),
}

/// Resolves the route's host to a random address, preferably of the dialed family.
///
/// # Errors
/// When there is none that can be used.
pub async fn resolve(pending: &PendingRoute, ipv6_enabled: bool) -> Result<IpAddr, ResolveError> {
    let host = &pending.hostname;
    let found = ambit_rt::lookup_host(host.as_str()).await;
    let found = found.map_err(|error| ResolveError::Lookup {
        host: host.clone(),
        why: error.to_string(),
    })?;
    pick(host, &found, pending.prefer_ipv6, ipv6_enabled)
}

/// Picks one of a host's addresses at random, preferring the dialed family.
///
/// # Errors
/// When there is none that can be used.
pub fn pick(
    host: &ArcStr,
    found: &[IpAddr],
    prefer_ipv6: bool,
    ipv6_enabled: bool,
) -> Result<IpAddr, ResolveError> {
    let all = found.iter().map(IpAddr::to_canonical);
    let all: Vec<IpAddr> = all.filter(|ip| ipv6_enabled || ip.is_ipv4()).collect();
    let preferred: Vec<IpAddr> = all
        .iter()
        .copied()
        .filter(|ip| ip.is_ipv6() == prefer_ipv6)
        .collect();
    let candidates = if preferred.is_empty() {
        &all
    } else {
        &preferred
    };
    let picked = candidates.choose(&mut rand::rng()).copied();
    picked.ok_or_else(|| ResolveError::Lookup {
        host: host.clone(),
        why: "no addresses".to_owned(),
    })
}
