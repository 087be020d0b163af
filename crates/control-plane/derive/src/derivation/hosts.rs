//! Conflicts between Services and ServiceEntries that declare the same host: which object's record each namespace gets,
//! and which record is canonical, for namespaces without one.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{Kind, ObjectKey, ServiceEntry};
use ambit_model::{ArcStr, GatewayName, NamespacedHostname, WaypointService};

use crate::{
    derivation::table::kind_functions,
    kinds::kind::HostClaim,
    objects::service_entry::ServiceEntryInput,
    relations::references::ReferenceKind,
    view::{MeshView, attachment::Attachment, rendered::RenderedRecords},
};

/// Precedence of an object that declares a host: Kubernetes Services first, then by age, then by name.
type HostPrecedence<'a> = (bool, &'a str, &'a ArcStr, &'a ArcStr);

/// By namespace: precedence of the object that wins there, whether its record is visible in all namespaces, and its
/// key.
type HostOwners<'a> = BTreeMap<&'a ArcStr, (HostPrecedence<'a>, bool, &'a ObjectKey)>;

/// Returns the object whose record applies in namespaces that have no record of their own.
fn canonical_owner<'a>(owners: &HostOwners<'a>) -> Option<&'a ObjectKey> {
    let public = owners.values().filter(|(_, is_public, _)| *is_public);
    public.min().map(|(.., key)| *key)
}

fn host_precedence<'a>(key: &'a ObjectKey, claim: &HostClaim<'a>) -> HostPrecedence<'a> {
    (
        !claim.is_kubernetes,
        claim.created,
        &key.namespace,
        &key.name,
    )
}

