//! Host names that ServiceEntries of a namespace may not declare: names of the cluster domain, and short names of other
//! namespaces' Services (`NAME.NAMESPACE`) and of their pods (`POD.NAME.NAMESPACE`), which clients resolve by their DNS
//! search path.
//!
//! A name is reserved even if no such Service exists, so that an entry cannot take the name before its owner.

use std::fmt;

/// Reason why a host name is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservedHost<'a> {
    /// Name in the cluster domain, or a wildcard that covers such names.
    ClusterDomain,
    /// Short name of a Service in this other namespace, a name below one, or a wildcard that covers such names.
    Namespace(&'a str),
}

impl fmt::Display for ReservedHost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClusterDomain => {
                f.write_str("names of the cluster's domain are those of other namespaces' Services")
            }
            Self::Namespace(namespace) => {
                write!(
                    f,
                    "short names of Services of the namespace {namespace}, or names below these"
                )
            }
        }
    }
}

/// Returns the reason why ServiceEntries of the namespace `own` may not declare a host (in lower case, possibly a
/// wildcard); `None` if they may.
pub(crate) fn reservation_reason<'a>(
    host: &'a str,
    own: &str,
    cluster_domain: &str,
    namespace_exists: impl Fn(&str) -> bool,
) -> Option<ReservedHost<'a>> {
    let (is_wildcard, name) = split_wildcard(host);
    let is_own = |services: &str| {
        let of_own = format!("{own}.{services}");
        is_subdomain(name, &of_own) || is_wildcard && name == of_own
    };
    let services = format!("svc.{cluster_domain}");
    if is_own(&services) || is_own("svc") {
        return None;
    }
    let is_of = |domain: &str| name == domain || is_subdomain(name, domain);
    let covers_domain = is_wildcard && is_subdomain(cluster_domain, name);
    if is_of(cluster_domain) || is_of("svc") || covers_domain {
        return Some(ReservedHost::ClusterDomain);
    }
    let namespace = short_name_of(host)?;
    (namespace != own && namespace_exists(namespace)).then_some(ReservedHost::Namespace(namespace))
}

/// Returns the namespace `NS` of a host that has the form of a Service's short name (`NAME.NS`), of a name below one,
/// or of a wildcard for either, whether or not the namespace exists.
pub(crate) fn short_name_of(host: &str) -> Option<&str> {
    let (is_wildcard, name) = split_wildcard(host);
    match name.rsplit_once('.') {
        Some((_, namespace)) => Some(namespace),
        None => is_wildcard.then_some(name),
    }
}

/// Whether a host is a single label, which in every namespace is the name of a Service of its own.
pub(crate) fn is_single_label(host: &str) -> bool {
    !host.contains('.')
}

fn split_wildcard(host: &str) -> (bool, &str) {
    match host.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, host),
    }
}

fn is_subdomain(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain)
        .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_tenant(host: &str) -> Option<ReservedHost<'_>> {
        reservation_reason(host, "tenant", "cluster.local", |namespace| {
            ["tenant", "store"].contains(&namespace)
        })
    }

    #[test]
    fn names_of_the_cluster_domain_are_reserved() {
        for host in [
            "web.store.svc.cluster.local",
            "web.absent.svc.cluster.local",
            "pod-1.db.store.svc.cluster.local",
            "10-0-0-1.store.pod.cluster.local",
            "anything.cluster.local",
            "svc.cluster.local",
            "cluster.local",
            "tenant.svc.cluster.local",
            "web.store.svc",
            "web.absent.svc",
            "svc",
            "*.store.svc.cluster.local",
            "*.svc.cluster.local",
            "*.cluster.local",
            "*.local",
            "*.store.svc",
            "*.svc",
            // Of a namespace whose name ends with this one's.
            "web.not-tenant.svc.cluster.local",
            "*.not-tenant.svc",
        ] {
            assert_eq!(of_tenant(host), Some(ReservedHost::ClusterDomain), "{host}");
        }
    }

    #[test]
    fn short_names_of_other_existing_namespaces_are_reserved() {
        for host in [
            "web.store",
            "absent.store",
            "*.store",
            "pod-1.web.store",
            "*.web.store",
            "_http._tcp.web.store",
            "*.pod-1.web.store",
        ] {
            assert_eq!(
                of_tenant(host),
                Some(ReservedHost::Namespace("store")),
                "{host}"
            );
        }
    }

    #[test]
    fn own_and_outside_names_are_free() {
        for host in [
            "web.tenant.svc.cluster.local",
            "db-0.db.tenant.svc.cluster.local",
            "*.tenant.svc.cluster.local",
            "*.db.tenant.svc.cluster.local",
            "web.tenant.svc",
            "*.tenant.svc",
            "web.tenant",
            "*.tenant",
            "web",
            "web.absent",
            "*.absent",
            "example.com",
            "*.com",
            "*.example.com",
            "notsvc.com",
            "web.store.example",
            "api.web.tenant",
            "*.web.tenant",
            "api.web.absent",
            "mycluster.local.example.com",
            "notcluster.local2",
        ] {
            assert_eq!(of_tenant(host), None, "{host}");
        }
    }

    #[test]
    fn every_wildcard_that_covers_a_service_of_another_namespace_is_reserved() {
        let covers = |wildcard: &str, name: &str| {
            wildcard
                .strip_prefix('*')
                .is_some_and(|end| name.ends_with(end) && name.len() > end.len())
        };
        for name in ["web.store.svc.cluster.local", "web.store.svc", "web.store"] {
            let dots = name.match_indices('.').map(|(at, _)| at);
            for wildcard in dots.map(|at| format!("*{}", &name[at..])) {
                assert!(covers(&wildcard, name), "{wildcard}");
                assert!(of_tenant(&wildcard).is_some(), "{wildcard} covers {name}");
            }
        }
    }
}
