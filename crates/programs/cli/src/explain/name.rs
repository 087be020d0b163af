//! Resolves service names as a pod's DNS resolver does, with search domains.

use std::borrow::Cow;

use crate::dump::{Dump, ServiceEntry};

/// Resolves `name` like a pod in `namespace`: returns the host name of the service that the name means and that has
/// `port`, or the name unchanged.
pub(super) fn resolve_service_name<'a>(
    dump: &'a Dump,
    namespace: Option<&str>,
    name: &'a str,
    port: u16,
) -> Cow<'a, str> {
    let hostname = name.trim_end_matches('.').to_lowercase();
    // Names with a slash are an object's.
    if hostname.contains('/') || hostname.contains(':') {
        return name.into();
    }
    let services = || {
        let services = dump.services.parsed();
        services.filter(|service| service.ports.contains_key(&port))
    };
    let exact = || services().find(|service| service.hostname == hostname);
    let completed = || {
        let beginning = match hostname.split('.').collect::<Vec<_>>().as_slice() {
            [name] => format!("{name}.{}.svc.", namespace?),
            [name, namespace] | [name, namespace, "svc"] => format!("{name}.{namespace}.svc."),
            _ => return None,
        };
        services().find(|service| service.hostname.starts_with(&beginning))
    };
    let by_wildcard = || {
        let covers = |service: &&ServiceEntry| {
            let rest = service.hostname.strip_prefix('*');
            rest.is_some_and(|rest| hostname.ends_with(rest) && hostname.len() > rest.len())
        };
        services()
            .filter(covers)
            .max_by_key(|service| service.hostname.len())
    };
    let found = exact().or_else(completed).or_else(by_wildcard);
    found.map_or_else(|| name.into(), |service| service.hostname.as_str().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_by_the_names_that_applications_use() {
        let dump = Dump::parse(
            br#"{"workloads": [], "services": [
              {"name": "web", "namespace": "shop", "hostname": "web.shop.svc.cluster.local", "ports": {"80": 1}},
              {"name": "web", "namespace": "old", "hostname": "web.old.svc.cluster.local", "ports": {"80": 1}},
              {"name": "x", "namespace": "shop", "hostname": "*.example.com", "ports": {"443": 443}},
              {"name": "y", "namespace": "shop", "hostname": "*.api.example.com", "ports": {"443": 443}}]}"#,
        )
        .unwrap();
        let of_shop = "web.shop.svc.cluster.local";
        for (namespace, name, port, expected) in [
            (Some("shop"), "web", 80, of_shop),
            (Some("old"), "web", 80, "web.old.svc.cluster.local"),
            (Some("old"), "web.shop", 80, of_shop),
            (None, "web.shop.svc", 80, of_shop),
            (None, "WEB.shop.svc.cluster.local.", 80, of_shop),
            (None, "a.api.example.com", 443, "*.api.example.com"),
            (None, "b.example.com", 443, "*.example.com"),
            // Neither a name of a service, nor one on such a port.
            (None, "web", 80, "web"),
            (Some("shop"), "web", 8080, "web"),
            (Some("shop"), "shop/web", 80, "shop/web"),
            (Some("shop"), "10.0.0.1", 80, "10.0.0.1"),
        ] {
            assert_eq!(
                resolve_service_name(&dump, namespace, name, port),
                expected,
                "{name}"
            );
        }
    }
}
