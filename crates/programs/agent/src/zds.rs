//! Server of ZDS: sockets, records and descriptors around the registry of `ambit-zds`.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_rt::{AbortOnDrop, ErrorChain, spawn_abortable};
use ambit_sys::{
    netns::Netns,
    seqpacket::{SeqPacket, SeqPacketListener},
};
use ambit_wire::zds_codec;
use ambit_zds::{
    ConnectionId, ExpectedRecord, MAX_RECORD_BYTES, OrderError, OrderId, PodUid, Registry,
    RegistryEffect, RegistryEvent, Request, WorkloadInfo,
};
use prometheus_client::metrics::gauge::Gauge;
use std::os::fd::AsFd as _;
use tokio::sync::{mpsc, oneshot};

/// Timeout of sending a record to a proxy.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after each accept, so that a proxy that reconnects in a loop costs little.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum concurrent proxy connections, of which a rollout needs two.
const MAX_CONNECTIONS: usize = 16;

enum ZdsCommand {
    Add {
        uid: PodUid,
        info: WorkloadInfo,
        netns: Netns,
        done: DeliverySender,
    },
    Del {
        uid: PodUid,
        done: DeliverySender,
    },
    HoldPod(PodUid),
    AcceptProxies,
}

type DeliverySender = oneshot::Sender<Result<(), OrderError>>;

/// Handle that sends commands to the ZDS server, which processes them in order.
#[derive(Clone, Debug)]
pub struct Zds(mpsc::UnboundedSender<ZdsCommand>);

impl Zds {
    /// Orders the newest node proxy to serve the pod; completes when the proxy has acknowledged the order.
    pub fn add(
        &self,
        uid: PodUid,
        info: WorkloadInfo,
        netns: Netns,
    ) -> impl Future<Output = Result<(), OrderError>> + use<> {
        let (done, outcome) = oneshot::channel();
        self.send_command(
            ZdsCommand::Add {
                uid,
                info,
                netns,
                done,
            },
            outcome,
        )
    }

    /// Orders every node proxy to stop serving the pod; completes when the proxies have acknowledged the order.
    pub fn del(&self, uid: PodUid) -> impl Future<Output = Result<(), OrderError>> + use<> {
        let (done, outcome) = oneshot::channel();
        self.send_command(ZdsCommand::Del { uid, done }, outcome)
    }

    /// Lets a node proxy that already serves the pod continue, although the pod's network namespace is not known yet.
    pub fn hold(&self, uid: PodUid) {
        // The server ends only with the process.
        self.0.send(ZdsCommand::HoldPod(uid)).ok();
    }

    /// Lets node proxies connect, since every pod is known now.
    pub fn open(&self) {
        self.0.send(ZdsCommand::AcceptProxies).ok();
    }

    fn send_command(
        &self,
        command: ZdsCommand,
        outcome: oneshot::Receiver<Result<(), OrderError>>,
    ) -> impl Future<Output = Result<(), OrderError>> + use<> {
        self.0.send(command).ok();
        async move { outcome.await.unwrap_or(Err(OrderError::Withdrawn)) }
    }
}

/// Bound ZDS server that does not run yet.
#[derive(Debug)]
pub struct ZdsServer {
    listener: SeqPacketListener,
    commands: mpsc::UnboundedReceiver<ZdsCommand>,
}

impl std::fmt::Debug for ZdsCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Add { .. } => "Add",
            Self::Del { .. } => "Del",
            Self::HoldPod(_) => "Hold",
            Self::AcceptProxies => "Open",
        })
    }
}

/// Binds the socket at `path`. Proxies that connect wait until [`Zds::open`].
///
/// # Errors
/// When the path cannot be bound.
pub fn bind(path: &Path) -> io::Result<(Zds, ZdsServer)> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let listener = SeqPacketListener::bind(path)?;
    let (sender, commands) = mpsc::unbounded_channel();
    Ok((Zds(sender), ZdsServer { listener, commands }))
}

/// Input from the tasks that read from and write to a proxy's connection.
enum ConnectionEvent {
    Record(ConnectionId, Vec<u8>),
    Broken(ConnectionId, String),
    Closed(ConnectionId, Option<io::Error>),
}

