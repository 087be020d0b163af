//! Main loop of the xDS client: runs one stream at a time, sends on-demand requests on it, and waits between streams.

use std::{
    collections::HashMap,
    error::Error as _,
    pin::pin,
    time::{Duration, Instant},
};

use ambit_control_channel::{CallHeadersError, CallMetadata};
use ambit_model::ArcStr;
use ambit_rt::ErrorChain;
use ambit_wire::discovery::{DeltaDiscoveryRequest, Node, Status as RpcStatus};
use ambit_xds_core::{Client as Machine, DeltaRequest, Effect, StreamEnding};
use rand::Rng as _;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, metadata::MetadataMap, transport::Channel};

use crate::{
    CachedResource, InvalidPolicyMode, Role, UpdateHandler,
    push::{self, DecodeOptions, apply_response},
    role::ADDRESS_TYPE_INDEX,
    stream::{self, ResponseStream},
};

/// Maximum number of queued requests on a stream.
const MAX_QUEUED_REQUESTS: usize = 64;
/// Maximum number of names that connections wait for. Bounds the memory that connections to unknown addresses use while
/// the control plane is unavailable.
const MAX_AWAITED_NAMES: usize = 4096;

/// Interval between log lines about an unreachable control plane.
const UNREACHABLE_REPORT_INTERVAL: Duration = Duration::from_secs(15);

/// Connection, subscriptions and node identity of an xDS client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Channel to the control plane, which connects whenever a stream is opened.
    pub channel: Channel,
    /// Address of the control plane, for logs.
    pub address: String,
    /// Metadata of the stream: token, cluster and `XDS_HEADER_*`.
    pub headers: CallMetadata,
    /// Kind of program that the client runs in, which determines the resource types.
    pub role: Role,
    /// Node message that identifies the client to the control plane.
    pub node: Node,
    /// Whether WDS records are subscribed to by name when they are needed (`XDS_ON_DEMAND`).
    pub on_demand: bool,
    /// How policies that cannot be decoded in full are handled.
    pub invalid_policies: InvalidPolicyMode,
}

impl ClientOptions {
    fn decode_options(&self) -> DecodeOptions {
        DecodeOptions {
            role: self.role,
            invalid_policies: self.invalid_policies,
        }
    }
}

/// On-demand request for a WDS record.
#[derive(Debug)]
pub struct AddressDemand {
    /// Name of the record: `network/ip`, a workload's uid or `namespace/hostname`.
    pub name: String,
    /// Sender that completes when the handler has applied the response, whether or not the record exists.
    pub resolved_sender: oneshot::Sender<()>,
}

/// xDS client of the control plane.
#[derive(Debug)]
pub struct Client<H> {
    options: ClientOptions,
    handler: H,
    demands: Option<mpsc::Receiver<AddressDemand>>,
    state_machine: Machine,
    waiters: HashMap<ArcStr, Vec<oneshot::Sender<()>>>,
}

/// Reason why a stream ended, or could not be opened.
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
    fn ending(&self) -> StreamEnding {
        match self {
            Self::Headers(_) | Self::Connect(_) => StreamEnding::ConnectFailed,
            Self::Stream(status) if is_transient(status) => StreamEnding::Transient,
            Self::Stream(_) => StreamEnding::Refused,
            Self::Closed => StreamEnding::Closed,
        }
    }
}

/// Whether a gRPC status only means that the server or the connection shut down in an ordinary way.
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

impl<H: UpdateHandler> Client<H> {
    /// Creates a client that passes updates to `handler`. `demands` receives on-demand requests.
    pub fn new(
        options: ClientOptions,
        handler: H,
        demands: Option<mpsc::Receiver<AddressDemand>>,
    ) -> Self {
        let machine = Machine::new(options.role.subscriptions(options.on_demand));
        Self {
            options,
            handler,
            demands,
            state_machine: machine,
            waiters: HashMap::new(),
        }
    }

    /// Restores the resources of a type from a warm-start cache ([`UpdateHandler::on_resource_accepted`]), before
    /// [`Self::run`]: the control plane then sends only what has changed.
    pub fn restore(&mut self, type_url: &str, cached: impl Iterator<Item = CachedResource>) {
        let intake = self.options.decode_options();
        let effects = push::restore(
            &mut self.state_machine,
            &self.handler,
            intake,
            type_url,
            cached,
        );
        // No server is connected that could receive the effect.
        if effects.contains(&Effect::Ready) {
            self.handler.on_ready();
        }
    }

