//! Run loop of the xDS client: one stream at a time, on-demand requests on it, backoff between streams.

use std::{
    collections::HashMap,
    error::Error as _,
    pin::pin,
    time::{Duration, Instant},
};

use ambit_control_channel::{CallHeaders, CallHeadersError};
use ambit_model::ArcStr;
use ambit_rt::ErrorChain;
use ambit_wire::discovery::{DeltaDiscoveryRequest, Node, Status as RpcStatus};
use ambit_xds_core::{Client as Machine, Effect, Ending, Request};
use rand::Rng as _;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, metadata::MetadataMap, transport::Channel};

use crate::{
    Cached, Handler, NotUnderstoodPolicies, Role,
    intake::{self, Intake, take_in},
    role::ADDRESSES,
    stream::{self, Responses},
};

/// Maximum number of queued requests on a stream.
const MAX_QUEUED_REQUESTS: usize = 64;
/// Maximum names that connections wait for: connections to unknown addresses must not use unbounded memory while the
/// control plane is unavailable.
const MAX_WAITED_NAMES: usize = 4096;

/// Interval between log lines about an unreachable control plane.
const REPORT_UNREACHABLE: Duration = Duration::from_secs(15);

/// Connection, subscriptions and node identification of the xDS client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Channel to the control plane, which connects whenever a stream is opened.
    pub channel: Channel,
    /// Address of the control plane, for logs.
    pub address: String,
    /// Metadata of the stream: token, cluster and `XDS_HEADER_*`.
    pub headers: CallHeaders,
    /// Program that the client belongs to, which determines the resource types.
    pub role: Role,
    /// Node message that identifies the client to the control plane.
    pub node: Node,
    /// Whether WDS records are subscribed to by name when they are needed (`XDS_ON_DEMAND`).
    pub on_demand: bool,
    /// Decision about policies that cannot be decoded in full.
    pub not_understood: NotUnderstoodPolicies,
}

impl ClientOptions {
    fn intake(&self) -> Intake {
        Intake {
            role: self.role,
            not_understood: self.not_understood,
        }
    }
}

/// On-demand request for a WDS record.
#[derive(Debug)]
pub struct AddressDemand {
    /// Name of the record: `network/ip`, a workload's uid or `namespace/hostname`.
    pub name: String,
    /// Sender that is completed when the handler has applied the response, whether or not the record exists.
    pub done: oneshot::Sender<()>,
}

/// xDS client of the control plane.
#[derive(Debug)]
pub struct Client<H> {
    options: ClientOptions,
    handler: H,
    demands: Option<mpsc::Receiver<AddressDemand>>,
    machine: Machine,
    waiters: HashMap<ArcStr, Vec<oneshot::Sender<()>>>,
}

