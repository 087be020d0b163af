//! Table of workloads and services, whose indices agree with each other, and its configuration.

use std::{net::IpAddr, sync::Arc};

use ambit_model::{ArcStr, NamespacedHostname, NetworkAddress, PodName, Service, Workload};

use crate::{
    WorkloadRef,
    intern::{Interner, StringInterner},
    record::{ServiceMembership, WorkloadLocation, WorkloadTemplate},
    services::{Endpoints, Services},
    workloads::Workloads,
};

/// Location and preferences of the proxy that uses the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableConfig {
    /// Node of the proxy, whose workloads are local; if empty, all workloads are.
    pub node: ArcStr,
    /// Namespace whose service is preferred among services that share an address or name, if nothing else decides.
    pub preferred_service_namespace: Option<ArcStr>,
}

/// Record of a workload before and after an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadChange {
    /// Workload record before the update; `None` if it is new.
    pub before: Option<WorkloadRef>,
    /// Workload record after the update; `None` if it was removed.
    pub after: Option<WorkloadRef>,
}

impl WorkloadChange {
    /// Whether the record before the update differs from the one after it.
    pub fn has_changed(&self) -> bool {
        self.before != self.after
    }
}

/// Numbers of records in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSize {
    /// Number of workloads.
    pub workloads: usize,
    /// Number of services.
    pub services: usize,
    /// Number of distinct sets of fields that workloads share.
    pub templates: usize,
}

/// Workloads and services with the indices that the data path looks them up by.
#[derive(Debug, Default)]
pub struct MeshTable {
    pub(crate) config: TableConfig,
    pub(crate) workloads: Workloads,
    pub(crate) services: Services,
    strings: StringInterner,
    templates: Interner<WorkloadTemplate>,
    locations: Interner<WorkloadLocation>,
}

impl MeshTable {
    /// Creates an empty table.
    pub fn new(config: TableConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Configuration of the table.
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Inserts a workload, or replaces the workload with its uid.
    pub fn insert_workload(&mut self, workload: &Workload) -> WorkloadChange {
        let record = self.intern_workload(workload);
        let (slot, before) = self.workloads.insert(record.clone(), &self.config.node);
        if before.as_ref() == Some(&record) {
            return WorkloadChange {
                before,
                after: Some(record),
            };
        }
        if let Some(before) = &before {
            self.services.remove_endpoint(slot, before);
        }
        self.services.insert_endpoint(slot, &record);
        WorkloadChange {
            before,
            after: Some(record),
        }
    }

    /// Removes the workload with a uid.
    pub fn remove_workload(&mut self, uid: &str) -> WorkloadChange {
        let Some((slot, before)) = self.workloads.remove(uid) else {
            return WorkloadChange {
                before: None,
                after: None,
            };
        };
        self.services.remove_endpoint(slot, &before);
        WorkloadChange {
            before: Some(before),
            after: None,
        }
    }

    /// Inserts a service, or replaces the service of its name. Its endpoints stay, also those that arrived before it.
    pub fn insert_service(&mut self, mut service: Service) {
        service.namespace = self.strings.intern(&service.namespace);
        service.hostname = self.strings.intern(&service.hostname);
        for vip in &mut service.vips {
            vip.network = self.strings.intern(&vip.network);
        }
        service.vips.shrink_to_fit();
        service.subject_alt_names.shrink_to_fit();
        self.services.insert(Arc::new(service));
    }

    /// Removes a service. Its workloads stay, and become its endpoints again if it is inserted again.
    pub fn remove_service(&mut self, name: &NamespacedHostname) -> bool {
        self.services.remove(name)
    }

    /// Removes the workload with the uid `name`, or else the service of this name.
    pub fn remove_address(&mut self, name: &str) -> WorkloadChange {
        let change = self.remove_workload(name);
        if change.before.is_none()
            && let Ok(service) = name.parse()
        {
            self.remove_service(&service);
        }
        change
    }

    fn intern_workload(&mut self, workload: &Workload) -> WorkloadRef {
        let strings = &mut self.strings;
        let services = workload
            .services
            .iter()
            .map(|(name, ports)| ServiceMembership {
                service: NamespacedHostname {
                    namespace: strings.intern(&name.namespace),
                    hostname: strings.intern(&name.hostname),
                },
                ports: ports.sorted().into_iter().collect(),
            })
            .collect();
        let template = WorkloadTemplate {
            namespace: strings.intern(&workload.namespace),
            network: strings.intern(&workload.network),
            trust_domain: strings.intern(&workload.trust_domain),
            service_account: strings.intern(&workload.service_account),
            cluster_id: strings.intern(&workload.cluster_id),
            workload_name: strings.intern(&workload.workload_name),
            canonical_name: strings.intern(&workload.canonical_name),
            canonical_revision: strings.intern(&workload.canonical_revision),
            hostname: strings.intern(&workload.hostname),
            authorization_policies: workload
                .authorization_policies
                .iter()
                .map(|name| strings.intern(name))
                .collect(),
            services,
            waypoint: workload.waypoint.clone().map(Box::new),
            network_gateway: workload.network_gateway.clone().map(Box::new),
            endpoint_waypoint: workload.endpoint_waypoint.clone().map(Box::new),
            capacity: workload.capacity,
            application_tunnel: workload.application_tunnel,
            workload_type: workload.workload_type,
            protocol: workload.protocol,
            network_mode: workload.network_mode,
            native_tunnel: workload.native_tunnel,
        };
        let mut locality = workload.locality.clone();
        for part in [
            &mut locality.region,
            &mut locality.zone,
            &mut locality.subzone,
        ] {
            *part = strings.intern(part);
        }
        let location = WorkloadLocation {
            node: strings.intern(&workload.node),
            locality,
        };
        WorkloadRef::new(
            workload,
            self.templates.intern(template),
            self.locations.intern(location),
        )
    }

    // === look-ups ===

    /// Returns a workload by uid.
    pub fn workload(&self, uid: &str) -> Option<&WorkloadRef> {
        self.workloads.by_uid(uid)
    }

    /// Returns the workload at an address (addresses of nodes belong to no workload).
    pub fn workload_by_ip(&self, network: &str, ip: IpAddr) -> Option<&WorkloadRef> {
        self.workloads.by_ip(network, ip.to_canonical())
    }

    /// Returns the local workload of a pod.
    pub fn local_workload(&self, pod: &PodName) -> Option<&WorkloadRef> {
        self.workloads
            .local_by_account(&pod.namespace, &pod.service_account)
            .find(|w| w.name() == pod.name)
    }

    /// Whether any local workload runs under this namespace and service account.
    pub fn has_local_workload(&self, namespace: &str, service_account: &str) -> bool {
        self.workloads
            .local_by_account(namespace, service_account)
            .next()
            .is_some()
    }

    /// Whether a workload runs on the proxy's node.
    pub fn is_local(&self, workload: &WorkloadRef) -> bool {
        self.config.node.is_empty() || *workload.node() == self.config.node
    }

    /// Iterates over the local workloads.
    pub fn local_workloads(&self) -> impl Iterator<Item = &WorkloadRef> {
        self.workloads.all_local()
    }

    /// Iterates over the workloads in no particular order.
    pub fn workloads(&self) -> impl Iterator<Item = &WorkloadRef> {
        self.workloads.iter()
    }

    /// Returns a service by name.
    pub fn service(&self, name: &NamespacedHostname) -> Option<&Arc<Service>> {
        self.services.by_name(name).map(|(service, _)| service)
    }

    /// Iterates over the services in no particular order.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.iter()
    }

