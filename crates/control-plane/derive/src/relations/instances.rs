//! Pods with the label `gateway.networking.k8s.io/gateway-name`, which names a Gateway of their namespace.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ambit_k8s_api::labels;
use ambit_model::{ArcStr, GatewayName};

use crate::{labels::Labels, objects::pod::PodInput};

/// Pods whose label names a Gateway of their namespace, by that Gateway and the pod's name.
#[derive(Debug, Default)]
pub(crate) struct Instances(HashMap<GatewayName, BTreeMap<ArcStr, GatewayPod>>);

#[derive(Debug, PartialEq)]
pub(crate) struct GatewayPod {
    account: ArcStr,
    is_ready: bool,
}

impl Instances {
    pub(crate) fn pods_of(
        &self,
        gateway: &GatewayName,
    ) -> impl Iterator<Item = (&ArcStr, &GatewayPod)> {
        self.0.get(gateway).into_iter().flatten()
    }

    /// Whether a pod with the Gateway's label and the waypoint's service account is ready.
    pub(crate) fn any_ready(&self, gateway: &GatewayName) -> bool {
        let mut pods = self.pods_of(gateway);
        pods.any(|(_, pod)| pod.is_ready && pod.account == gateway.name)
    }

    /// Whether a pod with the Gateway's label is ready, whatever its service account.
    pub(crate) fn any_labelled_ready(&self, gateway: &GatewayName) -> bool {
        self.pods_of(gateway).any(|(_, pod)| pod.is_ready)
    }

    /// Returns the service accounts of the pods with the Gateway's label.
    pub(crate) fn accounts(&self, gateway: &GatewayName) -> BTreeSet<ArcStr> {
        let pods = self.pods_of(gateway);
        pods.map(|(_, pod)| pod.account.clone()).collect()
    }

    pub(crate) fn replace(
        &mut self,
        name: &ArcStr,
        old: Option<GatewayName>,
        new: Option<&PodInput>,
    ) {
        if let Some(gateway) = old
            && let Some(pods) = self.0.get_mut(&gateway)
        {
            pods.remove(name);
            if pods.is_empty() {
                self.0.remove(&gateway);
            }
        }
        if let Some(pod) = new
            && let Some(gateway) = labelled_gateway(pod)
        {
            let instance = GatewayPod {
                account: pod.service_account.clone(),
                is_ready: pod.is_ready,
            };
            let pods = self.0.entry(gateway).or_default();
            pods.insert(name.clone(), instance);
        }
    }
}

/// Returns the Gateway that the label of a pod names; `None` if the pod has no address or has terminated.
pub(crate) fn labelled_gateway(pod: &PodInput) -> Option<GatewayName> {
    let name = gateway_label(&pod.labels).filter(|_| pod.is_published())?;
    Some(GatewayName::new(pod.namespace.clone(), name))
}

pub(crate) fn gateway_label(labels: &Labels) -> Option<&str> {
    let name = labels.get(labels::GATEWAY_NAME)?;
    Some(name.as_str()).filter(|name| !name.is_empty())
}