impl MeshView {
    pub(crate) fn host_claim(&self, key: &ObjectKey, host: &ArcStr) -> Option<HostClaim<'_>> {
        (kind_functions(key.kind).host_claim)(self, key, host)
    }

    /// Returns the object with the highest precedence for a host in each namespace.
    fn host_owners<'a>(&'a self, host: &ArcStr) -> HostOwners<'a> {
        let mut owners = HostOwners::new();
        for key in self.objects_declaring(host) {
            let Some(claim) = self.host_claim(key, host) else {
                continue;
            };
            let one = (host_precedence(key, &claim), claim.is_public, key);
            let winner = owners.entry(&key.namespace).or_insert(one);
            if one.0 < winner.0 {
                *winner = one;
            }
        }
        owners
    }

    /// Returns the object whose record of a host applies in a namespace: the namespace's own, else the canonical one.
    pub(crate) fn host_owner_in(&self, namespace: &ArcStr, host: &ArcStr) -> Option<&ObjectKey> {
        let owners = self.host_owners(host);
        let own = owners.get(namespace).map(|(.., key)| *key);
        own.or_else(|| canonical_owner(&owners))
    }

    /// Returns the objects from which the records of a host are rendered, and whether each record is visible in all
    /// namespaces.
    pub(crate) fn record_owners(&self, host: &ArcStr) -> Vec<(&ObjectKey, bool)> {
        let owners = self.host_owners(host).into_values();
        owners.map(|(_, is_public, key)| (key, is_public)).collect()
    }

    /// Renders the records of a host: one for each namespace, from the object with the highest precedence there; one of
    /// them is canonical, by the same precedence. Also renders what waypoints need to serve the host.
    pub(crate) fn render_host(&self, host: &ArcStr) -> RenderedRecords {
        let owners = self.host_owners(host);
        let canonical = canonical_owner(&owners);
        let mut rendered = RenderedRecords::default();
        for (.., key) in owners.values() {
            let Some(mut record) = (kind_functions(key.kind).service_record)(self, key, host)
            else {
                continue;
            };
            record.service.canonical = canonical == Some(*key);
            if let Some(attachment) = self.waypoint_of_service(key) {
                record.service.waypoint = self.waypoint_address(&attachment);
                record.service.weighted_waypoints = self.weighted_waypoints(key, &attachment);
                record.ingress_use_waypoint =
                    attachment.outcome.is_ok() && self.ingress_uses_waypoint(key);
            }
            let gateways = self.waypoints_serving(key, host);
            let awaited = self
                .waypoint_of_service(key)
                .and_then(|to| to.awaited_gateway);
            let pod_grants = match gateways.is_empty() {
                true => Vec::new(),
                false => self.pod_grants(key),
            };
            let mut binding = gateways.clone();
            binding.retain(|one| awaited.as_ref() != Some(one));
            let wildcard_refusals = self.wildcard_refusals(key, &record.service, &binding);
            rendered.add_waypoint_records(wildcard_refusals);
            for gateway in gateways {
                let service = WaypointService {
                    service: record.service.namespaced_hostname(),
                    routes: self.http_routes(host, key, &gateway),
                    tcp_routes: self.stream_routes(Kind::TCPRoute, key, &gateway),
                    tls_routes: self.stream_routes(Kind::TLSRoute, key, &gateway),
                    resolves_hosts: self
                        .get::<ServiceEntry>(key)
                        .is_some_and(|entry| entry.resolves_requested_names(host)),
                    grantors: pod_grants.clone(),
                };
                rendered.add_waypoint_records([(gateway, service)]);
            }
            let destinations = self.render_destinations(key, host);
            rendered.add_waypoint_records(destinations);
            rendered.services.push(record);
        }
        rendered
    }

    /// Returns the waypoints that serve a host of an object: its own, the awaited one, the canary, and those of its
    /// endpoints.
    pub(crate) fn waypoints_serving(
        &self,
        key: &ObjectKey,
        host: &ArcStr,
    ) -> BTreeSet<GatewayName> {
        let attachment = self.waypoint_of_service(key);
        let canary = attachment
            .as_ref()
            .and_then(|primary| self.canary(key, primary)?.ok());
        let canary = canary.map(|(gateway, _)| gateway);
        let name = NamespacedHostname::new(key.namespace.clone(), host.clone());
        let of_endpoints = self.service_waypoints.waypoints(&name).cloned();
        let own = attachment
            .iter()
            .flat_map(Attachment::receiving_waypoints)
            .cloned();
        own.chain(canary).chain(of_endpoints).collect()
    }

    /// Returns the Services and ServiceEntries that declare a host.
    pub(crate) fn objects_declaring(
        &self,
        host: &ArcStr,
    ) -> impl Iterator<Item = &ObjectKey> + use<'_> {
        self.references.referrers(ReferenceKind::DeclaredHost, host)
    }

    /// Returns the declared hosts that match a pattern: an exact host name, or `*` and a suffix.
    pub(crate) fn hosts_matching(&self, pattern: &ArcStr) -> Vec<ArcStr> {
        let Some(end) = pattern.strip_prefix('*') else {
            let is_there = self
                .references
                .is_referenced(ReferenceKind::DeclaredHost, pattern);
            return is_there.then(|| pattern.clone()).into_iter().collect();
        };
        let hosts = self
            .references
            .referenced_names::<ArcStr>(ReferenceKind::DeclaredHost);
        hosts.filter(|host| host.ends_with(end)).cloned().collect()
    }

    /// Returns the hosts of a ServiceEntry for which it has the highest precedence in its namespace.
    pub(crate) fn owned_hosts<'a>(
        &'a self,
        entry: &'a ServiceEntryInput,
    ) -> impl Iterator<Item = &'a ArcStr> {
        let own = ObjectKey::new(
            Kind::ServiceEntry,
            entry.namespace.clone(),
            entry.name.clone(),
        );
        entry.hosts.iter().filter(move |host| {
            let rivals = self.objects_declaring(host);
            let first = rivals
                .filter(|key| key.namespace == entry.namespace)
                .filter_map(|key| Some((host_precedence(key, &self.host_claim(key, host)?), key)))
                .min();
            first.is_some_and(|(_, key)| *key == own)
        })
    }
}
