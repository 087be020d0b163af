//! Services of the cluster with their virtual addresses and endpoints.

use std::net::IpAddr;

use ambit_k8s_api::{ObjectKey, Service};
use k8s_openapi::{api::core::v1::ServicePort, apimachinery::pkg::util::intstr::IntOrString};

use super::{PodObservation, PodPlan};
use crate::addresses::AddressPlan;

/// Service with the addresses, ports and ready endpoints that DNS and address translation use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceView {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Virtual addresses; none for a headless service.
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) ports: Vec<PortView>,
    /// Endpoints of a headless service: host name and address.
    pub(crate) endpoints: Vec<(String, IpAddr)>,
}

/// Port of a service, with the endpoints behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortView {
    /// Name by which other objects and DNS refer to the port; often empty.
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) is_udp: bool,
    pub(crate) targets: Vec<(IpAddr, u16)>,
}

/// Returns the virtual addresses of a service: those in its manifest, else its `old` ones, else the lab's addresses
/// with index `next`.
pub(super) fn service_addresses(
    service: &Service,
    plan: AddressPlan,
    old: &[IpAddr],
    next: u16,
) -> Vec<IpAddr> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    let given: Vec<&str> = match spec.cluster_ips.as_deref() {
        Some([]) | None => spec.cluster_ip.as_deref().into_iter().collect(),
        Some(several) => several.iter().map(String::as_str).collect(),
    };
    let given: Vec<_> = given.into_iter().filter(|text| !text.is_empty()).collect();
    if given.contains(&"None") || spec.type_.as_deref() == Some("ExternalName") {
        return Vec::new();
    }
    if !given.is_empty() {
        return given.iter().filter_map(|text| text.parse().ok()).collect();
    }
    let families = spec.ip_families.as_deref().unwrap_or_default();
    let policy = spec.ip_family_policy.as_deref().unwrap_or("SingleStack");
    let mut fresh = if old.is_empty() {
        plan.service_addresses(next)
    } else {
        old.to_vec()
    };
    if let Some(first) = families.first() {
        fresh.sort_by_key(|ip| (first == "IPv6") != ip.is_ipv6());
    }
    if policy == "SingleStack" && families.len() < 2 {
        fresh.truncate(1);
    }
    fresh
}

/// Returns a service with its current endpoints; `None` for an ExternalName service.
pub(super) fn service_view(
    key: &ObjectKey,
    service: &Service,
    ips: &[IpAddr],
    pods: &[(&PodPlan, &PodObservation)],
) -> Option<ServiceView> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let selector = spec
        .selector
        .as_ref()
        .filter(|selector| !selector.is_empty());
    let unready = spec.publish_not_ready_addresses.unwrap_or(false);
    let endpoints: Vec<_> = pods
        .iter()
        .filter(|(plan, observed)| {
            let labels = plan.pod.metadata.labels.as_ref();
            plan.namespace() == key.namespace
                && (unready || observed.is_ready())
                && selector.is_some_and(|selector| {
                    selector.iter().all(|(label, value)| {
                        labels.and_then(|labels| labels.get(label)) == Some(value)
                    })
                })
        })
        .collect();
    let ports = spec.ports.as_deref().unwrap_or_default();
    Some(ServiceView {
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        ips: ips.to_vec(),
        ports: ports
            .iter()
            .filter_map(|port| port_view(port, &endpoints))
            .collect(),
        endpoints: endpoints
            .iter()
            .flat_map(|(plan, seen)| seen.ips.iter().map(|ip| (plan.hostname(), *ip)))
            .collect(),
    })
}

fn port_view(port: &ServicePort, endpoints: &[&(&PodPlan, &PodObservation)]) -> Option<PortView> {
    let udp = match port.protocol.as_deref() {
        None | Some("TCP") => false,
        Some("UDP") => true,
        Some(_) => return None,
    };
    let number = u16::try_from(port.port).ok()?;
    let targets = endpoints.iter().flat_map(|(plan, observed)| {
        let target = target_port(port, number, plan);
        observed
            .ips
            .iter()
            .filter_map(move |ip| Some((*ip, target?)))
    });
    Some(PortView {
        name: port.name.clone().unwrap_or_default(),
        port: number,
        is_udp: udp,
        targets: targets.collect(),
    })
}

fn target_port(port: &ServicePort, number: u16, plan: &PodPlan) -> Option<u16> {
    match &port.target_port {
        None => Some(number),
        Some(target) => container_port(target, plan),
    }
}

/// Resolves a target port to its number: given directly, or by the name of a container port of the pod.
pub(crate) fn container_port(port: &IntOrString, plan: &PodPlan) -> Option<u16> {
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => plan
            .containers()
            .iter()
            .flat_map(|container| container.ports.as_deref().unwrap_or_default())
            .find(|port| port.name.as_deref() == Some(name))
            .and_then(|port| u16::try_from(port.container_port).ok())
            .or_else(|| name.parse().ok()),
    }
}
