//! Owners of addresses, without namespaces that `discoverySelectors` exclude.

use std::net::IpAddr;

use ambit_k8s_api::{Kind, ObjectKey};
use ipnet::IpNet;

use crate::view::MeshView;

impl MeshView {
    /// Returns a Service or pod that owns an address within a prefix, which may be a single address.
    pub(crate) fn owner_within(&self, net: &IpNet) -> Option<&ObjectKey> {
        let mut owners = self.addresses.owners_within(net);
        owners.find(|owner| !self.is_excluded(&owner.namespace))
    }

    /// Returns an object of another namespace that owns an address within a prefix. For a prefix longer than one
    /// address only pods count, since receivers match addresses of Services before prefixes.
    pub(crate) fn owner_elsewhere(&self, net: &IpNet, namespace: &str) -> Option<&ObjectKey> {
        let is_one = net.prefix_len() == net.max_prefix_len();
        let counts = |owner: &&ObjectKey| is_one || owner.kind == Kind::Pod;
        let owners = self.addresses.owners_within(net).filter(counts);
        owners
            .filter(|owner| owner.namespace != namespace)
            .find(|owner| !self.is_excluded(&owner.namespace))
    }

    /// Returns the pod that owns an address.
    pub(crate) fn pod_at(&self, ip: &IpAddr) -> Option<&ObjectKey> {
        let owners = self.addresses.owners(ip);
        let mut pods = owners.filter(|owner| owner.kind == Kind::Pod);
        pods.find(|owner| !self.is_excluded(&owner.namespace))
    }
}