    /// Runs the client until its task is dropped.
    pub async fn run(mut self) {
        let mut next_report = Instant::now();
        loop {
            let error = match self.run_stream().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            let ending = error.ending();
            self.handler.on_stream_ended(ending);
            let address = self.options.address.as_str();
            let reason = ErrorChain(&error).to_string();
            match ending {
                // Connecting is tried every second, which is not worth a log line each time.
                StreamEnding::ConnectFailed if Instant::now() < next_report => {
                    tracing::debug!(address, reason, "control plane connection failed");
                }
                StreamEnding::ConnectFailed | StreamEnding::Refused => {
                    next_report = Instant::now() + UNREACHABLE_REPORT_INTERVAL;
                    tracing::warn!(address, reason, "control plane connection failed");
                }
                StreamEnding::Transient | StreamEnding::Closed => {
                    tracing::info!(address, reason, "control plane connection ended");
                }
            }
            for effect in self.state_machine.on_disconnected(ending) {
                if let Effect::ReconnectAfter { after } = effect {
                    self.wait_before_reconnect(after).await;
                }
            }
        }
    }

    /// Waits for the backoff delay, and queues on-demand requests for the next stream meanwhile. The delay is
    /// randomized, so that not all clients reconnect at once.
    async fn wait_before_reconnect(&mut self, after: Duration) {
        let spread = rand::rng().random_range(0.8..1.2);
        let mut sleep = pin!(tokio::time::sleep(after.mul_f64(spread)));
        loop {
            tokio::select! {
                () = &mut sleep => return,
                demand = next_demand(&mut self.demands) => {
                    // Nothing is sent while disconnected.
                    self.on_demand(demand, None).await;
                }
            }
        }
    }

    /// Opens a stream, and serves it until it ends.
    async fn run_stream(&mut self) -> Result<std::convert::Infallible, StreamError> {
        let (requests, outgoing) = mpsc::channel(MAX_QUEUED_REQUESTS);
        let mut metadata = MetadataMap::new();
        self.options.headers.apply(&mut metadata).await?;
        let effects = self.state_machine.on_connected();
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
                    opened = &mut open => break opened.map_err(open_error)?,
                    () = async {}, if effects.is_some() => {
                        let effects = effects.take().unwrap_or_default();
                        self.apply_effects(effects, Some(&requests)).await;
                    }
                    demand = next_demand(&mut self.demands) => {
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
        stream: &mut ResponseStream,
        requests: &mpsc::Sender<DeltaDiscoveryRequest>,
    ) -> Result<std::convert::Infallible, StreamError> {
        loop {
            tokio::select! {
                message = stream.next() => {
                    let response = message?.ok_or(StreamError::Closed)?;
                    let bytes = prost::Message::encoded_len(&response);
                    self.handler.on_message_received(&response.type_url, bytes);
                    let intake = self.options.decode_options();
                    let effects =
                        apply_response(&mut self.state_machine, &self.handler, intake, response).await;
                    self.apply_effects(effects, Some(requests)).await;
                }
                demand = next_demand(&mut self.demands) => {
                    self.on_demand(demand, Some(requests)).await;
                }
            }
        }
    }

    async fn on_demand(
        &mut self,
        AddressDemand {
            name,
            resolved_sender: done,
        }: AddressDemand,
        requests: Option<&mpsc::Sender<DeltaDiscoveryRequest>>,
    ) {
        if self.waiters.len() >= MAX_AWAITED_NAMES {
            self.withdraw_abandoned_demands();
            if self.waiters.len() >= MAX_AWAITED_NAMES {
                // Dropping `done` reports to the caller that there is no answer.
                return;
            }
        }
        let waiters = self.waiters.entry(name.as_str().into()).or_default();
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(done);
        let effects = self
            .state_machine
            .on_demand(ADDRESS_TYPE_INDEX, &name, Instant::now());
        self.apply_effects(effects, requests).await;
    }

    fn withdraw_abandoned_demands(&mut self) {
        let machine = &mut self.state_machine;
        self.waiters.retain(|name, waiters| {
            waiters.retain(|waiter| !waiter.is_closed());
            if waiters.is_empty() {
                machine.withdraw_demand(ADDRESS_TYPE_INDEX, name);
            }
            !waiters.is_empty()
        });
    }

    async fn apply_effects(
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
                        .send(to_discovery_request(request, &self.options.node))
                        .await
                        .is_err()
                    {
                        return;
                    }
                }
                Effect::DemandResolved { name, .. } => {
                    for waiter in self.waiters.remove(&name).unwrap_or_default() {
                        // A caller may no longer be waiting.
                        waiter.send(()).ok();
                    }
                }
                Effect::Ready => self.handler.on_ready(),
                Effect::ReconnectAfter { .. } => {}
            }
        }
    }
}

/// Returns the next on-demand request; never completes if no more can arrive.
async fn next_demand(demands: &mut Option<mpsc::Receiver<AddressDemand>>) -> AddressDemand {
    if let Some(receiver) = demands {
        if let Some(demand) = receiver.recv().await {
            return demand;
        }
        *demands = None;
    }
    std::future::pending().await
}

/// Converts the status with which opening a stream failed: a status with a local cause is a failed connection, one
/// without is the server's.
fn open_error(status: Status) -> StreamError {
    match status.source().is_some() {
        true => StreamError::Connect(status),
        false => StreamError::Stream(status),
    }
}

fn to_discovery_request(request: DeltaRequest, node: &Node) -> DeltaDiscoveryRequest {
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
