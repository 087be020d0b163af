//! Fabric: the network between a lab's nodes. It is a bridge in the lab's own namespace, with a namespace for each node
//! and one for the control plane.

use std::{net::IpAddr, path::PathBuf};

use ambit_netlab::{Host, HostError};

use crate::{
    Options, PrimaryCni,
    addresses::{AddressPlan, default_route},
    layout::Layout,
};

/// Name of the bridge that connects the nodes.
pub(crate) const BRIDGE: &str = "fabric0";
/// Name of the interface to the fabric in each node, and in the control plane.
const UPLINK: &str = "eth0";

/// Node of a lab: a network namespace with addresses on the fabric.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) number: u8,
    pub(crate) host: Host,
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) dir: PathBuf,
}

/// Network namespaces of a lab that exist before any pod: the lab's own, the control plane's, and those of the nodes.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) root: Host,
    pub(crate) control: Host,
    pub(crate) nodes: Vec<Node>,
}

/// Creates the namespaces of nodes and control plane, and connects them by the bridge.
pub(crate) async fn build(
    plan: AddressPlan,
    options: &Options,
    layout: &Layout,
) -> Result<Fabric, HostError> {
    let root = Host::current_namespace("fabric")?;
    root.bring_up("lo").await?;
    root.add_bridge(BRIDGE).await?;
    for address in plan.lab_addresses() {
        root.add_address(BRIDGE, address).await?;
    }
    enable_forwarding(&root, plan)?;

    let control = Host::new("control").await?;
    connect_to_bridge(
        &root,
        &control,
        "control",
        plan,
        &plan.control_plane_addresses(),
    )
    .await?;
    let mut nodes = Vec::new();
    for number in 1..=options.nodes {
        let name = format!("node-{number}");
        let host = Host::new(&name).await?;
        enable_forwarding(&host, plan)?;
        let addresses = plan.node_addresses(number);
        connect_to_bridge(&root, &host, &name, plan, &addresses).await?;
        let ips: Vec<_> = addresses.iter().map(ipnet::IpNet::addr).collect();
        for (prefix, via) in plan.pod_networks(number).into_iter().zip(&ips) {
            root.add_route(prefix, Some(*via), BRIDGE).await?;
        }
        let dir = layout.node(&name);
        nodes.push(Node {
            name,
            number,
            host,
            ips,
            dir,
        });
    }
    for node in &nodes {
        for other in nodes.iter().filter(|other| other.number != node.number) {
            for (prefix, via) in plan.pod_networks(other.number).into_iter().zip(&other.ips) {
                node.host.add_route(prefix, Some(*via), UPLINK).await?;
            }
        }
        for (prefix, via) in plan.pod_networks(node.number).into_iter().zip(&node.ips) {
            control.add_route(prefix, Some(*via), UPLINK).await?;
        }
        if options.primary_cni == PrimaryCni::Macvlan {
            create_macvlan_parent(plan, node).await?;
        }
    }
    Ok(Fabric {
        root,
        control,
        nodes,
    })
}

async fn connect_to_bridge(
    root: &Host,
    host: &Host,
    port: &str,
    plan: AddressPlan,
    addresses: &[ipnet::IpNet],
) -> Result<(), HostError> {
    root.add_veth(port, host, UPLINK).await?;
    root.attach_to_bridge(port, BRIDGE).await?;
    root.bring_up(port).await?;
    host.bring_up(UPLINK).await?;
    for address in addresses {
        host.add_address(UPLINK, *address).await?;
    }
    for gateway in plan.lab_addresses() {
        host.add_route(default_route(gateway.addr()), Some(gateway.addr()), UPLINK)
            .await?;
    }
    Ok(())
}

fn enable_forwarding(host: &Host, plan: AddressPlan) -> Result<(), HostError> {
    if plan.family.has_ipv4() {
        host.sysctl("net.ipv4.ip_forward", "1")?;
        // Pods of a node share a bridge but communicate through the node: no ICMP redirects to them.
        host.sysctl("net.ipv4.conf.all.send_redirects", "0")?;
        host.sysctl("net.ipv4.conf.default.send_redirects", "0")?;
    }
    if plan.family.has_ipv6() {
        host.sysctl("net.ipv6.conf.all.forwarding", "1")?;
    }
    // Where the kernel shows bridged packets to netfilter, service addresses are translated inside the
    // bridge, and a pod no longer reaches itself through one.
    for setting in [
        "net.bridge.bridge-nf-call-iptables",
        "net.bridge.bridge-nf-call-ip6tables",
    ] {
        let _not_built_in = host.sysctl(setting, "0");
    }
    Ok(())
}

/// Parent interface of pods' interfaces with the `macvlan` plugin. The parent is one end of a veth pair whose other end
/// has the node's address, since macvlan interfaces cannot reach their parent.
pub(crate) const MACVLAN_MASTER: &str = "pods1";
const MACVLAN_GATEWAY: &str = "pods0";

async fn create_macvlan_parent(plan: AddressPlan, node: &Node) -> Result<(), HostError> {
    node.host
        .add_veth(MACVLAN_GATEWAY, &node.host, MACVLAN_MASTER)
        .await?;
    node.host.bring_up(MACVLAN_GATEWAY).await?;
    node.host.bring_up(MACVLAN_MASTER).await?;
    for gateway in plan.pod_gateways(node.number) {
        node.host.add_address(MACVLAN_GATEWAY, gateway).await?;
    }
    Ok(())
}
