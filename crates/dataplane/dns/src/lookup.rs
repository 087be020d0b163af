//! Resolves a name to a service or pod in the mesh, and to the addresses that the client can use.

use std::net::IpAddr;

use ambit_model::{ArcStr, Service};
use ambit_route::MeshTable;

/// Maximum number of addresses in a response; they always fit into a message over TCP.
const MAX_ADDRESSES: usize = 2000;

/// Pod that sends a query, with the attributes that determine which names it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnsClient<'a> {
    /// Namespace of the client.
    pub namespace: &'a str,
    /// Network of the client, which can reach only addresses of this network.
    pub network: &'a str,
    /// Cluster of the client.
    pub cluster_id: &'a str,
    /// Cluster domain of Kubernetes, for instance `cluster.local`.
    pub cluster_domain: &'a str,
}

/// Address family of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamily {
    /// Records of type `A`.
    V4,
    /// Records of type `AAAA`.
    V6,
}

impl AddressFamily {
    fn includes_address(self, ip: &IpAddr) -> bool {
        ip.is_ipv6() == (self == Self::V6)
    }
}

/// Service or pod to which a name resolves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedName {
    /// Host name of the service.
    pub host: ArcStr,
    /// Requested name without a search-list suffix that the client had appended. The response has a CNAME record from
    /// the requested name to it; `None` if the requested name itself matches.
    pub alias: Option<String>,
    /// Addresses of the queried family; may be empty.
    pub addresses: Vec<IpAddr>,
}

/// Resolves `name` (lower case, without the final dot) as the client's resolver would if it knew the mesh: as it is,
/// with the suffixes of Kubernetes' search list appended, and with such a suffix removed. Returns `None` if the name is
/// not in the mesh for this client, so that the query is forwarded.
pub fn resolve_name(
    table: &MeshTable,
    client: &DnsClient<'_>,
    name: &str,
    family: AddressFamily,
) -> Option<ResolvedName> {
    let search = NameResolver { table, client };
    if let Some(hit) = search.match_with_search_list(name) {
        return Some(search.to_resolved_name(hit, None, family));
    }
    let DnsClient {
        namespace,
        cluster_domain: domain,
        ..
    } = client;
    let suffixes = [
        format!(".{namespace}.svc.{domain}"),
        format!(".svc.{domain}"),
        format!(".{domain}"),
    ];
    suffixes
        .iter()
        .filter_map(|suffix| name.strip_suffix(suffix.as_str()))
        .filter(|stripped| !stripped.is_empty())
        .find_map(|stripped| {
            let hit = search.match_with_search_list(stripped)?;
            // A wildcard is answered for the whole name.
            let alias = (!hit.is_wildcard_match).then(|| stripped.to_owned());
            Some(search.to_resolved_name(hit, alias, family))
        })
}

struct NameResolver<'a> {
    table: &'a MeshTable,
    client: &'a DnsClient<'a>,
}

struct NameMatch<'a> {
    service: &'a Service,
    /// Pod of a headless service, if the name identifies the pod and not the service.
    pod: Option<&'a ambit_route::WorkloadRef>,
    is_wildcard_match: bool,
}

