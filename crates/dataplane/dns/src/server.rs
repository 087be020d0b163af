//! DNS server of one pod: answers queries for names in the mesh, and forwards the others.

use std::{
    future::Future,
    net::SocketAddr,
    time::{Duration, Instant},
};

use hickory_proto::op::ResponseCode;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    answer,
    lookup::{AddressFamily, ResolvedName},
    question::DnsQuery,
    relay::ForwardedQuery,
    settings::{DnsLimits, UpstreamSocketOptions},
    transport::Transport,
    upstream::{self, RelayError},
};

/// Result of resolving a name in the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeshLookup {
    /// The mesh has the name, with these addresses.
    Found(ResolvedName),
    /// The mesh does not have the name.
    NotFound,
    /// The initial mesh state has not been received, so it is unknown whether the name is in the mesh.
    MeshStateMissing,
}

/// Outcome of a DNS query, for metrics and logs.
#[derive(Clone, Copy, Debug)]
pub enum QueryOutcome<'a> {
    /// The mesh answered the query.
    Answered(&'a ResolvedName),
    /// The query was forwarded; response code, and latency.
    Relayed(ResponseCode, Duration),
    /// The query could not be forwarded, or got no response.
    Failed(&'a RelayError),
    /// The initial mesh state did not arrive while the query waited for it.
    MeshStateMissing,
}

/// DNS query with its outcome, for metrics and logs.
#[derive(Clone, Copy, Debug)]
pub struct QueryReport<'a> {
    /// Query of the client.
    pub question: &'a DnsQuery,
    /// Transport of the query.
    pub transport: Transport,
    /// Outcome of the query.
    pub outcome: QueryOutcome<'a>,
}

/// Interface of the proxy that embeds the DNS server.
pub trait DnsHost: Send + Sync + 'static {
    /// Resolves a name in the mesh, given in lower case without the final dot.
    fn resolve_in_mesh(&self, name: &str, family: AddressFamily) -> MeshLookup;
    /// Waits until the initial mesh state has been received, but not longer than clients wait for a response. Returns
    /// whether it has been received.
    fn wait_for_mesh_state(&self) -> impl Future<Output = bool> + Send;
    /// Whether this process serves the queries. During a hand-over, another process that shares the sockets may serve
    /// them.
    fn is_serving(&self) -> bool;
    /// Waits until [`Self::is_serving`] is true.
    fn wait_until_serving(&self) -> impl Future<Output = ()> + Send;
    /// Records a query with its outcome in metrics and logs.
    fn report(&self, report: &QueryReport<'_>);
}

/// DNS server for the queries of one pod, shared by the tasks that serve its sockets.
#[derive(Debug)]
pub struct Server<H> {
    pub(crate) host: H,
    pub(crate) egress: UpstreamSocketOptions,
    pub(crate) limits: DnsLimits,
    pub(crate) connection_permits: Semaphore,
    query_permits: Semaphore,
}

/// Result of handling a query without waiting.
#[derive(Debug)]
pub(crate) enum QueryStep {
    /// Encoded response to send to the client.
    Answer(Vec<u8>),
    /// The query must wait for the upstream server or for the mesh state.
    Pending(PendingReason),
}

/// Reason why a query cannot be answered immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingReason {
    /// The mesh does not have the name: the query must be forwarded.
    Forward,
    /// The initial mesh state has not been received: the query must wait for it.
    AwaitMeshState,
}

impl<H: DnsHost> Server<H> {
    /// Creates a server that forwards queries from sockets with the options in `egress`.
    pub fn new(host: H, egress: UpstreamSocketOptions, limits: DnsLimits) -> Self {
        Self {
            host,
            egress,
            limits,
            connection_permits: Semaphore::new(limits.max_connections),
            query_permits: Semaphore::new(limits.max_waiting_queries),
        }
    }

    /// Resolves a query in the mesh, and returns the response if no waiting is necessary.
    pub(crate) fn start_query(&self, question: &DnsQuery, transport: Transport) -> QueryStep {
        let (Some(family), Some(host)) = (question.address_family(), question.host_name()) else {
            return QueryStep::Pending(PendingReason::Forward);
        };
        match self.host.resolve_in_mesh(&host, family) {
            MeshLookup::Found(found) => {
                QueryStep::Answer(self.encode_answer(question, &found, transport))
            }
            MeshLookup::NotFound => QueryStep::Pending(PendingReason::Forward),
            MeshLookup::MeshStateMissing => QueryStep::Pending(PendingReason::AwaitMeshState),
        }
    }

    /// Acquires a permit for a query that must wait; `None` if the limit is reached.
    pub(crate) fn try_acquire_query_permit(&self) -> Option<SemaphorePermit<'_>> {
        self.query_permits.try_acquire().ok()
    }

    /// Encodes the error response to a query that exceeds the limit of waiting queries.
    pub(crate) fn refuse_query(&self, question: &DnsQuery, transport: Transport) -> Vec<u8> {
        self.respond_to_relay_error(question, transport, &RelayError::TooManyQueries)
    }

    /// Responds to a query that could not be answered immediately: waits for the mesh state, or forwards the query.
    /// `resolver` is the DNS server that the client addressed.
    pub(crate) async fn complete_query(
        &self,
        question: &DnsQuery,
        transport: Transport,
        later: PendingReason,
        resolver: Option<SocketAddr>,
    ) -> Vec<u8> {
        if later == PendingReason::AwaitMeshState {
            let known = self.host.wait_for_mesh_state().await;
            match self.start_query(question, transport) {
                QueryStep::Answer(answer) => return answer,
                QueryStep::Pending(PendingReason::Forward) if known => {}
                QueryStep::Pending(_) => {
                    self.report(question, transport, QueryOutcome::MeshStateMissing);
                    return question.error_response(ResponseCode::ServFail);
                }
            }
        }
        let relay = ForwardedQuery::new(question, rand::random());
        let began = Instant::now();
        match upstream::exchange_with_servers(
            &self.egress,
            &self.limits,
            resolver,
            &relay,
            transport,
        )
        .await
        {
            Ok((answer, code)) => {
                let outcome = QueryOutcome::Relayed(code, began.elapsed());
                self.report(question, transport, outcome);
                answer
            }
            Err(error) => self.respond_to_relay_error(question, transport, &error),
        }
    }

    fn encode_answer(
        &self,
        question: &DnsQuery,
        found: &ResolvedName,
        transport: Transport,
    ) -> Vec<u8> {
        self.report(question, transport, QueryOutcome::Answered(found));
        answer::encode_response(question, found, transport, &mut rand::rng())
    }

    fn respond_to_relay_error(
        &self,
        question: &DnsQuery,
        transport: Transport,
        error: &RelayError,
    ) -> Vec<u8> {
        self.report(question, transport, QueryOutcome::Failed(error));
        question.error_response(ResponseCode::ServFail)
    }

    fn report(&self, question: &DnsQuery, transport: Transport, outcome: QueryOutcome<'_>) {
        self.host.report(&QueryReport {
            question,
            transport,
            outcome,
        });
    }
}

#[cfg(test)]
pub(crate) mod fake;