/// Error with which a stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("no credentials for the call")]
    Headers(#[from] CallHeadersError),
    #[error("cannot connect")]
    Connect(#[source] Status),
    #[error("the stream was ended")]
    Stream(#[from] Status),
    #[error("the stream was closed by the server")]
    Closed,
}

impl StreamError {
    fn ending(&self) -> Ending {
        match self {
            Self::Headers(_) | Self::Connect(_) => Ending::ConnectFailed,
            Self::Stream(status) if is_transient(status) => Ending::Transient,
            Self::Stream(_) => Ending::Refused,
            Self::Closed => Ending::Closed,
        }
    }
}

/// Whether a gRPC status only means that the server or the connection was shut down in an ordinary way.
fn is_transient(status: &Status) -> bool {
    let message = status.message();
    match status.code() {
        Code::Unknown | Code::Cancelled | Code::DeadlineExceeded => true,
        Code::Unavailable => {
            message.contains("transport is closing")
                || message.contains("transport closing")
                || message.contains("received prior goaway")
        }
        _ => false,
    }
}

impl<H: Handler> Client<H> {
    /// Creates a client that passes updates to `handler`. `demands` receives on-demand requests.
    pub fn new(
        options: ClientOptions,
        handler: H,
        demands: Option<mpsc::Receiver<AddressDemand>>,
    ) -> Self {
        let machine = Machine::new(options.role.types(options.on_demand));
        Self {
            options,
            handler,
            demands,
            machine,
            waiters: HashMap::new(),
        }
    }

    /// Restores the resources of a type that an earlier client [cached](Handler::cache), before
    /// [`Self::run`]: the control plane then sends only what has changed.
    pub fn restore(&mut self, type_url: &str, cached: impl Iterator<Item = Cached>) {
        let intake = self.options.intake();
        let effects = intake::restore(&mut self.machine, &self.handler, intake, type_url, cached);
        // No server is connected that could receive the effect.
        if effects.contains(&Effect::Ready) {
            self.handler.ready();
        }
    }

    /// Runs until the task is dropped.
    pub async fn run(mut self) {
        let mut next_report = Instant::now();
        loop {
            let error = match self.one_stream().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            let ending = error.ending();
            self.handler.ended(ending);
            let address = self.options.address.as_str();
            let reason = ErrorChain(&error).to_string();
            match ending {
                // Connecting is tried every second, which is not worth a log line each time.
                Ending::ConnectFailed if Instant::now() < next_report => {
                    tracing::debug!(address, reason, "control plane connection failed");
                }
                Ending::ConnectFailed | Ending::Refused => {
                    next_report = Instant::now() + REPORT_UNREACHABLE;
                    tracing::warn!(address, reason, "control plane connection failed");
                }
                Ending::Transient | Ending::Closed => {
                    tracing::info!(address, reason, "control plane connection ended");
                }
            }
            for effect in self.machine.on_disconnected(ending) {
                if let Effect::Connect { after } = effect {
                    self.pause(after).await;
                }
            }
        }
    }

    /// Waits for the backoff, still accepting on-demand requests for the next stream. The delay is randomized, so
    /// that clients do not reconnect all at once.
    async fn pause(&mut self, after: Duration) {
        let spread = rand::rng().random_range(0.8..1.2);
        let mut sleep = pin!(tokio::time::sleep(after.mul_f64(spread)));
        loop {
            tokio::select! {
                () = &mut sleep => return,
                demand = next(&mut self.demands) => {
                    // Nothing is sent while disconnected.
                    self.on_demand(demand, None).await;
                }
            }
        }
    }

    /// Opens a stream, and serves it until it ends.
    async fn one_stream(&mut self) -> Result<std::convert::Infallible, StreamError> {
        let (requests, outgoing) = mpsc::channel(MAX_QUEUED_REQUESTS);
        let mut metadata = MetadataMap::new();
        self.options.headers.apply(&mut metadata).await?;
        let effects = self.machine.on_connected();
        let mut stream = {
            let channel = self.options.channel.clone();
            let mut open = pin!(stream::open(
                channel,
                metadata,
                ReceiverStream::new(outgoing)
            ));
            // Servers answer the opening of a stream only with their first message, so the first requests
            // are sent while it is being opened.
            let mut effects = Some(effects);
            loop {
                tokio::select! {
                    biased;
                    opened = &mut open => break opened.map_err(opening_failed)?,
                    () = async {}, if effects.is_some() => {
                        let effects = effects.take().unwrap_or_default();
                        self.carry_out(effects, Some(&requests)).await;
                    }
                    demand = next(&mut self.demands) => {
                        self.on_demand(demand, Some(&requests)).await;
                    }
                }
            }
        };
        tracing::info!(
            address = self.options.address,
            "connected to the control plane"
        );
        self.serve(&mut stream, &requests).await
    }

    async fn serve(
        &mut self,
        stream: &mut Responses,
        requests: &mpsc::Sender<DeltaDiscoveryRequest>,
    ) -> Result<std::convert::Infallible, StreamError> {
        loop {
            tokio::select! {
                message = stream.next() => {
                    let response = message?.ok_or(StreamError::Closed)?;
                    let bytes = prost::Message::encoded_len(&response);
                    self.handler.received(&response.type_url, bytes);
                    let intake = self.options.intake();
                    let effects =
                        take_in(&mut self.machine, &self.handler, intake, response).await;
                    self.carry_out(effects, Some(requests)).await;
                }
                demand = next(&mut self.demands) => {
                    self.on_demand(demand, Some(requests)).await;
                }
            }
        }
    }

    async fn on_demand(
        &mut self,
        AddressDemand { name, done }: AddressDemand,
        requests: Option<&mpsc::Sender<DeltaDiscoveryRequest>>,
    ) {
        if self.waiters.len() >= MAX_WAITED_NAMES {
            self.withdraw_unwaited();
            if self.waiters.len() >= MAX_WAITED_NAMES {
                // Dropping `done` reports to the caller that there is no answer.
                return;
            }
        }
        let waiters = self.waiters.entry(name.as_str().into()).or_default();
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(done);
        let effects = self.machine.on_demand(ADDRESSES, &name, Instant::now());
        self.carry_out(effects, requests).await;
    }

    fn withdraw_unwaited(&mut self) {
        let machine = &mut self.machine;
        self.waiters.retain(|name, waiters| {
            waiters.retain(|waiter| !waiter.is_closed());
            if waiters.is_empty() {
                machine.withdraw(ADDRESSES, name);
            }
            !waiters.is_empty()
        });
    }

    async fn carry_out(
        &mut self,
        effects: Vec<Effect>,
        requests: Option<&mpsc::Sender<DeltaDiscoveryRequest>>,
    ) {
        for effect in effects {
            match effect {
                Effect::Send(request) => {
                    let Some(requests) = requests else { continue };
                    // A closed channel means that the stream is ending, which is handled elsewhere.
                    if requests
                        .send(to_wire(request, &self.options.node))
                        .await
                        .is_err()
                    {
                        return;
                    }
                }
                Effect::Answered { name, .. } => {
                    for waiter in self.waiters.remove(&name).unwrap_or_default() {
                        // A caller may no longer be waiting.
                        waiter.send(()).ok();
                    }
                }
                Effect::Ready => self.handler.ready(),
                Effect::Connect { .. } => {}
            }
        }
    }
}

/// Returns the next on-demand request; never completes if no more can arrive.
async fn next(demands: &mut Option<mpsc::Receiver<AddressDemand>>) -> AddressDemand {
    if let Some(receiver) = demands {
        if let Some(demand) = receiver.recv().await {
            return demand;
        }
        *demands = None;
    }
    std::future::pending().await
}

/// Converts the error of opening a stream. An error status from the server, unlike a failed connection, has no local
/// cause.
fn opening_failed(status: Status) -> StreamError {
    match status.source().is_some() {
        true => StreamError::Connect(status),
        false => StreamError::Stream(status),
    }
}

fn to_wire(request: Request, node: &Node) -> DeltaDiscoveryRequest {
    let names = |names: Vec<ArcStr>| names.iter().map(ToString::to_string).collect();
    DeltaDiscoveryRequest {
        node: request.is_first.then(|| node.clone()),
        type_url: request.type_url.to_string(),
        resource_names_subscribe: names(request.subscribe),
        resource_names_unsubscribe: names(request.unsubscribe),
        initial_resource_versions: request
            .initial_versions
            .into_iter()
            .map(|(name, version)| (name.to_string(), version))
            .collect(),
        response_nonce: request.nonce.unwrap_or_default(),
        error_detail: request.error.map(|message| RpcStatus {
            message,
            ..RpcStatus::default()
        }),
    }
}