impl<'a> NameResolver<'a> {
    /// Resolves a name with the suffixes of the search list. Services and pods of the cluster take precedence over
    /// hosts that a ServiceEntry declares for the short name itself, so that no ServiceEntry can take over their short
    /// names.
    fn match_with_search_list(&self, name: &str) -> Option<NameMatch<'a>> {
        let expansions = self.search_list_names(name);
        let names = || expansions.iter().map(String::as_str);
        names()
            .find_map(|expanded| self.match_exact(expanded))
            .or_else(|| self.match_exact(name))
            .or_else(|| self.match_wildcard(name))
            .or_else(|| names().find_map(|expanded| self.match_wildcard(expanded)))
    }

    /// Returns the fully qualified names that the search list makes of a short name, in the order of the list.
    fn search_list_names(&self, name: &str) -> Vec<String> {
        let DnsClient {
            namespace,
            cluster_domain: domain,
            ..
        } = self.client;
        let of_cluster = || format!("{name}.{domain}");
        let of_services = || format!("{name}.svc.{domain}");
        let of_namespace = || format!("{name}.{namespace}.svc.{domain}");
        match (name.split('.').count(), name.ends_with(".svc")) {
            (1, _) => vec![of_namespace()],
            (2, _) => vec![of_services(), of_namespace()],
            (3, true) => vec![of_cluster(), of_services()],
            (3, false) => vec![of_services()],
            (4, true) => vec![of_cluster()],
            _ => Vec::new(),
        }
    }

    /// Resolves a fully qualified name: a service, or a pod of a headless service.
    fn match_exact(&self, name: &str) -> Option<NameMatch<'a>> {
        let service = self.find_service(name).map(|service| NameMatch {
            service,
            pod: None,
            is_wildcard_match: false,
        });
        service.or_else(|| self.match_pod(name))
    }

    fn find_service(&self, host: &str) -> Option<&'a Service> {
        self.table
            .service_by_hostname_where(host, self.client.namespace, |service| {
                !service.vips.is_empty() || self.is_headless(service)
            })
            .map(AsRef::as_ref)
    }

    fn is_headless(&self, service: &Service) -> bool {
        service.vips.is_empty() && self.is_cluster_domain_name(&service.hostname)
    }

    fn is_cluster_domain_name(&self, host: &str) -> bool {
        host.strip_suffix(self.client.cluster_domain)
            .is_some_and(|rest| rest.ends_with(".svc."))
    }

    /// Resolves the name of a StatefulSet's pod, such as `db-0.db.shop.svc.cluster.local`, which stays the same while
    /// the pod's address changes. Other pod names are left to the cluster's DNS.
    fn match_pod(&self, name: &str) -> Option<NameMatch<'a>> {
        let (pod, host) = name.split_once('.')?;
        if !self.is_cluster_domain_name(host) {
            return None;
        }
        let service = self
            .find_service(host)
            .filter(|service| self.is_headless(service))?;
        let uid = format!(
            "{}//Pod/{}/{pod}",
            self.client.cluster_id, service.namespace
        );
        let workload = self.table.workload(&uid)?;
        let ordinal = pod
            .strip_prefix(workload.workload_name().as_str())?
            .strip_prefix('-')?;
        let is_replica = !ordinal.is_empty() && ordinal.bytes().all(|b| b.is_ascii_digit());
        (is_replica && self.table.is_endpoint(service, workload)).then_some(NameMatch {
            service,
            pod: Some(workload),
            is_wildcard_match: false,
        })
    }

    fn match_wildcard(&self, name: &str) -> Option<NameMatch<'a>> {
        if !self.table.has_wildcard_hosts() {
            return None;
        }
        let mut pattern = String::with_capacity(name.len() + 2);
        let mut rest = name;
        while let Some((_, suffix)) = rest.split_once('.') {
            pattern.clear();
            pattern.push_str("*.");
            pattern.push_str(suffix);
            if let Some(service) = self.find_service(&pattern) {
                return Some(NameMatch {
                    service,
                    pod: None,
                    is_wildcard_match: true,
                });
            }
            rest = suffix;
        }
        None
    }

    fn to_resolved_name(
        &self,
        hit: NameMatch<'a>,
        alias: Option<String>,
        family: AddressFamily,
    ) -> ResolvedName {
        let service = hit.service;
        let network = self.client.network;
        let is_eligible = |ip: &IpAddr| {
            family.includes_address(ip) && service.ip_families.is_none_or(|f| f.accepts(*ip))
        };
        let one = |workload: &ambit_route::WorkloadRef| {
            let ours = *workload.network() == network;
            let mut ips = workload.ips().iter().copied().filter(|_| ours);
            ips.find(is_eligible)
        };
        let addresses: Vec<IpAddr> = match hit.pod {
            Some(workload) => one(workload).into_iter().collect(),
            None if service.vips.is_empty() => self
                .table
                .endpoint_workloads(service)
                .filter_map(one)
                .take(MAX_ADDRESSES)
                .collect(),
            None => service
                .vips
                .iter()
                .filter(|vip| vip.network == network)
                .map(|vip| vip.address)
                .filter(is_eligible)
                .take(MAX_ADDRESSES)
                .collect(),
        };
        ResolvedName {
            host: service.hostname.clone(),
            alias,
            addresses,
        }
    }
}

#[cfg(test)]
mod tests;
