//! Traffic that the demonstration's packet capture saw between the nodes.

use std::net::IpAddr;

use ambit_lab::{FlowKind, FlowReport, Status};

use super::pods::deployment_name;
use crate::{
    CliError,
    output::{format_table, print_line},
};

/// Prints the captured flows between pods, and returns a fault for each plaintext flow between two pods of the mesh.
pub(super) fn print_captured_flows(
    status: &Status,
    reports: &[FlowReport],
) -> Result<Vec<String>, CliError> {
    let owner = |ip: IpAddr| status.pods.iter().find(|pod| pod.ips.contains(&ip));
    let mut rows = Vec::new();
    let mut faults = Vec::new();
    let (mut sealed, mut clear) = (0, 0);
    for flow in reports {
        let (Some(client), Some(server)) = (owner(flow.client), owner(flow.server.ip())) else {
            continue;
        };
        let both = client.captured && server.captured;
        match flow.kind {
            FlowKind::Hbone => sealed += flow.bytes,
            FlowKind::Plaintext => clear += flow.markers,
            FlowKind::Tls | FlowKind::Empty | FlowKind::Udp => {}
        }
        if both && (flow.kind != FlowKind::Hbone || flow.markers > 0) && flow.bytes > 0 {
            faults.push(format!("{} -> {} was readable", client.name, server.name));
        }
        rows.push(vec![
            deployment_name(client),
            format!("{}:{}", deployment_name(server), flow.server.port()),
            match flow.kind {
                FlowKind::Hbone => "TLS records only",
                FlowKind::Tls => "TLS",
                FlowKind::Plaintext => "plaintext",
                FlowKind::Empty => "no data",
                FlowKind::Udp => "UDP",
            }
            .to_owned(),
            flow.connections.to_string(),
            flow.bytes.to_string(),
            flow.markers.to_string(),
        ]);
    }
    let header = [
        "FROM",
        "TO",
        "WHAT",
        "CONNECTIONS",
        "BYTES",
        "REQUESTS READABLE",
    ];
    print_line(&format_table(&header, rows))?;
    let contrast = match clear {
        0 => "no plaintext carried a request".to_owned(),
        count => format!("{count} requests from or to pods outside were readable"),
    };
    print_line(&format!(
        "\n{sealed} bytes between captured pods, all of them TLS on port 15008; {contrast}."
    ))?;
    if sealed == 0 {
        faults.push("the capture saw no tunnel at all".to_owned());
    }
    Ok(faults)
}
