//! Kubernetes probes of containers, over the network from the node's namespace, as kubelet sends them.

use std::{io, net::SocketAddr, time::Duration};

use k8s_openapi::{
    api::core::v1::{HTTPGetAction, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::{
    cluster::{PodPlan, container_port},
    fabric::Node,
};

/// Intervals and thresholds of a probe, with Kubernetes' defaults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeTiming {
    pub(crate) initial_delay: Duration,
    pub(crate) period: Duration,
    pub(crate) timeout: Duration,
    pub(crate) success_threshold: u32,
    pub(crate) failure_threshold: u32,
}

impl ProbeTiming {
    pub(crate) fn from_probe(probe: &Probe) -> Self {
        let seconds = |value: Option<i32>, default: u32| {
            let value = value.and_then(|value| u32::try_from(value).ok());
            Duration::from_secs(value.unwrap_or(default).into())
        };
        let count = |value: Option<i32>, default: u32| {
            value
                .and_then(|value| u32::try_from(value).ok())
                .unwrap_or(default)
                .max(1)
        };
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10).max(Duration::from_secs(1)),
            timeout: seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1)),
            success_threshold: count(probe.success_threshold, 1),
            failure_threshold: count(probe.failure_threshold, 3),
        }
    }
}

/// Probes once over the network; returns `None` for an `exec` probe, whose command the caller runs.
pub(crate) async fn probe_over_network(
    probe: &Probe,
    node: &Node,
    plan: &PodPlan,
    ip: std::net::IpAddr,
) -> Option<io::Result<()>> {
    let address = |port: &IntOrString, host: Option<&str>| {
        let port = container_port(port, plan)
            .ok_or_else(|| io::Error::other("the probe names an unknown port"))?;
        let ip = match host.filter(|host| !host.is_empty()) {
            Some(host) => host.parse().map_err(io::Error::other)?,
            None => ip,
        };
        Ok::<_, io::Error>(SocketAddr::new(ip, port))
    };
    let timeout = ProbeTiming::from_probe(probe).timeout;
    let work = async {
        if let Some(tcp) = &probe.tcp_socket {
            connect(node, address(&tcp.port, tcp.host.as_deref())?)
                .await
                .map(drop)
        } else if let Some(http) = &probe.http_get {
            let to = address(&http.port, http.host.as_deref())?;
            probe_http(connect(node, to).await?, to, http).await
        } else {
            Err(io::Error::other(
                "the lab makes exec, tcpSocket and httpGet probes only",
            ))
        }
    };
    if probe.exec.is_some() {
        return None;
    }
    let done = tokio::time::timeout(timeout, work).await;
    Some(done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())))
}

/// Opens a TCP connection from the node's network namespace, as kubelet does.
async fn connect(node: &Node, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = node.host.run(|| match to {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    })??;
    socket.connect(to).await
}

async fn probe_http(mut stream: TcpStream, to: SocketAddr, http: &HTTPGetAction) -> io::Result<()> {
    let path = http
        .path
        .as_deref()
        .filter(|path| !path.is_empty())
        .unwrap_or("/");
    let mut headers = String::new();
    for header in http.http_headers.as_deref().unwrap_or_default() {
        headers.push_str(&format!("{}: {}\r\n", header.name, header.value));
    }
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: kube-probe/1.34\r\n{headers}\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    let mut buffer = [0_u8; 512];
    while !head.contains(&b'\n') && head.len() < 8192 {
        match stream.read(&mut buffer).await? {
            0 => break,
            length => head.extend_from_slice(buffer.get(..length).unwrap_or_default()),
        }
    }
    let head = String::from_utf8_lossy(&head);
    let status = head
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|code| code.parse::<u16>().ok());
    match status {
        Some(200..=399) => Ok(()),
        Some(code) => Err(io::Error::other(format!("HTTP status {code}"))),
        None => Err(io::Error::other("the answer is no HTTP")),
    }
}
