//! The two compared systems.

/// One of the two compared systems, with its own pods and namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    /// Name of the namespace and the Gateway.
    pub(super) name: &'static str,
    /// Program name of the processes.
    pub(super) program: &'static str,
    /// Address of the service.
    pub(super) address: &'static str,
}

impl Side {
    /// Name of the file with the Gateway's manifest.
    pub(super) fn gateway(self) -> String {
        format!("gateway-{}.yaml", self.name)
    }
}

pub(super) const OURS: Side = Side {
    name: "ours",
    program: "ambit-waypoint",
    address: "10.97.0.1",
};

pub(super) const ENVOY: Side = Side {
    name: "envoy",
    program: "envoy",
    address: "10.97.0.2",
};