struct ProxyConnection {
    send_queue: mpsc::UnboundedSender<(Vec<u8>, Option<Netns>)>,
    _tasks: [AbortOnDrop<()>; 2],
}

struct RegistryServer<F> {
    registry: Registry<Netns>,
    connections: BTreeMap<ConnectionId, ProxyConnection>,
    pending_deliveries: BTreeMap<OrderId, DeliverySender>,
    inputs: mpsc::UnboundedSender<ConnectionEvent>,
    next_id: u64,
    connected_proxies: Gauge,
    on_synced: F,
}

impl ZdsServer {
    /// Serves node proxies until the future is dropped. `synced` is called whenever a proxy has received every pod.
    pub async fn run(mut self, connected: Gauge, synced: impl Fn() + Send) {
        let (sender, mut inputs) = mpsc::unbounded_channel();
        let mut server = RegistryServer {
            registry: Registry::new(),
            connections: BTreeMap::new(),
            pending_deliveries: BTreeMap::new(),
            inputs: sender,
            next_id: 0,
            connected_proxies: connected,
            on_synced: synced,
        };
        let mut open = false;
        let mut accept_from = tokio::time::Instant::now();
        loop {
            let deadline = server.registry.deadline();
            let may_accept = open && server.connections.len() < MAX_CONNECTIONS;
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(ZdsCommand::AcceptProxies) => open = true,
                    Some(command) => server.handle_command(command),
                    None => return,
                },
                Some(input) = inputs.recv() => server.handle_connection_event(input),
                accepted = accept(&self.listener, accept_from), if may_accept => {
                    accept_from = tokio::time::Instant::now() + ACCEPT_PAUSE;
                    match accepted {
                        Ok(socket) => server.add_connection(socket),
                        Err(error) => tracing::warn!(%error, "cannot accept a node proxy"),
                    }
                }
                () = ambit_rt::sleep_until(deadline) => server.handle_registry_event(RegistryEvent::Tick),
            }
        }
    }
}

async fn accept(listener: &SeqPacketListener, from: tokio::time::Instant) -> io::Result<SeqPacket> {
    tokio::time::sleep_until(from).await;
    listener.accept().await
}

impl<F: Fn()> RegistryServer<F> {
    fn handle_command(&mut self, command: ZdsCommand) {
        let ticket = OrderId(self.next_id);
        self.next_id += 1;
        match command {
            ZdsCommand::Add {
                uid,
                info,
                netns,
                done,
            } => {
                self.pending_deliveries.insert(ticket, done);
                self.handle_registry_event(RegistryEvent::Add {
                    order_id: ticket,
                    uid,
                    info,
                    netns,
                });
            }
            ZdsCommand::Del { uid, done } => {
                self.pending_deliveries.insert(ticket, done);
                self.handle_registry_event(RegistryEvent::Del {
                    order_id: ticket,
                    uid,
                });
            }
            ZdsCommand::HoldPod(uid) => {
                self.handle_registry_event(RegistryEvent::KeepIfServed(uid))
            }
            ZdsCommand::AcceptProxies => {}
        }
    }

    fn add_connection(&mut self, socket: SeqPacket) {
        let id = ConnectionId(self.next_id);
        self.next_id += 1;
        let socket = Arc::new(socket);
        let (out, records) = mpsc::unbounded_channel();
        let tasks = [
            spawn_abortable(
                "zds reader",
                read(id, Arc::clone(&socket), self.inputs.clone()),
            ),
            spawn_abortable(
                "zds writer",
                write(id, socket, records, self.inputs.clone()),
            ),
        ];
        self.connections.insert(
            id,
            ProxyConnection {
                send_queue: out,
                _tasks: tasks,
            },
        );
        self.handle_registry_event(RegistryEvent::Accepted(id));
    }

