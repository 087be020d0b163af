//! Answers the DNS queries of one captured pod.
//!
//! One worker serves all of a pod's queries: they are few, and this needs the fewest sockets.

use std::{
    io,
    sync::{Arc, Weak},
};

use ambit_dns::{
    AddressFamily, DnsClient, DnsHost, DnsLimits, MeshLookup, QueryOutcome, QueryReport,
    ResolvedName, Server, UpstreamSocketOptions, resolve_name, system_dns_servers,
};
use ambit_model::ArcStr;
use ambit_proxy::{AcceptedConnection, SharedState, report::format_error_chain};
use ambit_telemetry::{ArcStrLabel, DnsLabels};

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
        let egress = UpstreamSocketOptions {
            netns: Some(pod.netns.clone()),
            packet_mark: pod.config.packet_mark,
            fallback_servers: system_dns_servers(),
        };
        let host = PodQueryResolver(Arc::downgrade(pod));
        let server = Arc::new(Server::new(host, egress, DnsLimits::default()));
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
pub(crate) type PodDns = Server<PodQueryResolver>;

/// Serves DNS queries on one connection until the pod's connections are closed.
pub(crate) async fn serve_connection(
    shard: Arc<Shard>,
    accepted: AcceptedConnection,
    server: Arc<PodDns>,
) {
    let mut drain = shard.pod.drain_watcher();
    tokio::select! {
        () = ambit_dns::serve_connection(accepted.stream, &server) => {}
        () = drain.wait_until_deadline() => {}
    }
}

/// Resolves a mesh name as for pods of the namespace `namespace`.
pub(crate) fn resolve_mesh_name(
    config: &Config,
    state: &SharedState,
    namespace: &str,
    (name, family): (&str, AddressFamily),
) -> Option<ResolvedName> {
    let client = DnsClient {
        namespace,
        network: &config.network,
        cluster_id: &config.cluster_id,
        cluster_domain: &config.cluster_domain,
    };
    let mut found = resolve_name(&state.table(), &client, name, family)?;
    if family == AddressFamily::V6 && !config.ipv6_enabled {
        found.addresses.clear();
    }
    Some(found)
}

/// Resolver of a pod's queries in the mesh. Holds no strong reference, since sockets may be served a little longer than
/// the pod.
#[derive(Debug)]
pub(crate) struct PodQueryResolver(Weak<Pod>);

impl DnsHost for PodQueryResolver {
    fn resolve_in_mesh(&self, name: &str, family: AddressFamily) -> MeshLookup {
        let Some(pod) = self.0.upgrade() else {
            return MeshLookup::NotFound;
        };
        let (config, state) = (&pod.config, &pod.state);
        if !config.dns_proxy {
            return MeshLookup::NotFound;
        }
        if !state.addresses_known() {
            return MeshLookup::MeshStateMissing;
        }
        let namespace = &pod.name().namespace;
        let found = resolve_mesh_name(config, state, namespace, (name, family));
        found.map_or(MeshLookup::NotFound, MeshLookup::Found)
    }

    async fn wait_for_mesh_state(&self) -> bool {
        let Some(pod) = self.0.upgrade() else {
            return false;
        };
        // Clients usually give up after five seconds.
        let deadline = tokio::time::Instant::now() + DnsLimits::default().total_timeout;
        pod.state.wait_for_addresses(deadline).await
    }

    fn is_serving(&self) -> bool {
        self.0.upgrade().is_none_or(|pod| pod.gate.is_open())
    }

    async fn wait_until_serving(&self) {
        if let Some(pod) = self.0.upgrade() {
            let mut gate = pod.gate.clone();
            drop(pod);
            gate.wait_until_open().await;
        }
    }

    fn report(&self, report: &QueryReport<'_>) {
        if let Some(pod) = self.0.upgrade() {
            count_query(&pod, report);
            log_query(&pod, report);
        }
    }
}

fn count_query(pod: &Pod, report: &QueryReport<'_>) {
    let local = pod.local_workload.current_pod(None);
    let known = |text: &ArcStr| {
        ArcStrLabel(if text.is_empty() {
            arcstr::literal!("unknown")
        } else {
            text.clone()
        })
    };
    let labels = DnsLabels {
        request_query_type: ArcStrLabel(query_type(report)),
        request_protocol: ArcStrLabel(report.transport.as_str().into()),
        source_canonical_service: known(&local.workload.canonical_name),
        source_canonical_revision: known(&local.workload.canonical_revision),
    };
    let metrics = &pod.metrics;
    metrics.count_dns_request(&labels);
    match report.outcome {
        QueryOutcome::Relayed(_, after) => {
            metrics.count_dns_forwarded(&labels, Some(after.as_secs_f64()))
        }
        QueryOutcome::Failed(_) => metrics.count_dns_forwarded(&labels, None),
        QueryOutcome::Answered(_) | QueryOutcome::MeshStateMissing => {}
    }
}

/// Returns the query's type as a metric label. A client may query any of 65,536 types, so all types without a name
/// share one label.
fn query_type(report: &QueryReport<'_>) -> ArcStr {
    match report.question.record_type_name() {
        Some("A") => arcstr::literal!("A"),
        Some("AAAA") => arcstr::literal!("AAAA"),
        Some(name) => name.into(),
        None => arcstr::literal!("unknown"),
    }
}

fn log_query(pod: &Pod, report: &QueryReport<'_>) {
    if !tracing::enabled!(target: "dns", tracing::Level::DEBUG) {
        return;
    }
    let (result, endpoints, domain) = match report.outcome {
        QueryOutcome::Answered(found) => (
            "success".to_owned(),
            Some(found.addresses.len()),
            &*found.host,
        ),
        QueryOutcome::Relayed(code, _) => (code.to_string(), None, ""),
        QueryOutcome::Failed(error) => (format_error_chain(error), None, ""),
        QueryOutcome::MeshStateMissing => ("the mesh is not known yet".to_owned(), None, ""),
    };
    tracing::event!(
        target: "dns",
        tracing::Level::DEBUG,
        src.workload = pod.name().name.as_str(),
        src.namespace = pod.name().namespace.as_str(),
        query = report.question.record_type_name().unwrap_or("unknown"),
        domain = %report.question.name(),
        host = Some(domain).filter(|host| !host.is_empty()),
        result,
        endpoints,
        "dns query"
    );
}
