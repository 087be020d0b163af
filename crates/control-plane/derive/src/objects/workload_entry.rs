//! Parsing of WorkloadEntries, and of the endpoints of ServiceEntries.

use std::{collections::BTreeMap, net::IpAddr};

use ambit_k8s_api::{WorkloadEntry, is_dns_name, istio::WorkloadEntrySpec, labels};
use ambit_model::{ArcStr, Locality};

use crate::{
    config::MeshConfig,
    labels::Labels,
    objects::readable::{FetchExtent, FetchedKind, Parsed, Readable},
    problem::FieldError,
};

impl FetchedKind for WorkloadEntry {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

impl Readable for WorkloadEntry {
    type Input = WorkloadEntryInput;

    fn read(&self, _: &MeshConfig) -> Result<Parsed<WorkloadEntryInput>, FieldError> {
        WorkloadEntryInput::read(self).map(Parsed::without_notes)
    }
}

/// Address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndpointAddress {
    Ip(IpAddr),
    Host(ArcStr),
}

/// Parsed endpoint outside Kubernetes, of a WorkloadEntry or of a ServiceEntry's `endpoints`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EndpointInput {
    pub(crate) address: EndpointAddress,
    /// Address as the object has it, which is part of the workload's uid.
    pub(crate) address_text: String,
    pub(crate) ports: BTreeMap<String, u16>,
    pub(crate) labels: Labels,
    pub(crate) network: Option<ArcStr>,
    pub(crate) locality: Locality,
    pub(crate) capacity: u32,
    pub(crate) service_account: ArcStr,
    pub(crate) has_native_tunnel: bool,
}

impl EndpointInput {
    /// Returns the endpoint's IP address; `None` if its address has another form.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self.address {
            EndpointAddress::Ip(ip) => Some(ip),
            EndpointAddress::Host(_) => None,
        }
    }

    pub(crate) fn read(
        spec: &WorkloadEntrySpec,
        more_labels: Option<&Labels>,
        at: &str,
    ) -> Result<Self, FieldError> {
        let field = |name: &str| format!("{at}.{name}");
        let address = match spec.address.parse::<IpAddr>() {
            Ok(ip) => EndpointAddress::Ip(ip.to_canonical()),
            Err(_) if is_dns_name(&spec.address.to_ascii_lowercase(), 253) => {
                EndpointAddress::Host(spec.address.to_ascii_lowercase().into())
            }
            Err(_) => {
                let message = format!(
                    "{:?} is neither an IP address nor a host name",
                    spec.address
                );
                return Err(FieldError::new(field("address"), message));
            }
        };
        let mut ports = BTreeMap::new();
        for (name, number) in &spec.ports {
            let number = port_number(*number)
                .map_err(|message| FieldError::new(field(&format!("ports.{name}")), message))?;
            ports.insert(name.clone(), number);
        }
        // Without one it has no identity: nothing that it could be called by is made up for it.
        let account = spec.service_account.as_deref().unwrap_or_default();
        if !account.is_empty() && !is_dns_name(account, 253) {
            return Err(FieldError::new(
                field("serviceAccount"),
                format!("{account:?} is not a valid name"),
            ));
        }
        let mut labels = spec.labels.clone();
        labels.extend(
            more_labels
                .into_iter()
                .flatten()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        let native_tunnel = labels
            .get(labels::TUNNEL)
            .is_some_and(|value| value == "http");
        Ok(Self {
            address,
            address_text: spec.address.clone(),
            ports,
            network: spec
                .network
                .as_deref()
                .filter(|network| !network.is_empty())
                .map(ArcStr::from),
            locality: locality(spec.locality.as_deref()),
            capacity: spec.weight.unwrap_or(1),
            service_account: account.into(),
            has_native_tunnel: native_tunnel,
            labels,
        })
    }
}

fn locality(text: Option<&str>) -> Locality {
    let mut parts = text.unwrap_or_default().splitn(3, '/').map(ArcStr::from);
    let mut next = || parts.next().unwrap_or_default();
    Locality {
        region: next(),
        zone: next(),
        subzone: next(),
    }
}

pub(crate) fn port_number(port: u32) -> Result<u16, String> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{port} is not a port, 1 to 65535"))
}

/// Parsed WorkloadEntry object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkloadEntryInput {
    pub(crate) name: ArcStr,
    pub(crate) namespace: ArcStr,
    pub(crate) endpoint: EndpointInput,
}

impl WorkloadEntryInput {
    fn read(entry: &WorkloadEntry) -> Result<Self, FieldError> {
        Ok(Self {
            name: entry.metadata.name.as_deref().unwrap_or_default().into(),
            namespace: entry
                .metadata
                .namespace
                .as_deref()
                .unwrap_or("default")
                .into(),
            endpoint: EndpointInput::read(&entry.spec, entry.metadata.labels.as_ref(), "spec")?,
        })
    }
}
