//! Workload records of endpoints in EndpointSlices that are not pods of this cluster.

use std::{collections::BTreeSet, net::IpAddr};

use ambit_k8s_api::{EndpointSlice, Kind, ObjectKey, Service};
use ambit_model::{
    ArcStr, NamespacedHostname, NetworkMode, Workload, WorkloadKind, WorkloadStatus,
};

use crate::{
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::endpoint_slice::{EndpointSliceInput, PodEndpoint},
    pod_directory::PodDirectory,
    relations::cluster_addresses,
    view::{MeshView, rendered::RenderedRecords},
};

impl MeshKind for EndpointSlice {
    fn on_change(index: &mut Index, change: &Change<'_, EndpointSliceInput>, _: &mut PodDirectory) {
        index.mark_object_stale(change.key.clone());
        let of_api_server = |slice: Option<&EndpointSliceInput>| -> BTreeSet<IpAddr> {
            let slice = slice
                .filter(|slice| cluster_addresses::is_api_server(&slice.namespace, &slice.service));
            let addresses = slice.into_iter().flat_map(|slice| &slice.addresses);
            addresses.map(|(ip, _)| *ip).collect()
        };
        let (old, new) = (of_api_server(change.old), of_api_server(change.new));
        if index.view.cluster_addresses.replace(&old, &new) {
            index.mark_all_gateways_stale();
        }
        for pod in change.both_versions().flat_map(|slice| &slice.pods) {
            index.mark_object_stale(pod.key());
        }
    }

    fn render(view: &MeshView, key: &ObjectKey, slice: &EndpointSliceInput) -> RenderedRecords {
        RenderedRecords {
            workloads: workloads(view, key, slice).unwrap_or_default(),
            ..RenderedRecords::default()
        }
    }
}

/// Marks as stale the EndpointSlices of a service, and the pods that they name.
pub(crate) fn mark_service_slices_stale(index: &mut Index, service: &ObjectKey) {
    let objects = index.view.objects(&service.namespace);
    let slices = objects.map(|objects| objects.all_of_kind::<EndpointSlice>().values());
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
        index.mark_object_stale(key);
    }
}

fn workloads(
    view: &MeshView,
    key: &ObjectKey,
    slice: &EndpointSliceInput,
) -> Option<Vec<Workload>> {
    let objects = view.objects(&key.namespace)?;
    let service = objects.all_of_kind::<Service>().get(&slice.service)?;
    if !view.may_be_endpoint(&key.namespace, &service.name, None) {
        return None;
    }
    let host = NamespacedHostname::new(
        key.namespace.clone(),
        service.hostname(&view.config.cluster_domain),
    );
    let ports = service.target_ports_by_name(&slice.ports);
    let workload = |(ip, ready): &(IpAddr, bool)| Workload {
        uid: view.workload_uid(&format!(
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
        ..view.base_workload(&key.namespace, &key.name)
    };
    Some(slice.addresses.iter().map(workload).collect())
}
