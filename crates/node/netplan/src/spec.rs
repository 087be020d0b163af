//! Specifications of the desired redirection in a namespace, their defaults and their limits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Packet and connection marks, and routing numbers, that only rules and routes use. The proxy's own mark and its ports
/// are part of the contract: see [`ambit_model`].
pub mod marks {
    /// Bits of packet and connection marks that Ambit uses; the others belong to other programs.
    pub const MASK: u32 = 0xfff;
    /// Mark of connections from the node proxy to the pod's application with a spoofed source, and of their replies.
    pub const SPOOFED: u32 = 0x111;
    /// Preference of the policy rule that routes replies to spoofed sources back to the proxy.
    pub const RULE_PREFERENCE: u32 = 32764;
    /// Routing table of that policy rule; it has one local default route.
    pub const ROUTE_TABLE: u32 = 100;
    /// Mark of sockets of the application that are captured by BPF programs.
    pub const OUTBOUND: u32 = 0x222;
    /// Preference of the policy rule that routes packets of such sockets to the proxy.
    pub const OUTBOUND_RULE_PREFERENCE: u32 = 32763;
    /// Routing table of that policy rule; it has one local default route.
    pub const OUTBOUND_ROUTE_TABLE: u32 = 101;
    /// Packet mark of connections from kubelet's cgroup, while they are in the node's namespace.
    pub const KUBELET: u32 = 0x17f;
    /// Conntrack zone in which packets of the proxy's connections to the application are tracked.
    pub const ZONE: u16 = 1;
}

/// Source addresses that the node gives to kubelet's probes, by which pods exempt them.
pub mod probes {
    use super::{Ipv4Addr, Ipv6Addr};

    /// Source address of probes to IPv4 pods.
    pub const V4: Ipv4Addr = Ipv4Addr::new(169, 254, 7, 127);
    /// Source address of probes to IPv6 pods.
    pub const V6: Ipv6Addr = Ipv6Addr::new(
        0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff,
    );
}

/// Kernel interface that the rules are written through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backend {
    /// BPF programs in pods that they can capture. Elsewhere, and on the node, nftables over netlink; if the kernel
    /// lacks a feature, iptables' nft variant, then the legacy one.
    #[default]
    Auto,
    /// nftables over netlink only.
    Nftables,
    /// Only `iptables-nft-restore` and its IPv6 counterpart.
    IptablesNft,
    /// Only `iptables-legacy-restore` and its IPv6 counterpart.
    IptablesLegacy,
    /// Like [`Self::Auto`], but the agent logs a warning for each pod that rules capture.
    Bpf,
}

impl Backend {
    /// Returns the name of the backend in settings and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Nftables => "nftables",
            Self::IptablesNft => "iptables-nft",
            Self::IptablesLegacy => "iptables-legacy",
            Self::Bpf => "bpf",
        }
    }

    /// Whether BPF programs capture the pods that they can, and rules are written through the first kernel interface that
    /// works.
    pub fn is_automatic(self) -> bool {
        matches!(self, Self::Auto | Self::Bpf)
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Backend {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        [
            Self::Auto,
            Self::Nftables,
            Self::IptablesNft,
            Self::IptablesLegacy,
            Self::Bpf,
        ]
        .into_iter()
        .find(|backend| backend.name() == s)
        .ok_or_else(|| SpecError::UnknownBackend(s.to_owned()))
    }
}

/// Desired redirection in one pod's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectionSpec {
    /// Whether IPv4 is captured.
    pub ipv4: bool,
    /// Whether IPv6 is captured. In a pod with IPv6 disabled, its routing parts are left out.
    pub ipv6: bool,
    /// Whether the pod's DNS queries are redirected to the proxy (`ambient.istio.io/dns-capture`).
    pub dns_capture: bool,
    /// Whether inbound plaintext is not captured (`ambient.istio.io/bypass-inbound-capture`).
    pub ingress_bypass: bool,
    /// Interfaces whose arriving TCP connections count as outbound (`istio.io/reroute-virtual-interfaces`).
    pub virtual_interfaces: Vec<String>,
    /// Whether the sockets that an application accepts from the proxy inherit the proxy's mark
    /// (sysctl `tcp_fwmark_accept`), if it can be set: replies are then routed without a second
    /// route lookup a packet. Otherwise connection marks have the same effect.
    pub mark_accepted_sockets: bool,
    /// Interfaces over which kubelet's probes bypass the proxy. Only where the node's rules
    /// ([`HostSpec`]) are in place and see every frame of the interface: they give probes their address,
    /// and keep others from having it. Elsewhere probes arrive as ordinary plaintext.
    pub probe_interfaces: Vec<String>,
    /// Ports of the pod on which kubelet's probes over `probe_interfaces` bypass the proxy.
    pub probe_ports: ProbePorts,
    /// Source address of IPv4 probes.
    pub probe_v4: Ipv4Addr,
    /// Source address of IPv6 probes.
    pub probe_v6: Ipv6Addr,
    /// Kernel interface that the rules are written through.
    pub backend: Backend,
}

/// Ports of a pod on which kubelet's connections count as probes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProbePorts {
    /// All ports: for clusters with that setting, and for pods whose probes are not known.
    #[default]
    All,
    /// Ports that the pod's probes and lifecycle hooks name, sorted and without duplicates.
    Only(Vec<u16>),
}

impl ProbePorts {
    /// Whether a connection to this port may be a probe.
    pub fn contains(&self, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Only(ports) => ports.contains(&port),
        }
    }

    /// Returns the ports one by one; `None` stands for every port.
    pub fn iter(&self) -> impl Iterator<Item = Option<u16>> {
        let (every, only): (_, &[u16]) = match self {
            Self::All => (Some(None), &[]),
            Self::Only(ports) => (None, ports),
        };
        every.into_iter().chain(only.iter().copied().map(Some))
    }
}

