//! Hosts that a VirtualService is for, and the proxies that follow it.

use std::collections::BTreeSet;

use ambit_model::ArcStr;

/// Hosts that a VirtualService is for, and the proxies that follow it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HostScope {
    /// Full names, in lower case.
    pub(crate) hosts: Vec<ArcStr>,
    /// Namespaces whose waypoints and clients follow it; `None` for all.
    pub(crate) exported: Option<BTreeSet<ArcStr>>,
    /// Whether it is for clients in the mesh, and not for gateways alone.
    pub(crate) is_for_mesh: bool,
    /// Whether a rule of it matches all requests, so that none is left for others.
    pub(crate) has_catch_all: bool,
}

impl HostScope {
    /// Hosts whose requests it routes.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &ArcStr> {
        self.hosts.iter().filter(|_| self.is_for_mesh)
    }

    pub(crate) fn is_exported_to(&self, namespace: &ArcStr) -> bool {
        let exported = self.exported.as_ref();
        exported.is_none_or(|to| to.contains(namespace))
    }
}
