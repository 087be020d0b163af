//! Hosts that a VirtualService routes, and the namespaces and proxies that it applies to.

use std::collections::BTreeSet;

use ambit_model::ArcStr;

/// Hosts that a VirtualService routes, and the namespaces and proxies that it applies to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct VirtualServiceScope {
    /// Full host names in lower case.
    pub(crate) hosts: Vec<ArcStr>,
    /// Namespaces whose waypoints and clients the VirtualService applies to (`exportTo`); `None` for all.
    pub(crate) export_to: Option<BTreeSet<ArcStr>>,
    /// Whether the VirtualService applies to clients in the mesh (the gateway `mesh`), and not to gateways alone.
    pub(crate) is_for_mesh: bool,
    /// Whether one of the VirtualService's rules matches all requests, so that none falls through to another
    /// VirtualService.
    pub(crate) has_catch_all_rule: bool,
}

impl VirtualServiceScope {
    /// Returns the hosts whose requests the VirtualService routes.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &ArcStr> {
        self.hosts.iter().filter(|_| self.is_for_mesh)
    }

    pub(crate) fn is_exported_to(&self, namespace: &ArcStr) -> bool {
        let exported = self.export_to.as_ref();
        exported.is_none_or(|to| to.contains(namespace))
    }
}