impl Default for RedirectionSpec {
    fn default() -> Self {
        Self {
            ipv4: true,
            ipv6: true,
            dns_capture: false,
            ingress_bypass: false,
            virtual_interfaces: Vec::new(),
            mark_accepted_sockets: true,
            probe_interfaces: Vec::new(),
            probe_ports: ProbePorts::All,
            probe_v4: probes::V4,
            probe_v6: probes::V6,
            backend: Backend::Auto,
        }
    }
}

impl RedirectionSpec {
    /// Validates the parts of the specification that come from annotations and settings.
    ///
    /// # Errors
    /// Names the offending value.
    pub fn validate(&self) -> Result<(), SpecError> {
        if !self.ipv4 && !self.ipv6 {
            return Err(SpecError::NoFamily);
        }
        if self.virtual_interfaces.len() > MAX_VIRTUAL_INTERFACES {
            return Err(SpecError::TooManyInterfaces(self.virtual_interfaces.len()));
        }
        match self
            .virtual_interfaces
            .iter()
            .chain(&self.probe_interfaces)
            .find(|name| !is_interface_name(name))
        {
            Some(name) => Err(SpecError::InterfaceName(name.clone())),
            None => Ok(()),
        }
    }
}

/// Maximum number of virtual interfaces, more than any real pod has; the annotation is untrusted text.
const MAX_VIRTUAL_INTERFACES: usize = 64;

/// Whether rules can name this interface: the kernel's check (`dev_valid_name`), narrowed to characters that iptables
/// accepts without quotes.
pub fn is_interface_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name != "."
        && name != ".."
        && !name.starts_with('-')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-@".contains(&b))
}

/// Specification of the rules in the node's namespace, which give probes of enrolled pods a source address that no
/// other traffic has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// Whether the rules cover IPv4 pods.
    pub ipv4: bool,
    /// Whether the rules cover IPv6 pods.
    pub ipv6: bool,
    /// UID of the processes whose connections count as probes (kubelet's); `None`: those of any user do.
    pub kubelet_uid: Option<u32>,
    /// Cgroup of the processes whose connections count as probes; `None`: those of any process do. iptables cannot
    /// match a cgroup, and exempts nothing if one is set.
    pub kubelet_cgroup: Option<Cgroup>,
    /// Source address that probes to IPv4 pods get.
    pub probe_v4: Ipv4Addr,
    /// Source address that probes to IPv6 pods get.
    pub probe_v6: Ipv6Addr,
    /// Kernel interface that the rules are written through.
    pub backend: Backend,
}

impl Default for HostSpec {
    fn default() -> Self {
        Self {
            ipv4: true,
            ipv6: true,
            kubelet_uid: Some(0),
            kubelet_cgroup: None,
            probe_v4: probes::V4,
            probe_v6: probes::V6,
            backend: Backend::Auto,
        }
    }
}

/// Control group of the unified hierarchy (cgroup v2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Depth below the root of the hierarchy: 1 for `/system.slice`.
    pub level: u32,
    /// Kernel id of the cgroup: the inode number of its directory.
    pub id: u64,
}

impl Cgroup {
    /// Cgroup that matches no process: the kernel gives no cgroup the id 0.
    pub const NONE: Self = Self { level: 1, id: 0 };
}

/// An enrolled pod's address and a port that kubelet probes, as the node's sets hold them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostMember {
    /// The pod's address.
    pub ip: IpAddr,
    /// Probe port; `None`: every port.
    pub port: Option<u16>,
    /// UID of the pod, kept as the set element's comment: a late removal of a pod then leaves its former address alone
    /// if another pod has it.
    pub uid: String,
}

/// Error of an invalid [`RedirectionSpec`] or backend name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Both address families are disabled.
    #[error("redirection needs IPv4 or IPv6, and both are switched off")]
    NoFamily,
    /// The name cannot be that of a network interface.
    #[error("{0:?} is not an interface name (1 to 15 of A-Z a-z 0-9 . _ - @)")]
    InterfaceName(String),
    /// The list of virtual interfaces is longer than the limit.
    #[error("{0} virtual interfaces are named; at most {MAX_VIRTUAL_INTERFACES} are allowed")]
    TooManyInterfaces(usize),
    /// The setting needs address translation, which capture by BPF programs does without.
    #[error("{0} is not possible with capture by BPF programs; use nftables")]
    NeedsTranslation(&'static str),
    /// Name of no known backend.
    #[error("unknown backend {0:?}; use auto, nftables, iptables-nft, iptables-legacy or bpf")]
    UnknownBackend(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_interfaces_are_refused() {
        for name in [
            "",
            "a b",
            "sixteen-letters-",
            "a\"b",
            "x/y",
            "..",
            "-j",
            "é",
        ] {
            let spec = RedirectionSpec {
                virtual_interfaces: vec![name.into()],
                ..Default::default()
            };
            assert_eq!(spec.validate(), Err(SpecError::InterfaceName(name.into())));
        }
        let spec = RedirectionSpec {
            virtual_interfaces: vec!["k6t-net0".into(), "docker0".into()],
            ..Default::default()
        };
        assert_eq!(spec.validate(), Ok(()));
    }

    #[test]
    fn a_backend_is_read_by_its_name() {
        assert_eq!("iptables-nft".parse(), Ok(Backend::IptablesNft));
        assert_eq!("bpf".parse(), Ok(Backend::Bpf));
        assert!("xtables".parse::<Backend>().is_err());
    }
}
