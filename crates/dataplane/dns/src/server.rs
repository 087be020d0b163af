//! One pod's server: what it answers at once, and what it passes on.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
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
    upstream::{self, RelayError},
};

/// How a question came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// In a datagram.
    Udp,
    /// Over a connection.
    Tcp,
}

impl Transport {
    /// For metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// What the mesh knows of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is one of its names.
    Found(Found),
    /// It is none of its names.
    Unknown,
    /// The mesh itself is not known yet: the name may be one of its.
    NotYet,
}

/// What became of a question.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// Answered from the mesh.
    Answered(&'a Found),
    /// Passed on, and answered so after so long.
    Relayed(ResponseCode, Duration),
    /// Passed on in vain.
    Failed(&'a RelayError),
    /// Nobody knows the mesh yet.
    NotYet,
}

/// A question and what became of it.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The question.
    pub question: &'a Question,
    /// How it came.
    pub transport: Transport,
    /// What became of it.
    pub outcome: Outcome<'a>,
}

/// The proxy that the server is part of.
pub trait Host: Send + Sync + 'static {
    /// What the mesh knows of a name, given in lower case and without the final dot.
    fn look_up(&self, name: &str, family: Family) -> Known;
    /// Waits for the mesh to be known, for as long as clients can be made to; whether it is now.
    fn mesh_known(&self) -> impl Future<Output = bool> + Send;
    /// Whether it is for this process to take questions, and not for another that has the same
    /// sockets.
    fn has_turn(&self) -> bool;
    /// Waits until it is.
    fn turn(&self) -> impl Future<Output = ()> + Send;
    /// The addresses that questions come from: the pod's.
    fn clients(&self) -> Vec<IpAddr>;
    /// A question has been dealt with.
    fn report(&self, report: &Report<'_>);
}

/// See the module. Shared by the tasks of one pod.
#[derive(Debug)]
pub struct Server<H> {
    pub(crate) host: H,
    pub(crate) egress: Egress,
    pub(crate) limits: Limits,
    pub(crate) connections: Semaphore,
    relayed: Semaphore,
}

/// What is to be done with a question.
#[derive(Debug)]
pub(crate) enum Step {
    /// This is the answer.
    Answer(Vec<u8>),
    /// It takes time.
    Later(Later),
}

/// Why a question takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Later {
    /// The mesh does not know it.
    Relay,
    /// The mesh is not known.
    Wait,
}

impl<H: Host> Server<H> {
    /// A server whose sockets are `egress`'s.
    pub fn new(host: H, egress: Egress, limits: Limits) -> Self {
        Self {
            host,
            egress,
            limits,
            connections: Semaphore::new(limits.connections),
            relayed: Semaphore::new(limits.relayed),
        }
    }

    /// The first step of a question.
    pub(crate) fn begin(&self, question: &Question, transport: Transport) -> Step {
        let (Some(family), Some(host)) = (question.family(), question.host()) else {
            return Step::Later(Later::Relay);
        };
        match self.host.look_up(&host, family) {
            Known::Found(found) => Step::Answer(self.answer(question, &found, transport)),
            Known::Unknown => Step::Later(Later::Relay),
            Known::NotYet => Step::Later(Later::Wait),
        }
    }

    /// Room for one more question that takes time.
    pub(crate) fn room(&self) -> Option<SemaphorePermit<'_>> {
        self.relayed.try_acquire().ok()
    }

    /// Refuses a question there is no room for.
    pub(crate) fn refuse(&self, question: &Question, transport: Transport) -> Vec<u8> {
        self.failed(question, transport, &RelayError::TooMany)
    }

    /// The further steps, up to the answer. `asked` is the server that the client meant.
    pub(crate) async fn finish(
        &self,
        question: &Question,
        transport: Transport,
        later: Later,
        asked: Option<SocketAddr>,
    ) -> Vec<u8> {
        if later == Later::Wait {
            let known = self.host.mesh_known().await;
            match self.begin(question, transport) {
                Step::Answer(answer) => return answer,
                Step::Later(Later::Relay) if known => {}
                Step::Later(_) => {
                    self.report(question, transport, Outcome::NotYet);
                    return question.refusal(ResponseCode::ServFail);
                }
            }
        }
        let relay = Relay::new(question, rand::random());
        let began = Instant::now();
        match upstream::exchange(&self.egress, &self.limits, asked, &relay, transport).await {
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
