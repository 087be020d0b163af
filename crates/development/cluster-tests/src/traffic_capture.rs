//! Captured traffic of the cluster: between nodes, and between pods of a node.

use std::net::IpAddr;

use ambit_cluster::Cluster;
use ambit_lab::{Capture, FlowKind, FlowReport};
use ambit_sys::netns::Netns;
use k8s_openapi::api::core::v1::Pod;
use rustix::net::{AddressFamily, SocketFlags, SocketType, eth, sockopt};

use crate::pod::addresses;

/// Port of HBONE tunnels.
const HBONE_PORT: u16 = 15008;

/// Packet captures in the network namespace of every node.
#[derive(Debug)]
pub struct TrafficCapture(Vec<Capture>);

impl TrafficCapture {
    pub(crate) fn watch(cluster: &Cluster, markers: &[&str]) -> Self {
        let captures = cluster.nodes().map(|node| {
            let netns = Netns::open(node.netns()).expect("a node's namespace");
            let socket = netns
                .run(|| {
                    rustix::net::socket_with(
                        AddressFamily::PACKET,
                        SocketType::RAW,
                        SocketFlags::CLOEXEC,
                        Some(eth::ALL),
                    )
                })
                .unwrap()
                .expect("root may open packet sockets");
            // A burst between two reads must fit.
            sockopt::set_socket_recv_buffer_size_force(&socket, 1 << 24).unwrap();
            let markers = markers.iter().map(|text| text.as_bytes().to_vec());
            Capture::start(socket, markers.collect()).unwrap()
        });
        Self(captures.collect())
    }

    /// Stops the capture, and returns every flow, once for each node that saw it.
    pub fn finish(self) -> Vec<FlowReport> {
        self.0
            .into_iter()
            .flat_map(|capture| capture.finish().reports())
            .collect()
    }
}

/// Fails if a marker was readable, or if a connection was opened directly to one of the pods at one of the ports,
/// instead of by the tunnel.
#[track_caller]
pub fn assert_nothing_in_plaintext(reports: &[FlowReport], servers: &[&Pod], ports: &[u16]) {
    let addresses = addresses_of(servers);
    for report in reports {
        let opened = addresses.contains(&report.server.ip())
            && ports.contains(&report.server.port())
            && report.connections > 0;
        assert!(report.markers == 0 && !opened, "in plaintext: {report:?}");
    }
}

/// Fails if two captured pods exchanged anything but TLS on the tunnel's port, or exchanged nothing.
#[track_caller]
pub fn assert_only_tls(reports: &[FlowReport], captured: &[&Pod]) {
    if let Err(found) = check_only_tls(reports, captured) {
        panic!("between captured pods: {found}\n{reports:#?}");
    }
}

/// Checks that captured pods communicated only by TLS on the tunnel's port; an error lists the violations.
pub fn check_only_tls(reports: &[FlowReport], captured: &[&Pod]) -> Result<(), String> {
    let addresses = addresses_of(captured);
    let between = reports.iter().filter(|report| {
        addresses.contains(&report.client) && addresses.contains(&report.server.ip())
    });
    let mut tunnelled = 0;
    for report in between {
        // Of an earlier tunnel, only a segment without data may have been captured.
        let tunnel = match report.kind {
            FlowKind::Hbone => true,
            FlowKind::Empty => report.server.port() == HBONE_PORT,
            _ => false,
        };
        if !tunnel || report.clear_bytes > 0 || report.markers > 0 {
            return Err(format!("in plaintext: {report:?}"));
        }
        tunnelled += report.bytes;
    }
    if tunnelled > 0 {
        Ok(())
    } else {
        Err("nothing".to_owned())
    }
}

fn addresses_of(pods: &[&Pod]) -> Vec<IpAddr> {
    pods.iter().flat_map(|pod| addresses(pod)).collect()
}
