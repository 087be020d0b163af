//! Names of services as VirtualServices write them, short or fully qualified.

/// Returns the fully qualified name of a host; a host without dots is a Service of the VirtualService's namespace.
/// `None` if it is not a valid name.
pub fn fully_qualified_name(host: &str, namespace: &str, cluster_domain: &str) -> Option<String> {
    let lower = host.to_ascii_lowercase();
    let is_wildcard = lower.starts_with("*.");
    let name = lower.strip_prefix("*.").unwrap_or(&lower);
    if !ambit_k8s_api::is_dns_name(name, 253) || name.split('.').any(str::is_empty) {
        return None;
    }
    if !is_wildcard && !name.contains('.') {
        return Some(format!("{name}.{namespace}.svc.{cluster_domain}"));
    }
    match lower.strip_suffix(".svc") {
        Some(short) if short.split('.').count() == 2 => {
            Some(format!("{short}.svc.{cluster_domain}"))
        }
        _ => Some(lower),
    }
}

/// Returns name and namespace of the Kubernetes Service with a fully qualified name.
pub(crate) fn service_of_hostname(
    full_name: &str,
    cluster_domain: &str,
) -> Option<(String, String)> {
    let rest = full_name.strip_suffix(cluster_domain)?;
    let (name, namespace) = rest.strip_suffix(".svc.")?.split_once('.')?;
    let is_service = !namespace.contains('.') && name != "*";
    is_service.then(|| (name.to_owned(), namespace.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_services_of_the_own_namespace() {
        let full = |host| fully_qualified_name(host, "shop", "cluster.local");
        for (host, expected) in [
            ("reviews", "reviews.shop.svc.cluster.local"),
            ("Reviews", "reviews.shop.svc.cluster.local"),
            (
                "reviews.bank.svc.cluster.local",
                "reviews.bank.svc.cluster.local",
            ),
            ("reviews.bank.svc", "reviews.bank.svc.cluster.local"),
            ("reviews.bank", "reviews.bank"),
            ("api.example.com", "api.example.com"),
            ("*.example.com", "*.example.com"),
        ] {
            assert_eq!(full(host).as_deref(), Some(expected), "{host}");
        }
        for host in [
            "",
            "*",
            "a b",
            "a/b",
            "-a",
            "a..b",
            "*.",
            "a.*",
            "10.0.0.1:80",
        ] {
            assert_eq!(full(host), None, "{host:?}");
        }
    }

    #[test]
    fn services_are_distinguished_from_other_hosts() {
        let is = |name| service_of_hostname(name, "cluster.local");
        let pair = |name: &str, namespace: &str| Some((name.to_owned(), namespace.to_owned()));
        assert_eq!(is("a.b.svc.cluster.local"), pair("a", "b"));
        for name in [
            "a.b",
            "a.b.c.svc.cluster.local",
            "*.b.svc.cluster.local",
            "api.example.com",
            "b.svc.cluster.local",
        ] {
            assert_eq!(is(name), None, "{name}");
        }
    }
}
