//! Owners of an address, as far as the mesh sees their namespaces.

use std::net::IpAddr;

use ambit_k8s_api::{Kind, ObjectKey};
use ipnet::IpNet;

use crate::view::MeshView;

impl MeshView {
    /// Returns a Service or pod that has an address of a prefix, which may be a single one.
    pub(crate) fn owner_within(&self, net: &IpNet) -> Option<&ObjectKey> {
        let mut owners = self.addresses.owners_within(net);
        owners.find(|owner| !self.is_left_out(&owner.namespace))
    }

    /// Returns the owner in another namespace of an address, or of one in a prefix. Of a prefix only pods count:
    /// Services' own addresses come before any prefix.
    pub(crate) fn owner_elsewhere(&self, net: &IpNet, namespace: &str) -> Option<&ObjectKey> {
        let is_one = net.prefix_len() == net.max_prefix_len();
        let counts = |owner: &&ObjectKey| is_one || owner.kind == Kind::Pod;
        let owners = self.addresses.owners_within(net).filter(counts);
        owners
            .filter(|owner| owner.namespace != namespace)
            .find(|owner| !self.is_left_out(&owner.namespace))
    }

    /// Returns the pod that has an address.
    pub(crate) fn pod_at(&self, ip: &IpAddr) -> Option<&ObjectKey> {
        let owners = self.addresses.owners(ip);
        let mut pods = owners.filter(|owner| owner.kind == Kind::Pod);
        pods.find(|owner| !self.is_left_out(&owner.namespace))
    }
}