    /// Returns the service at an address for a client of `client_namespace`. A virtual address precedes a prefix, and
    /// the client's own namespace precedes the canonical service; invisible services are skipped. An address of a
    /// workload belongs to no prefix.
    pub fn service_by_vip(
        &self,
        network: &str,
        ip: IpAddr,
        client_namespace: &str,
    ) -> Option<&Arc<Service>> {
        self.service_at(network, ip.to_canonical(), client_namespace)
            .map(|(service, _)| service)
    }

    /// Returns the service like [`Self::service_by_vip`], with its endpoints.
    pub(crate) fn service_at(
        &self,
        network: &str,
        ip: IpAddr,
        client_namespace: &str,
    ) -> Option<(&Arc<Service>, &Endpoints)> {
        let exact = self.services.by_vip(network, ip, Some(client_namespace));
        exact.or_else(|| {
            let is_of_workload = self.workloads.by_ip(network, ip).is_some();
            let by_prefix = || self.services.by_prefix(network, ip, Some(client_namespace));
            (!is_of_workload).then(by_prefix)?
        })
    }

    /// Returns the service with a host name for a client of `client_namespace`.
    pub fn service_by_hostname(
        &self,
        hostname: &str,
        client_namespace: &str,
    ) -> Option<&Arc<Service>> {
        self.service_by_hostname_where(hostname, client_namespace, |_| true)
    }

    /// Returns the service like [`Self::service_by_hostname`], among services for which `eligible` is true.
    pub fn service_by_hostname_where(
        &self,
        hostname: &str,
        client_namespace: &str,
        eligible: impl Fn(&Service) -> bool,
    ) -> Option<&Arc<Service>> {
        let preferred = self.config.preferred_service_namespace.as_deref();
        self.services
            .by_hostname(hostname, client_namespace, preferred, eligible)
    }

    /// Returns the endpoints at an address: the workload that owns the address, and WorkloadEntries that list it.
    pub fn endpoints_at<'a>(
        &'a self,
        network: &'a str,
        ip: IpAddr,
    ) -> impl Iterator<Item = &'a WorkloadRef> {
        self.workloads.all_by_ip(network, ip)
    }

    /// Whether any service has a wildcard (`*.example.com`) as host name.
    pub fn has_wildcard_hosts(&self) -> bool {
        self.services.has_wildcards()
    }

    /// Whether the table has a service or workload at an address (on-demand mode requests the others). A service's
    /// prefix does not count for the addresses in it.
    pub fn has_address(&self, address: &NetworkAddress) -> bool {
        self.services
            .by_vip(&address.network, address.address, None)
            .is_some()
            || self
                .workloads
                .by_ip(&address.network, address.address)
                .is_some()
    }

    /// Returns the numbers of records in the table.
    pub fn size(&self) -> TableSize {
        TableSize {
            workloads: self.workloads.len(),
            services: self.services.len(),
            templates: self.templates.len(),
        }
    }
}
