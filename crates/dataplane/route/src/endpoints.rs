//! Lists endpoints of services, for `/config_dump` and for routes.

use ambit_model::{
    HealthPolicy, NamespacedHostname, PortMap, Service, WorkloadStatus, WorkloadUid,
};

use crate::{MeshTable, WorkloadRef, workloads::Slot};

/// Endpoint of a service, as `/config_dump` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointView {
    /// Uid of the workload.
    pub uid: WorkloadUid,
    /// Target ports of the workload by service port, as its own record maps them.
    pub ports: PortMap,
    /// Health that the control plane reports.
    pub status: WorkloadStatus,
}

/// Endpoint of one service port, as dumps show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortEndpoint {
    /// Workload of the endpoint.
    pub workload: WorkloadRef,
    /// Target port of the endpoint for the service port.
    pub port: u16,
}

impl MeshTable {
    /// Returns the endpoints that the service's health policy allows, for dumps.
    pub fn endpoints(&self, service: &Service) -> Vec<EndpointView> {
        let name = service.namespaced_hostname();
        let slots = self.usable_endpoints(service, &name);
        self.endpoint_view(&name, slots)
    }

    /// Iterates over the workloads that are endpoints of the service and that its health policy allows.
    pub fn endpoint_workloads(&self, service: &Service) -> impl Iterator<Item = &WorkloadRef> {
        self.usable_endpoints(service, &service.namespaced_hostname())
            .filter_map(|slot| self.workloads.get(slot))
    }

    /// Returns the endpoints of one service port, ready or not, for dumps.
    pub fn port_endpoints(&self, service: &Service, port: u16) -> Vec<PortEndpoint> {
        let name = service.namespaced_hostname();
        let by_service = service.ports.get(&port).copied();
        let entry = self.services.by_name(&name).into_iter();
        let slots = entry.flat_map(|(_, endpoints)| endpoints.usable(HealthPolicy::AllowAll));
        let workloads = slots.filter_map(|slot| self.workloads.get(slot));
        let of_port = workloads.filter_map(|workload| {
            let own = workload.membership(&name)?.target_port(port);
            let target = own.filter(|port| *port != 0).or(by_service)?;
            (target != 0).then(|| PortEndpoint {
                workload: workload.clone(),
                port: target,
            })
        });
        of_port.collect()
    }

    fn usable_endpoints(
        &self,
        service: &Service,
        name: &NamespacedHostname,
    ) -> impl Iterator<Item = Slot> + use<'_> {
        let policy = health_policy(service);
        let entry = self.services.by_name(name);
        entry
            .into_iter()
            .flat_map(move |(_, endpoints)| endpoints.usable(policy))
    }

    /// Whether a workload is an endpoint of the service and its health policy allows it.
    pub fn is_endpoint(&self, service: &Service, workload: &WorkloadRef) -> bool {
        workload
            .membership(&service.namespaced_hostname())
            .is_some()
            && (workload.status() == WorkloadStatus::Healthy
                || health_policy(service) == HealthPolicy::AllowAll)
    }

    /// Returns endpoints whose services have not been received, by service, for dumps.
    pub fn staged_endpoints(&self) -> Vec<(NamespacedHostname, Vec<EndpointView>)> {
        self.services
            .staged_endpoints()
            .map(|(name, endpoints)| {
                (
                    name.clone(),
                    self.endpoint_view(name, endpoints.usable(HealthPolicy::AllowAll)),
                )
            })
            .collect()
    }

    fn endpoint_view(
        &self,
        name: &NamespacedHostname,
        slots: impl Iterator<Item = Slot>,
    ) -> Vec<EndpointView> {
        slots
            .filter_map(|slot| self.workloads.get(slot))
            .filter_map(|workload| {
                Some(EndpointView {
                    uid: workload.uid().clone(),
                    ports: workload.membership(name)?.ports.iter().copied().collect(),
                    status: workload.status(),
                })
            })
            .collect()
    }
}

fn health_policy(service: &Service) -> HealthPolicy {
    service
        .load_balancing
        .as_ref()
        .map_or(HealthPolicy::OnlyHealthy, |lb| lb.health_policy)
}