    fn handle_connection_event(&mut self, input: ConnectionEvent) {
        match input {
            ConnectionEvent::Record(id, record) => {
                let event = match self.registry.expected_record(id) {
                    ExpectedRecord::Hello => zds_codec::decode_hello(&record).map(|version| {
                        tracing::info!(connection = id.0, version, "a node proxy has connected");
                        RegistryEvent::Hello(id)
                    }),
                    ExpectedRecord::Ack => {
                        zds_codec::decode_ack(&record).map(|ack| RegistryEvent::Ack(id, ack))
                    }
                    ExpectedRecord::None => {
                        let what = "an unsolicited record".to_owned();
                        Ok(RegistryEvent::Unexpected(id, what))
                    }
                };
                let event = event.unwrap_or_else(|error| {
                    RegistryEvent::Unexpected(id, ErrorChain(&error).to_string())
                });
                self.handle_registry_event(event);
            }
            ConnectionEvent::Broken(id, what) => {
                self.handle_registry_event(RegistryEvent::Unexpected(id, what))
            }
            ConnectionEvent::Closed(id, error) => {
                if self.connections.remove(&id).is_some() {
                    tracing::info!(connection = id.0, error = ?error, "a node proxy has disconnected");
                }
                self.handle_registry_event(RegistryEvent::Closed(id));
            }
        }
    }

    fn handle_registry_event(&mut self, event: RegistryEvent<Netns>) {
        for effect in self.registry.on_event(event, Instant::now()) {
            match effect {
                RegistryEffect::Send(id, request, netns) => self.send(id, &request, netns),
                RegistryEffect::Close(id, reason) => {
                    tracing::warn!(connection = id.0, %reason, "closing a node proxy's connection");
                    self.connections.remove(&id);
                }
                RegistryEffect::OrderCompleted(ticket, outcome) => {
                    if let Some(done) = self.pending_deliveries.remove(&ticket) {
                        // Whoever gave the order may be gone.
                        done.send(outcome).ok();
                    }
                }
                RegistryEffect::Refused(id, uid, error) => {
                    tracing::warn!(connection = id.0, %uid, error, "a node proxy refuses a pod");
                }
                RegistryEffect::Synced(id) => {
                    tracing::info!(connection = id.0, "a node proxy knows of every pod");
                    (self.on_synced)();
                }
            }
        }
        self.connected_proxies
            .set(i64::try_from(self.registry.connected_proxies()).unwrap_or(i64::MAX));
    }

    fn send(&self, id: ConnectionId, request: &Request, netns: Option<Netns>) {
        if let Some(connection) = self.connections.get(&id) {
            // A writer that has ended reports it by itself.
            connection
                .send_queue
                .send((zds_codec::encode_request(request), netns))
                .ok();
        }
    }
}

async fn read(
    id: ConnectionId,
    socket: Arc<SeqPacket>,
    inputs: mpsc::UnboundedSender<ConnectionEvent>,
) {
    let mut buffer = vec![0; MAX_RECORD_BYTES];
    loop {
        let input = match socket.recv(&mut buffer).await {
            Ok(received) if received.len == 0 => ConnectionEvent::Closed(id, None),
            Ok(received) if received.fd.is_some() => {
                ConnectionEvent::Broken(id, "a descriptor, which proxies do not send".to_owned())
            }
            Ok(received) => {
                let record = buffer.get(..received.len).unwrap_or_default();
                ConnectionEvent::Record(id, record.to_vec())
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                ConnectionEvent::Broken(id, error.to_string())
            }
            Err(error) => ConnectionEvent::Closed(id, Some(error)),
        };
        let last = !matches!(input, ConnectionEvent::Record(..));
        if inputs.send(input).is_err() || last {
            return;
        }
    }
}

async fn write(
    id: ConnectionId,
    socket: Arc<SeqPacket>,
    mut records: mpsc::UnboundedReceiver<(Vec<u8>, Option<Netns>)>,
    inputs: mpsc::UnboundedSender<ConnectionEvent>,
) {
    while let Some((record, netns)) = records.recv().await {
        let fd = netns.as_ref().map(|netns| netns.as_fd());
        let error = match tokio::time::timeout(WRITE_TIMEOUT, socket.send(&record, fd)).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error,
            Err(elapsed) => elapsed.into(),
        };
        inputs.send(ConnectionEvent::Closed(id, Some(error))).ok();
        return;
    }
}
