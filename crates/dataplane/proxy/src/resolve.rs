//! DNS resolution of workloads that have a host name instead of addresses.

use std::net::IpAddr;

use ambit_model::ArcStr;
use ambit_route::PendingRoute;
use rand::seq::IndexedRandom;

/// Error of resolving a host name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The DNS lookup failed or returned nothing.
    #[error("cannot resolve {host}: {why}")]
    Lookup {
        /// Host name that was looked up.
        host: ArcStr,
        /// Error of the resolver.
        why: String,
    },
    /// The DNS lookup of this host name returned no usable address.
    #[error("{0} has no address")]
    Unresolved(ArcStr),
}

/// Resolves the route's host name to a random address, preferably of the family that the client dialed.
///
/// # Errors
///
/// When the name has no address that can be used.
pub async fn resolve(pending: &PendingRoute, ipv6_enabled: bool) -> Result<IpAddr, ResolveError> {
    let host = &pending.hostname;
    let found = ambit_rt::lookup_host(host.as_str()).await;
    let found = found.map_err(|error| ResolveError::Lookup {
        host: host.clone(),
        why: error.to_string(),
    })?;
    choose_address(host, &found, pending.prefer_ipv6, ipv6_enabled)
}

/// Picks one of a host's addresses at random, preferably of the family that the client dialed.
///
/// # Errors
///
/// When there is no address that can be used.
pub fn choose_address(
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
