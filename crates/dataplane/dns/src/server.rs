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
    lookup::{Family, Found},
    question::Question,
    relay::Relay,
    settings::{Egress, Limits},
    transport::Transport,
    upstream::{self, RelayError},
};

/// Result of resolving a name in the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// The mesh has the name, with these addresses.
    Found(Found),
    /// The mesh does not have the name.
    Unknown,
    /// The initial mesh state has not been received, so the name may belong to the mesh.
    NotYet,
}

/// Outcome of a DNS query.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// The mesh answered the query.
    Answered(&'a Found),
    /// Response code of a forwarded query, and its latency.
    Relayed(ResponseCode, Duration),
    /// The query could not be forwarded, or got no response.
    Failed(&'a RelayError),
    /// The initial mesh state was not received in time.
    NotYet,
}

/// DNS query with its outcome.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// Query of the client.
    pub question: &'a Question,
    /// Transport of the query.
    pub transport: Transport,
    /// Outcome of the query.
    pub outcome: Outcome<'a>,
}

/// Interface of the proxy that embeds the DNS server.
pub trait Host: Send + Sync + 'static {
    /// Resolves a name in the mesh, given in lower case without the final dot.
    fn look_up(&self, name: &str, family: Family) -> Known;
    /// Waits until the initial mesh state has been received, at most as long as clients can wait; returns whether it
    /// has.
    fn mesh_known(&self) -> impl Future<Output = bool> + Send;
    /// Whether this process serves queries, and not another one that shares the sockets during a hand-over.
    fn has_turn(&self) -> bool;
    /// Waits until [`Self::has_turn`] is true.
    fn turn(&self) -> impl Future<Output = ()> + Send;
    /// Reports a query with its outcome.
    fn report(&self, report: &Report<'_>);
}

/// DNS server of one pod, shared by the tasks that serve it.
#[derive(Debug)]
pub struct Server<H> {
    pub(crate) host: H,
    pub(crate) egress: Egress,
    pub(crate) limits: Limits,
    pub(crate) connections: Semaphore,
    relayed: Semaphore,
}

/// First result of handling a query.
#[derive(Debug)]
pub(crate) enum Step {
    /// Answer to send to the client.
    Answer(Vec<u8>),
    /// The response needs the upstream server or the mesh state first.
    Pending(Pending),
}

/// Reason why a query cannot be answered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// The mesh does not have the name: the query must be forwarded.
    Relay,
    /// The initial mesh state has not been received.
    Wait,
}

impl<H: Host> Server<H> {
    /// Creates a server whose upstream sockets `egress` describes.
    pub fn new(host: H, egress: Egress, limits: Limits) -> Self {
        Self {
            host,
            egress,
            limits,
            connections: Semaphore::new(limits.connections),
            relayed: Semaphore::new(limits.relayed),
        }
    }

    /// Answers a query if that needs no waiting.
    pub(crate) fn begin(&self, question: &Question, transport: Transport) -> Step {
        let (Some(family), Some(host)) = (question.family(), question.host()) else {
            return Step::Pending(Pending::Relay);
        };
        match self.host.look_up(&host, family) {
            Known::Found(found) => Step::Answer(self.answer(question, &found, transport)),
            Known::Unknown => Step::Pending(Pending::Relay),
            Known::NotYet => Step::Pending(Pending::Wait),
        }
    }

    /// Takes a permit for one more waiting query; `None` at the limit.
    pub(crate) fn room(&self) -> Option<SemaphorePermit<'_>> {
        self.relayed.try_acquire().ok()
    }

    /// Refuses a query that exceeds the limit of waiting queries.
    pub(crate) fn refuse(&self, question: &Question, transport: Transport) -> Vec<u8> {
        self.failed(question, transport, &RelayError::TooMany)
    }

    /// Completes a query that could not be answered at once. `resolver` is the address that the client sent the query
    /// to.
    pub(crate) async fn finish(
        &self,
        question: &Question,
        transport: Transport,
        later: Pending,
        resolver: Option<SocketAddr>,
    ) -> Vec<u8> {
        if later == Pending::Wait {
            let known = self.host.mesh_known().await;
            match self.begin(question, transport) {
                Step::Answer(answer) => return answer,
                Step::Pending(Pending::Relay) if known => {}
                Step::Pending(_) => {
                    self.report(question, transport, Outcome::NotYet);
                    return question.refusal(ResponseCode::ServFail);
                }
            }
        }
        let relay = Relay::new(question, rand::random());
        let began = Instant::now();
        match upstream::exchange(&self.egress, &self.limits, resolver, &relay, transport).await {
            Ok((answer, code)) => {
                let outcome = Outcome::Relayed(code, began.elapsed());
                self.report(question, transport, outcome);
                answer
            }
            Err(error) => self.failed(question, transport, &error),
        }
    }

    fn answer(&self, question: &Question, found: &Found, transport: Transport) -> Vec<u8> {
        self.report(question, transport, Outcome::Answered(found));
        answer::encode(question, found, transport, &mut rand::rng())
    }

    fn failed(&self, question: &Question, transport: Transport, error: &RelayError) -> Vec<u8> {
        self.report(question, transport, Outcome::Failed(error));
        question.refusal(ResponseCode::ServFail)
    }

    fn report(&self, question: &Question, transport: Transport, outcome: Outcome<'_>) {
        self.host.report(&Report {
            question,
            transport,
            outcome,
        });
    }
}

#[cfg(test)]
pub(crate) mod fake;
