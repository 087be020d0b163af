//! Takes kube-proxy's place for pods outside the mesh: service addresses are translated to those of ready endpoints in
//! the node's network namespace.
//!
//! The rules are a table of the lab's own in nftables, which is replaced as a whole in one transaction.

use std::{collections::BTreeSet, fmt::Write, io, net::IpAddr, process::Stdio};

use ipnet::IpNet;
use tokio::io::AsyncWriteExt;

use crate::{
    cluster::{PortView, ServiceView},
    fabric::Node,
};

/// Name of the lab's nftables table, in the families ip and ip6.
const NFT_TABLE_NAME: &str = "lab-services";

/// Formats the nftables script that translates the addresses of the services `views`.
///
/// Pods in the networks `direct` reach each other without passing through the node, so that replies on translated
/// connections would bypass the node. For connections between these pods, the node also translates the source address.
pub(crate) fn render_nft_script(views: &[ServiceView], direct: &[IpNet]) -> String {
    let mut script = String::new();
    for (family, v4) in [("ip", true), ("ip6", false)] {
        let direct = direct.iter().find(|net| net.addr().is_ipv4() == v4);
        render_family(&mut script, family, views, direct, |ip| ip.is_ipv4() == v4);
    }
    script
}

fn render_family(
    script: &mut String,
    family: &str,
    views: &[ServiceView],
    direct: Option<&IpNet>,
    ours: impl Fn(&IpAddr) -> bool,
) {
    let mut translate = String::new();
    let mut refuse = String::new();
    let mut hairpins = BTreeSet::new();
    for view in views {
        for vip in view.ips.iter().filter(|ip| ours(ip)) {
            for port in &view.ports {
                let targets: Vec<_> = port.targets.iter().filter(|(ip, _)| ours(ip)).collect();
                let protocol = if port.is_udp { "udp" } else { "tcp" };
                let to = format!("{family} daddr {vip} {protocol} dport {}", port.port);
                if targets.is_empty() {
                    let how = if port.is_udp { "" } else { " with tcp reset" };
                    push_line(&mut refuse, format_args!("    {to} reject{how}"));
                } else {
                    push_line(
                        &mut translate,
                        format_args!("    {to} {}", dnat(family, port, &targets)),
                    );
                }
                hairpins.extend(targets.iter().map(|(ip, _)| *ip));
            }
        }
    }
    // Added first so that deleting never fails.
    push_line(script, format_args!("add table {family} {NFT_TABLE_NAME}"));
    push_line(
        script,
        format_args!("delete table {family} {NFT_TABLE_NAME}"),
    );
    push_line(script, format_args!("table {family} {NFT_TABLE_NAME} {{"));
    push_line(script, format_args!("  chain services {{\n{translate}  }}"));
    push_line(script, format_args!("  chain refused {{\n{refuse}  }}"));
    for (name, kind, hook, priority, jump) in [
        ("prerouting", "nat", "prerouting", "-100", "services"),
        ("output", "nat", "output", "-100", "services"),
        ("refuse-forward", "filter", "forward", "0", "refused"),
        ("refuse-output", "filter", "output", "0", "refused"),
    ] {
        push_line(script, format_args!("  chain {name} {{"));
        push_line(
            script,
            format_args!("    type {kind} hook {hook} priority {priority};"),
        );
        push_line(script, format_args!("    jump {jump}\n  }}"));
    }
    push_line(script, format_args!("  chain postrouting {{"));
    push_line(
        script,
        format_args!("    type nat hook postrouting priority 100;"),
    );
    for ip in hairpins {
        // A pod that reaches itself through a service must not see its own address as the peer's.
        push_line(
            script,
            format_args!("    {family} saddr {ip} {family} daddr {ip} masquerade"),
        );
    }
    if let Some(net) = direct {
        push_line(
            script,
            format_args!("    ct status dnat {family} saddr {net} {family} daddr {net} masquerade"),
        );
    }
    push_line(script, format_args!("  }}\n}}"));
}

fn dnat(family: &str, port: &PortView, targets: &[&(IpAddr, u16)]) -> String {
    let _ = port;
    if let [(ip, port)] = targets {
        return format!("dnat to {}", dnat_target(family, *ip, *port));
    }
    let mut map = String::new();
    for (index, (ip, port)) in targets.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let _never_fails = write!(map, "{comma}{index} : {ip} . {port}");
    }
    format!(
        "dnat {family} to numgen random mod {} map {{ {map} }}",
        targets.len()
    )
}

fn dnat_target(family: &str, ip: IpAddr, port: u16) -> String {
    if family == "ip" {
        format!("{ip}:{port}")
    } else {
        format!("[{ip}]:{port}")
    }
}

fn push_line(script: &mut String, line: std::fmt::Arguments<'_>) {
    let _never_fails = writeln!(script, "{line}");
}

/// Loads an nftables script in a node's network namespace.
pub(crate) async fn load(node: &Node, script: &str) -> io::Result<()> {
    let mut command = tokio::process::Command::new("nft");
    command
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = node.host.run(|| command.spawn())??;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes()).await?;
    }
    let output = child.wait_with_output().await?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(
        String::from_utf8_lossy(&output.stderr).into_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(targets: &[&str]) -> ServiceView {
        let targets = targets
            .iter()
            .map(|ip| (ip.parse().unwrap(), 8080))
            .collect();
        ServiceView {
            namespace: "shop".into(),
            name: "web".into(),
            ips: vec![
                "10.96.1.0".parse().unwrap(),
                "fd00:10:96::100".parse().unwrap(),
            ],
            ports: vec![PortView {
                name: "http".into(),
                port: 80,
                is_udp: false,
                targets,
            }],
            endpoints: Vec::new(),
        }
    }

    #[test]
    fn one_endpoint_several_and_none() {
        let script = render_nft_script(&[view(&["10.244.1.2"])], &[]);
        assert!(script.contains("ip daddr 10.96.1.0 tcp dport 80 dnat to 10.244.1.2:8080"));
        assert!(script.contains("ip6 daddr fd00:10:96::100 tcp dport 80 reject with tcp reset"));
        let script = render_nft_script(
            &[view(&["10.244.1.2", "10.244.2.2"])],
            &["10.244.1.0/24".parse().unwrap()],
        );
        assert!(script.contains(
            "dnat ip to numgen random mod 2 map { 0 : 10.244.1.2 . 8080, 1 : 10.244.2.2 . 8080 }"
        ));
        let masquerade = "ct status dnat ip saddr 10.244.1.0/24 ip daddr 10.244.1.0/24 masquerade";
        assert!(script.contains(masquerade));
    }
}
