//! Tests of namespaces, links, addresses and routes in the kernel.

use std::net::{TcpListener, TcpStream};

use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

#[tokio::test]
async fn hosts_on_a_bridge_connect_over_both_families() {
    let fabric = Host::new("fabric").await.unwrap();
    fabric.add_bridge("br0").await.unwrap();
    let mut hosts = Vec::new();
    for i in 1..=2 {
        let host = Host::new(format!("host-{i}")).await.unwrap();
        let port = format!("port{i}");
        fabric.add_veth(&port, &host, "eth0").await.unwrap();
        fabric.attach_to_bridge(&port, "br0").await.unwrap();
        fabric.bring_up(&port).await.unwrap();
        host.bring_up("eth0").await.unwrap();
        host.add_address("eth0", net(&format!("10.9.0.{i}/24")))
            .await
            .unwrap();
        host.add_address("eth0", net(&format!("fd09::{i}/64")))
            .await
            .unwrap();
        hosts.push(host);
    }
    for address in ["10.9.0.2:80", "[fd09::2]:80"] {
        let address: std::net::SocketAddr = address.parse().unwrap();
        let listener = hosts[1]
            .run(|| TcpListener::bind(address))
            .unwrap()
            .unwrap();
        let client = hosts[0]
            .run(|| TcpStream::connect(address))
            .unwrap()
            .unwrap();
        let (_, from) = listener.accept().unwrap();
        assert_eq!(from, client.local_addr().unwrap());
    }
}

#[tokio::test]
async fn bridge_keeps_its_hardware_address_when_ports_come_and_go() {
    let host = Host::new("node").await.unwrap();
    host.add_bridge("br0").await.unwrap();
    let before = hardware_address(&host, "br0").await;
    let message = LinkVeth::new("low", "peer").build();
    host.netlink.link().add(message).execute().await.unwrap();
    let index = host.link_index("low").await.unwrap();
    let lowest = vec![0x02, 0, 0, 0, 0, 1];
    let message = LinkUnspec::new_with_index(index).address(lowest).build();
    host.netlink.link().set(message).execute().await.unwrap();
    host.attach_to_bridge("low", "br0").await.unwrap();
    host.bring_up("low").await.unwrap();
    assert_eq!(hardware_address(&host, "br0").await, before);
    host.remove_link("low").await.unwrap();
    assert_eq!(hardware_address(&host, "br0").await, before);
}

async fn hardware_address(host: &Host, link: &str) -> Vec<u8> {
    let mut links = host
        .netlink
        .link()
        .get()
        .match_name(link.to_owned())
        .execute();
    let link = links.try_next().await.unwrap().unwrap();
    let address = |attribute: &LinkAttribute| match attribute {
        LinkAttribute::Address(address) => Some(address.clone()),
        _ => None,
    };
    link.attributes.iter().find_map(address).unwrap()
}

#[tokio::test]
async fn route_goes_through_a_gateway() {
    let (a, router, b) = (
        Host::new("a").await.unwrap(),
        Host::new("router").await.unwrap(),
        Host::new("b").await.unwrap(),
    );
    router.sysctl("net.ipv4.ip_forward", "1").unwrap();
    for (host, link, address, gateway) in [
        (&a, "to-a", "10.1.0.2/24", "10.1.0.1/24"),
        (&b, "to-b", "10.2.0.2/24", "10.2.0.1/24"),
    ] {
        router.add_veth(link, host, "eth0").await.unwrap();
        router.add_address(link, net(gateway)).await.unwrap();
        router.bring_up(link).await.unwrap();
        host.add_address("eth0", net(address)).await.unwrap();
        host.bring_up("eth0").await.unwrap();
        host.add_route(net("0.0.0.0/0"), Some(net(gateway).addr()), "eth0")
            .await
            .unwrap();
    }
    let listener = b.run(|| TcpListener::bind("10.2.0.2:80")).unwrap().unwrap();
    a.run(|| TcpStream::connect("10.2.0.2:80"))
        .unwrap()
        .unwrap();
    assert_eq!(listener.accept().unwrap().1.ip().to_string(), "10.1.0.2");
}

#[tokio::test]
async fn an_error_names_host_and_interface() {
    let host = Host::new("pod-a").await.unwrap();
    let error = host.bring_up("eth7").await.unwrap_err();
    assert_eq!(error.to_string(), "pod-a: cannot use interface eth7");
    assert_eq!(host.find_link("eth7").await.unwrap(), None);
    assert_eq!(host.links().await.unwrap(), ["lo"]);
}
