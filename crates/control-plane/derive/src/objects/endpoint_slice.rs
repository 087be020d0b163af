//! Parsing of EndpointSlices created by users or by other controllers: each address that does not belong to a pod is a
//! workload.
//!
//! EndpointSlices that Kubernetes creates for services with a selector are ignored: the selector already yields their
//! pods.

use std::{collections::BTreeMap, net::IpAddr};

use ambit_k8s_api::{EndpointSlice, Kind, ObjectKey, labels};
use ambit_model::ArcStr;

use crate::{
    config::MeshConfig,
    objects::readable::{FetchExtent, FetchedKind, Parsed, Readable},
    problem::FieldError,
};

impl FetchedKind for EndpointSlice {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole {
        labels: Some("endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io"),
    };
}

impl Readable for EndpointSlice {
    type Input = EndpointSliceInput;

    fn read(&self, _: &MeshConfig) -> Result<Parsed<EndpointSliceInput>, FieldError> {
        Ok(Parsed::new(EndpointSliceInput::read(self)?, Vec::new()))
    }
}

/// Endpoint of an EndpointSlice whose `targetRef` is a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodEndpoint {
    pub(crate) namespace: ArcStr,
    pub(crate) pod: ArcStr,
    /// UID of the pod; empty if the `targetRef` has none.
    pub(crate) uid: String,
}

impl PodEndpoint {
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::new(Kind::Pod, self.namespace.clone(), self.pod.clone())
    }
}

/// Parsed EndpointSlice of one service, created by a user or by another controller.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EndpointSliceInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) service: ArcStr,
    pub(crate) pods: Vec<PodEndpoint>,
    /// Addresses that do not belong to pods, and whether each is healthy.
    pub(crate) addresses: Vec<(IpAddr, bool)>,
    /// TCP ports of the slice's addresses, by port name.
    pub(crate) ports: BTreeMap<String, u16>,
}

impl EndpointSliceInput {
    /// Parses an EndpointSlice; `None` if it belongs to no service, or has host names instead of addresses.
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
