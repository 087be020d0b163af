//! Links between namespaces: veth pairs and bridges.

use crate::{LabError, Namespace};

/// One end of a link: interface and addresses in a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// Namespace that the interface is in.
    pub namespace: &'a Namespace,
    /// Name of the interface.
    pub interface: &'a str,
    /// Addresses of the interface, with prefix length.
    pub addresses: &'a [&'a str],
}

impl Link<'_> {
    fn configure(&self) -> Result<(), LabError> {
        let Self {
            namespace,
            interface,
            addresses,
        } = self;
        for address in *addresses {
            // `nodad`: without it an IPv6 address is unusable for a second.
            let nodad = if address.contains(':') { " nodad" } else { "" };
            namespace.run_ip_batch(&format!("addr add {address} dev {interface}{nodad}"))?;
        }
        namespace.run_ip_batch(&format!("link set {interface} up"))
    }
}

/// Connects two namespaces by a veth pair.
///
/// # Errors
/// When an interface exists already or an address is malformed.
pub fn connect_by_veth(one: Link<'_>, other: Link<'_>) -> Result<(), LabError> {
    one.namespace.run_ip_batch(&format!(
        "link add {} type veth peer name {} netns {}",
        one.interface,
        other.interface,
        other.namespace.pid()
    ))?;
    one.configure()?;
    other.configure()
}

/// Creates a bridge with addresses, and brings it up.
///
/// # Errors
/// When the interface exists already or an address is malformed.
pub fn add_bridge(at: Link<'_>) -> Result<(), LabError> {
    at.namespace.run_ip_batch(&format!(
        "link add {} type bridge forward_delay 0",
        at.interface
    ))?;
    at.configure()
}

/// Connects a bridge with another namespace by a veth pair; `port` is the name of the bridge's port.
///
/// # Errors
/// When an interface exists already or an address is malformed.
pub fn connect_to_bridge(bridge: Link<'_>, port: &str, other: Link<'_>) -> Result<(), LabError> {
    connect_by_veth(
        Link {
            interface: port,
            addresses: &[],
            ..bridge
        },
        other,
    )?;
    bridge
        .namespace
        .run_ip_batch(&format!("link set {port} master {}", bridge.interface))
}
