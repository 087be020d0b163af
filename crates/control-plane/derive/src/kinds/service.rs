//! Records and status conditions of Services.

use std::net::IpAddr;

use ambit_k8s_api::{ObjectKey, Service};
use ambit_model::{self as model, ArcStr, HealthPolicy, LbMode, LbScope, LoadBalancing};

use crate::{
    condition::{ConditionType, DerivedStatus, WAYPOINT_BOUND},
    index::{Index, change::Change},
    kinds::{
        endpoint_slice,
        kind::{HostClaim, MeshKind},
        namespace,
    },
    objects::service::{ServiceInput, ServicePort, TargetPort, failover_scopes},
    pod_directory::PodDirectory,
    records::ServiceRecord,
    relations::cluster_addresses,
    view::MeshView,
};

impl MeshKind for Service {
    const CONDITIONS: &'static [ConditionType] = &[WAYPOINT_BOUND];

    fn on_change(index: &mut Index, change: &Change<'_, ServiceInput>, _: &mut PodDirectory) {
        let key = change.key;
        let vips = |service: Option<&ServiceInput>| -> Vec<IpAddr> {
            service.map(|one| one.vips.clone()).unwrap_or_default()
        };
        let named_by =
            index
                .view
                .addresses
                .update_owned_addresses(key, &vips(change.old), &vips(change.new));
        index.mark_entries_stale(named_by);
        if cluster_addresses::is_api_server(&key.namespace, &key.name) {
            let (old, new) = (vips(change.old), vips(change.new));
            let (old, new) = (old.into_iter().collect(), new.into_iter().collect());
            if index.view.cluster_addresses.replace(&old, &new) {
                index.mark_all_gateways_stale();
            }
        }
        if key.namespace == index.view.config.root_namespace {
            let control_plane = change.new.and_then(|one| one.control_plane.clone());
            index.update_control_plane(&key.name, control_plane);
        }
        let domain = index.view.config.cluster_domain.clone();
        let host = |service: &ServiceInput| service.hostname(&domain);
        let hosts = |service: Option<&ServiceInput>| service.map(host).into_iter().collect();
        index.update_declared_hosts(key, hosts(change.old), hosts(change.new));
        for service in change.both_versions() {
            index.mark_selected_workloads_stale(&key.namespace, service.selector.as_ref());
        }
        endpoint_slice::mark_service_slices_stale(index, key);
        let binding = |service: Option<&ServiceInput>| service.and_then(|one| one.binding.clone());
        let (old, new) = (binding(change.old), binding(change.new));
        index.update_binding(key, old.as_ref(), new.as_ref());
        let canary = |service: Option<&ServiceInput>| service.and_then(|one| one.canary.clone());
        let (old, new) = (canary(change.old), canary(change.new));
        index.update_canary(key, old.as_ref(), new.as_ref());
        index.mark_attached_objects_stale(key);
        index.mark_service_gateway_stale(key);
        if change.old.is_none() || change.new.is_none() {
            index.mark_short_names_stale(&key.namespace);
        }
        let ports = |service: Option<&ServiceInput>| service.map(|one| one.ports.clone());
        if ports(change.old) != ports(change.new) {
            index.mark_provider_policies_stale();
        }
    }

    fn host_claim<'a>(
        _: &MeshView,
        service: &'a ServiceInput,
        _: &ArcStr,
    ) -> Option<HostClaim<'a>> {
        Some(HostClaim {
            is_kubernetes: true,
            created: &service.created,
            is_public: true,
        })
    }

    fn derived_status(
        view: &MeshView,
        key: &ObjectKey,
        service: &ServiceInput,
    ) -> Option<DerivedStatus> {
        let attachment = view.waypoint_of_service(key);
        let host = service.hostname(&view.config.cluster_domain);
        let serving = view.waypoints_serving(key, &host);
        let mut derived_status = view.bound_status(attachment.as_ref(), &serving);
        if let (Some(attachment), Some(condition)) = (&attachment, &mut derived_status.condition) {
            view.add_canary_to_condition(key, attachment, condition);
        }
        Some(derived_status)
    }

    fn service_record(
        view: &MeshView,
        service: &ServiceInput,
        _: &ArcStr,
    ) -> Option<ServiceRecord> {
        let distribution = namespace::traffic_distribution(view, &service.namespace);
        let domain = &view.config.cluster_domain;
        Some(service.build_record(domain, &view.network, distribution))
    }
}

impl ServiceInput {
    /// Builds the service record, without the field `canonical`.
    pub(crate) fn build_record(
        &self,
        domain: &str,
        network: &ArcStr,
        namespace_distribution: Option<&str>,
    ) -> ServiceRecord {
        let target = |port: &ServicePort| match port.target_port {
            TargetPort::Number(number) => number,
            TargetPort::Name(_) => 0,
        };
        let health_policy = if self.publishes_not_ready {
            HealthPolicy::AllowAll
        } else {
            HealthPolicy::OnlyHealthy
        };
        ServiceRecord {
            ingress_use_waypoint: false,
            app_protocols: self
                .published_ports()
                .map(|port| port.app_protocol)
                .collect(),
            service: model::Service {
                name: self.name.clone(),
                namespace: self.namespace.clone(),
                hostname: self.hostname(domain),
                vips: self
                    .vips
                    .iter()
                    .map(|ip| model::NetworkAddress::new(network.clone(), *ip))
                    .collect(),
                ports: self
                    .published_ports()
                    .map(|port| (port.port, target(port)))
                    .collect(),
                load_balancing: load_balancing(
                    self.is_node_local,
                    self.traffic_distribution
                        .as_deref()
                        .or(namespace_distribution),
                    health_policy,
                ),
                session_affinity: self.has_session_affinity,
                ip_families: self.ip_families,
                ..model::Service::default()
            },
        }
    }
}

pub(crate) fn load_balancing(
    node_local: bool,
    distribution: Option<&str>,
    health_policy: HealthPolicy,
) -> Option<LoadBalancing> {
    let (mode, routing_preferences) = if node_local {
        (LbMode::Strict, vec![LbScope::Node])
    } else {
        match distribution.and_then(failover_scopes) {
            Some(scopes) => (LbMode::Failover, scopes),
            None => (LbMode::Standard, Vec::new()),
        }
    };
    let result = LoadBalancing {
        routing_preferences,
        mode,
        health_policy,
    };
    (result != LoadBalancing::default()).then_some(result)
}
