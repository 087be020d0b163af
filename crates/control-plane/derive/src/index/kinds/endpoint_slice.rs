//! Endpoint slices made by hand or by other controllers: each address that is no pod is a workload.
//!
//! Those that Kubernetes itself keeps for services with a selector are not followed: their pods are known by
//! the selector.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ambit_k8s_api::{EndpointSlice, Kind, ObjectKey, Service, labels};
use ambit_model::{
    ArcStr, NamespacedHostname, NetworkMode, Workload, WorkloadKind, WorkloadStatus,
};

use crate::{
    MeshConfig, PodDirectory,
    index::{
        Index, MeshView, cluster_addresses,
        kind::{Change, Extent, Followed, MeshKind, Read, Rendered},
    },
    problem::FieldError,
};

impl Followed for EndpointSlice {
    const EXTENT: Extent = Extent::Whole {
        labels: Some("endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io"),
    };
}

impl MeshKind for EndpointSlice {
    type Input = SliceInput;

    fn read(&self, _: &MeshConfig) -> Result<Read<SliceInput>, FieldError> {
        Ok(Read::of(SliceInput::read(self)?, Vec::new()))
    }

    fn changed(index: &mut Index, change: &Change<'_, SliceInput>, _: &mut PodDirectory) {
        index.mark(change.key.clone());
        let of_api_server = |slice: Option<&SliceInput>| -> BTreeSet<IpAddr> {
            let slice = slice
                .filter(|slice| cluster_addresses::is_api_server(&slice.namespace, &slice.service));
            let addresses = slice.into_iter().flat_map(|slice| &slice.addresses);
            addresses.map(|(ip, _)| *ip).collect()
        };
        let (old, new) = (of_api_server(change.old), of_api_server(change.new));
        if index.view.cluster_addresses.replace(&old, &new) {
            index.mark_gateways();
        }
        for pod in change.both().flat_map(|slice| &slice.pods) {
            index.mark(pod.key());
        }
    }

    fn render(view: &MeshView, key: &ObjectKey, slice: &SliceInput) -> Rendered {
        Rendered {
            workloads: workloads(view, key, slice).unwrap_or_default(),
            ..Rendered::default()
        }
    }
}

/// Marks the slices of a service and the pods they name.
pub(super) fn mark_of_service(index: &mut Index, service: &ObjectKey) {
    let objects = index.view.objects(&service.namespace);
    let slices = objects.map(|objects| objects.all::<EndpointSlice>().values());
    let of_service = slices.into_iter().flatten();
    let of_service = of_service.filter(|slice| slice.service == service.name);
    let keys: Vec<_> = of_service
        .flat_map(|slice| {
            let own = ObjectKey::new(
                Kind::EndpointSlice,
                slice.namespace.clone(),
                slice.name.clone(),
            );
            std::iter::once(own).chain(slice.pods.iter().map(PodEndpoint::key))
        })
        .collect();
    for key in keys {
        index.mark(key);
    }
}

fn workloads(view: &MeshView, key: &ObjectKey, slice: &SliceInput) -> Option<Vec<Workload>> {
    let objects = view.objects(&key.namespace)?;
    let service = objects.all::<Service>().get(&slice.service)?;
    if !view.may_serve(&key.namespace, &service.name, None) {
        return None;
    }
    let host = NamespacedHostname::new(
        key.namespace.clone(),
        service.hostname(&view.config.cluster_domain),
    );
    let ports = service.targets_elsewhere(&slice.ports);
    let workload = |(ip, ready): &(IpAddr, bool)| Workload {
        uid: view.uid(&format!(
            "discovery.k8s.io/EndpointSlice/{}/{}/{ip}",
            key.namespace, key.name
        )),
        workload_ips: vec![*ip],
        // The address may belong to something else as well: never claim it.
        network_mode: NetworkMode::HostNetwork,
        service_account: ArcStr::new(),
        workload_type: WorkloadKind::Deployment,
        status: if *ready {
            WorkloadStatus::Healthy
        } else {
            WorkloadStatus::Unhealthy
        },
        services: [(host.clone(), ports.clone())].into(),
        ..view.base(&key.namespace, &key.name)
    };
    Some(slice.addresses.iter().map(workload).collect())
}

/// An endpoint that is a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodEndpoint {
    pub(crate) namespace: ArcStr,
    pub(crate) pod: ArcStr,
    /// Empty if the slice names none.
    pub(crate) uid: String,
}

impl PodEndpoint {
    fn key(&self) -> ObjectKey {
        ObjectKey::new(Kind::Pod, self.namespace.clone(), self.pod.clone())
    }
}

/// Endpoints of one service, given by hand or by another controller.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SliceInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) service: ArcStr,
    pub(crate) pods: Vec<PodEndpoint>,
    /// Addresses that are no pods, and whether they are healthy.
    pub(crate) addresses: Vec<(IpAddr, bool)>,
    /// TCP ports by name.
    pub(crate) ports: BTreeMap<String, u16>,
}

impl SliceInput {
    /// `None`: of no service, or of names rather than addresses.
    pub(crate) fn read(slice: &EndpointSlice) -> Result<Option<Self>, FieldError> {
        let label = |name: &str| {
            slice
                .metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get(name))
        };
        let Some(service) = label(labels::SERVICE_NAME).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        if slice.address_type == "FQDN" {
            return Ok(None);
        }
        let namespace: ArcStr = slice
            .metadata
            .namespace
            .as_deref()
            .unwrap_or("default")
            .into();
        let (mut pods, mut addresses) = (Vec::new(), Vec::new());
        for (index, endpoint) in slice.endpoints.iter().enumerate() {
            let reference = endpoint
                .target_ref
                .as_ref()
                .filter(|target| target.kind.as_deref() == Some("Pod"));
            if let Some(target) = reference {
                pods.push(PodEndpoint {
                    namespace: target
                        .namespace
                        .as_deref()
                        .map_or_else(|| namespace.clone(), ArcStr::from),
                    pod: target.name.as_deref().unwrap_or_default().into(),
                    uid: target.uid.clone().unwrap_or_default(),
                });
                continue;
            }
            let ready = endpoint
                .conditions
                .as_ref()
                .and_then(|conditions| conditions.ready)
                .unwrap_or(true);
            for (number, address) in endpoint.addresses.iter().enumerate() {
                let ip: IpAddr = address.parse().map_err(|_| {
                    FieldError::new(
                        format!("endpoints[{index}].addresses[{number}]"),
                        format!("{address:?} is not an IP address"),
                    )
                })?;
                addresses.push((ip.to_canonical(), ready));
            }
        }
        addresses.sort_unstable();
        addresses.dedup_by_key(|(ip, _)| *ip);
        let tcp = slice.ports.iter().flatten().filter(|port| {
            port.protocol
                .as_deref()
                .is_none_or(|protocol| protocol == "TCP")
        });
        let mut ports = BTreeMap::new();
        for (index, port) in tcp.enumerate() {
            let Some(number) = port.port else { continue };
            let number = u16::try_from(number)
                .ok()
                .filter(|number| *number != 0)
                .ok_or_else(|| {
                    FieldError::new(
                        format!("ports[{index}].port"),
                        format!("{number} is not a port, 1 to 65535"),
                    )
                })?;
            ports.insert(port.name.clone().unwrap_or_default(), number);
        }
        Ok(Some(Self {
            name: slice.metadata.name.as_deref().unwrap_or_default().into(),
            service: service.as_str().into(),
            namespace,
            pods,
            addresses,
            ports,
        }))
    }
}
