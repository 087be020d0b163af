//! Answers the DNS queries of one captured pod.
//!
//! One worker serves all of a pod's queries: they are few, and this needs the fewest sockets.

use std::{
    io,
    sync::{Arc, Weak},
};

use ambit_dns::{
    Client, Egress, Family, Found, Host, Known, Limits, Outcome, Report, Server, look_up,
    system_servers,
};
use ambit_model::ArcStr;
use ambit_proxy::{Accepted, SharedState, report::chain};
use ambit_telemetry::{ArcString, DnsLabels};

use crate::{
    config::Config,
    pod::{DnsSockets, Pod},
    shard::Shard,
};

impl DnsSockets {
    /// Serves the UDP sockets on the current worker until the pod drains. Returns the DNS server, and the TCP listeners
    /// for it.
    pub(crate) fn serve(
        self,
        pod: &Arc<Pod>,
    ) -> io::Result<(Arc<PodDns>, Vec<tokio::net::TcpListener>)> {
        let egress = Egress {
            netns: Some(pod.netns.clone()),
            mark: pod.config.packet_mark,
            fallback: system_servers(),
        };
        let host = PodQueries(Arc::downgrade(pod));
        let server = Arc::new(Server::new(host, egress, Limits::default()));
        for socket in self.udp {
            let socket = tokio::net::UdpSocket::from_std(socket)?;
            let serve = ambit_dns::serve_datagrams(socket, server.clone(), pod.drain_watcher());
            ambit_rt::spawn_essential("dns questions", serve);
        }
        let listeners = self.tcp.into_iter();
        let listeners = listeners.map(tokio::net::TcpListener::from_std);
        Ok((server, listeners.collect::<io::Result<_>>()?))
    }
}

/// DNS server for the captured queries of one pod.
pub(crate) type PodDns = Server<PodQueries>;

/// Serves DNS queries on one connection until the pod's connections are closed.
pub(crate) async fn connection(shard: Arc<Shard>, accepted: Accepted, server: Arc<PodDns>) {
    let mut drain = shard.pod.drain_watcher();
    tokio::select! {
        () = ambit_dns::serve_connection(accepted.stream, &server) => {}
        () = drain.cut() => {}
    }
}

/// Looks up a mesh name for pods of a namespace.
pub(crate) fn find(
    config: &Config,
    state: &SharedState,
    namespace: &str,
    (name, family): (&str, Family),
) -> Option<Found> {
    let client = Client {
        namespace,
        network: &config.network,
        cluster_id: &config.cluster_id,
        domain: &config.cluster_domain,
    };
    let mut found = look_up(&state.table(), &client, name, family)?;
    if family == Family::V6 && !config.ipv6_enabled {
        found.addresses.clear();
    }
    Some(found)
}

/// Resolver of a pod's queries in the mesh. Holds no strong reference, since sockets may be served a little longer than
/// the pod.
#[derive(Debug)]
pub(crate) struct PodQueries(Weak<Pod>);

impl Host for PodQueries {
    fn look_up(&self, name: &str, family: Family) -> Known {
        let Some(pod) = self.0.upgrade() else {
            return Known::Unknown;
        };
        let (config, state) = (&pod.config, &pod.state);
        if !config.dns_proxy {
            return Known::Unknown;
        }
        if !state.addresses_known() {
            return Known::NotYet;
        }
        let namespace = &pod.name().namespace;
        let found = find(config, state, namespace, (name, family));
        found.map_or(Known::Unknown, Known::Found)
    }

    async fn mesh_known(&self) -> bool {
        let Some(pod) = self.0.upgrade() else {
            return false;
        };
        // Clients usually give up after five seconds.
        let deadline = tokio::time::Instant::now() + Limits::default().total;
        pod.state.wait_for_addresses(deadline).await
    }

    fn has_turn(&self) -> bool {
        self.0.upgrade().is_none_or(|pod| pod.gate.is_open())
    }

    async fn turn(&self) {
        if let Some(pod) = self.0.upgrade() {
            let mut gate = pod.gate.clone();
            drop(pod);
            gate.opened().await;
        }
    }

    fn report(&self, report: &Report<'_>) {
        if let Some(pod) = self.0.upgrade() {
            count(&pod, report);
            log(&pod, report);
        }
    }
}

fn count(pod: &Pod, report: &Report<'_>) {
    let local = pod.local.now(None);
    let known = |text: &ArcStr| {
        ArcString(if text.is_empty() {
            arcstr::literal!("unknown")
        } else {
            text.clone()
        })
    };
    let labels = DnsLabels {
        request_query_type: ArcString(kind(report)),
        request_protocol: ArcString(report.transport.as_str().into()),
        source_canonical_service: known(&local.workload.canonical_name),
        source_canonical_revision: known(&local.workload.canonical_revision),
    };
    let metrics = &pod.metrics;
    metrics.dns_request(&labels);
    match report.outcome {
        Outcome::Relayed(_, after) => metrics.dns_forwarded(&labels, Some(after.as_secs_f64())),
        Outcome::Failed(_) => metrics.dns_forwarded(&labels, None),
        Outcome::Answered(_) | Outcome::NotYet => {}
    }
}

/// Returns the query's type as a metric label. A client may query any of 65,536 types, so all types without a name
/// share one label.
fn kind(report: &Report<'_>) -> ArcStr {
    match report.question.kind_name() {
        Some("A") => arcstr::literal!("A"),
        Some("AAAA") => arcstr::literal!("AAAA"),
        Some(name) => name.into(),
        None => arcstr::literal!("unknown"),
    }
}

fn log(pod: &Pod, report: &Report<'_>) {
    if !tracing::enabled!(target: "dns", tracing::Level::DEBUG) {
        return;
    }
    let (result, endpoints, domain) = match report.outcome {
        Outcome::Answered(found) => (
            "success".to_owned(),
            Some(found.addresses.len()),
            &*found.host,
        ),
        Outcome::Relayed(code, _) => (code.to_string(), None, ""),
        Outcome::Failed(error) => (chain(error), None, ""),
        Outcome::NotYet => ("the mesh is not known yet".to_owned(), None, ""),
    };
    tracing::event!(
        target: "dns",
        tracing::Level::DEBUG,
        src.workload = pod.name().name.as_str(),
        src.namespace = pod.name().namespace.as_str(),
        query = report.question.kind_name().unwrap_or("unknown"),
        domain = %report.question.name(),
        host = Some(domain).filter(|host| !host.is_empty()),
        result,
        endpoints,
        "dns query"
    );
}
