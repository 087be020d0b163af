//! The two compared waypoints, Ambit's and Envoy's.

/// One of the two compared waypoints, with its own pods and namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComparedProxy {
    /// Name of the namespace and of the Gateway.
    pub(super) name: &'static str,
    /// Name of the waypoint's processes.
    pub(super) program: &'static str,
    /// Address of the service behind the waypoint.
    pub(super) address: &'static str,
}

impl ComparedProxy {
    /// Returns the name of the file with the Gateway's manifest.
    pub(super) fn gateway(self) -> String {
        format!("gateway-{}.yaml", self.name)
    }
}

pub(super) const AMBIT_WAYPOINT: ComparedProxy = ComparedProxy {
    name: "ours",
    program: "ambit-waypoint",
    address: "10.97.0.1",
};

pub(super) const ENVOY_WAYPOINT: ComparedProxy = ComparedProxy {
    name: "envoy",
    program: "envoy",
    address: "10.97.0.2",
};
