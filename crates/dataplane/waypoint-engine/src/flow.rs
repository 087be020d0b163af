//! Flow events of requests and connections at the waypoint.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ambit_flow::{Flow, FlowEventKind, Peer, ReporterKind, ServiceName, Transport};
use ambit_model::Service;
use ambit_proxy::flow;
use ambit_route::WorkloadRef;

use crate::{session::Session, target::Target};

/// Upstream of a request or connection for flow events, as far as it was resolved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowUpstream<'a> {
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) workload: Option<&'a WorkloadRef>,
    pub(crate) service: Option<&'a Arc<Service>>,
}

/// Sends a flow event to the readers of flow events, if there are any. `complete` sets the fields that only events of
/// this kind have.
pub(crate) fn report(
    session: &Session,
    event: FlowEventKind,
    server: FlowUpstream<'_>,
    complete: impl FnOnce(&mut Flow),
) {
    let flows = session.shard.waypoint.metrics.flows();
    if !flows.has_readers() {
        return;
    }
    let reporter = flow::reporter(flows.proxy_identity(), ReporterKind::Waypoint);
    let service = server.service.or_else(|| session.target.service_record());
    let gateway = &session.shard.waypoint.config.gateway;
    let mut event = Flow {
        connection: session.tunnel_id(),
        source: source(session),
        destination: destination(session, server),
        service: service.map(|service| ServiceName {
            name: service.name.to_string(),
            namespace: service.namespace.to_string(),
            hostname: service.hostname.to_string(),
        }),
        transport: match session.caller.identity {
            Some(_) => Transport::Hbone,
            None => Transport::Plaintext,
        },
        waypoint: Some(format!("{}/{}", gateway.namespace, gateway.name)),
        ..flow::new_flow(event, reporter)
    };
    complete(&mut event);
    flows.report(event);
}

/// Sets the byte counts and the duration of a flow event.
pub(crate) fn set_measurements(event: &mut Flow, received: u64, sent: u64, duration: Duration) {
    event.bytes_to_server = received;
    event.bytes_to_client = sent;
    event.duration_ms = flow::milliseconds(duration);
}

/// Returns the source of a flow event: the workload at the caller's address, if it has the caller's verified identity;
/// otherwise only the identity and the address.
fn source(session: &Session) -> Peer {
    let (waypoint, caller) = (&session.shard.waypoint, &session.caller);
    let table = waypoint.state.table();
    let found = table.workload_by_ip(&waypoint.config.network, caller.address.ip());
    let identity = caller.identity.as_ref();
    let found = found
        .filter(|workload| identity.is_none_or(|identity| workload.has_identity(identity)))
        .map(|workload| flow::peer(&workload.to_model(), identity));
    let unknown = || Peer {
        namespace: identity.map(|identity| identity.namespace.to_string()),
        identity: identity.map(ToString::to_string),
        ..Peer::default()
    };
    Peer {
        address: Some(caller.address.to_string()),
        ..found.unwrap_or_else(unknown)
    }
}

fn destination(session: &Session, server: FlowUpstream<'_>) -> Peer {
    let pod = match &session.target {
        Target::Pod { workload, .. } => Some(workload),
        Target::Service { .. } => None,
    };
    let address = server.endpoint.unwrap_or_else(|| session.target.address());
    let workload = server.workload.or(pod);
    Peer {
        address: Some(address.to_string()),
        ..workload
            .map(|workload| flow::peer(&workload.to_model(), None))
            .unwrap_or_default()
    }
}
