//! DNS resolution of hosts outside of the mesh: cached, limited in concurrency, and without addresses that the egress
//! guard forbids ([`ambit_egress`]). Hosts that clients choose must not resolve to addresses of the mesh either.
//!
//! The owner of a domain decides to which addresses its names resolve. A wildcard lets clients choose a name, and so an
//! address: without this check they could make the waypoint call internal addresses. The names that clients choose are
//! unbounded in number: they have a cache and limits apart from those of names in objects, and one client may have only
//! a few lookups in flight.

mod lookups;

use std::{collections::HashMap, net::IpAddr, time::Instant};

use ambit_egress::{ForbiddenAddress, Guard};
use parking_lot::Mutex;

pub(crate) use lookups::{CachedLookup, Caller, TooManyLookups};
use lookups::{LookupCache, MAX_TTL};

/// Maximum addresses that are cached as outside the mesh.
const MAX_OUTSIDE_MESH_ADDRESSES: usize = 4096;

/// DNS resolver for hosts outside the mesh.
#[derive(Debug)]
pub(crate) struct HostResolver {
    /// Cache for hosts that Kubernetes objects name, such as ServiceEntries.
    object_lookups: LookupCache,
    /// Cache for hosts that clients choose below a wildcard. Their number is unbounded.
    client_lookups: LookupCache,
    /// Addresses that the control plane reports as outside of the mesh, with the time at which the report expires.
    outside_mesh: Mutex<HashMap<IpAddr, Instant>>,
    guard: Guard,
}

impl HostResolver {
    /// Creates a resolver with empty caches; the guard decides which addresses may be called.
    pub(crate) fn new(guard: Guard) -> Self {
        Self {
            object_lookups: LookupCache::new(),
            client_lookups: LookupCache::new(),
            outside_mesh: Mutex::default(),
            guard,
        }
    }

    /// Resolves a host that a Kubernetes object names to at least one address.
    pub(crate) async fn resolve(&self, host: &str) -> Result<CachedLookup, TooManyLookups> {
        let look_up = || ambit_rt::lookup_name(host);
        self.object_lookups.get(host, None, look_up).await
    }

    /// Resolves a host that a client has chosen below a wildcard to at least one address.
    ///
    /// # Errors
    /// When the client is at its limit of lookups.
    pub(crate) async fn resolve_for_client(
        &self,
        host: &str,
        caller: Caller,
    ) -> Result<CachedLookup, TooManyLookups> {
        let look_up = || ambit_rt::lookup_name(host);
        self.client_lookups.get(host, Some(caller), look_up).await
    }

    /// Checks that the egress guard allows calls to an IP address, whether an object names it or DNS returned it.
    pub(crate) fn check_egress(&self, ip: IpAddr) -> Result<(), ForbiddenAddress> {
        self.guard.check(ip)
    }

    /// Whether the control plane has recently reported an address as outside of the mesh.
    pub(crate) fn is_outside_mesh(&self, ip: IpAddr) -> bool {
        let until = self.outside_mesh.lock().get(&ip).copied();
        self.guard.is_allowed(ip) || until.is_some_and(|until| Instant::now() < until)
    }

    /// Caches the control plane's report that an address is outside of the mesh.
    pub(crate) fn record_outside_mesh(&self, ip: IpAddr) {
        let now = Instant::now();
        let mut all = self.outside_mesh.lock();
        if all.len() >= MAX_OUTSIDE_MESH_ADDRESSES {
            all.retain(|_, until| now < *until);
        }
        if all.len() >= MAX_OUTSIDE_MESH_ADDRESSES {
            all.clear();
        }
        all.insert(ip, now + MAX_TTL);
    }
}

/// Parses a host below a wildcard (`*.` and a domain); returns it in lower case and without port, or `None` if it is
/// not below the wildcard.
pub(crate) fn parse_wildcard_host(wildcard: &str, text: &str) -> Option<String> {
    let name = match text.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) => return None,
        None => text,
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_label = |label: &str| {
        let of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(of_name)
    };
    let end = wildcard.strip_prefix('*')?;
    let first = name.strip_suffix(end)?;
    (name.len() <= 253 && !first.is_empty() && name.split('.').all(is_label)).then_some(name)
}

/// Returns the names under which a host may have a more specific entry than `wildcard`, the most specific first: the
/// host itself, then longer wildcards.
pub(crate) fn more_specific_names(
    wildcard: &str,
    text: &str,
) -> Option<impl Iterator<Item = String>> {
    let host = parse_wildcard_host(wildcard, text)?;
    let above = host.match_indices('.').map(|(dot, _)| dot);
    let wildcards = above.filter_map(|dot| Some(format!("*{}", host.get(dot..)?)));
    let longer = wildcards.take_while(|one| one.len() > wildcard.len());
    let longer: Vec<_> = longer.collect();
    Some(std::iter::once(host).chain(longer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_a_wildcard_are_names_below_it() {
        for (text, expected) in [
            ("api.example.com", Some("api.example.com")),
            ("API.Example.com.", Some("api.example.com")),
            ("a.b.example.com:8443", Some("a.b.example.com")),
            ("example.com", None),
            (".example.com", None),
            ("a..example.com", None),
            ("api.example.com.evil.org", None),
            ("evilexample.com", None),
            ("api.example.com:80:80", None),
            ("api.example.com:x", None),
            ("a b.example.com", None),
            ("a\0.example.com", None),
            ("[::1]:80", None),
            ("127.0.0.1", None),
            ("", None),
        ] {
            assert_eq!(
                parse_wildcard_host("*.example.com", text).as_deref(),
                expected,
                "{text}"
            );
        }
        assert_eq!(parse_wildcard_host("example.com", "a.example.com"), None);
    }

    #[test]
    fn names_between_a_host_and_its_wildcard_are_more_specific() {
        let of =
            |wildcard, host| more_specific_names(wildcard, host).map(Iterator::collect::<Vec<_>>);
        let names = ["a.b.c.example.com", "*.b.c.example.com", "*.c.example.com"];
        assert_eq!(
            of("*.example.com", "A.b.c.example.com.:443").unwrap(),
            names
        );
        assert_eq!(
            of("*.example.com", "a.example.com").unwrap(),
            ["a.example.com"]
        );
        assert_eq!(of("*.example.com", "a.example.org"), None);
        assert_eq!(of("a.example.com", "a.example.com"), None);
    }
}
