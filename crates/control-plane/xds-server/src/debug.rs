//! State-of-the-world xDS for Istio's tools only: `istioctl proxy-status` and `istioctl version` query the connected
//! clients of each replica, by resource types that the mesh does not use.
//!
//! Only service accounts of the mesh's own namespace may query, as in Istio. A stream ends after a minute; nothing is
//! pushed on it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ambit_caller_auth::CallerAccess;
use ambit_wire::discovery::{
    ClientConfig, ConfigStatus, ControlPlane, DiscoveryRequest, DiscoveryResponse,
    GenericXdsConfig, Node,
};
use prost::Message;
use prost_types::{Any, Struct, Value, value::Kind};
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};
use tonic::{Request, Status, Streaming};

use crate::sessions::{SessionStatus, SessionTable};

/// Path of the gRPC method for state-of-the-world xDS.
pub(crate) const STREAM_METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// Maximum size of a request in bytes.
pub(crate) const MAX_REQUEST_BYTES: usize = 64 << 10;
/// Maximum concurrent streams.
const MAX_STREAMS: usize = 16;
/// Maximum age of a stream.
const MAX_STREAM_AGE: Duration = Duration::from_secs(60);
/// Maximum requests of one stream.
const MAX_REQUESTS: usize = 64;

/// Resource type for the versions that clients acknowledged (`istioctl proxy-status`).
const SYNC_STATUS_TYPE: &str = "istio.io/debug/syncz";
/// Resource type for connected clients (`istioctl version`).
const CONNECTIONS_TYPE: &str = "istio.io/connections";
/// Nonce of every response.
const RESPONSE_NONCE: &str = "1";
const CLIENT_CONFIG_TYPE_URL: &str = "type.googleapis.com/envoy.service.status.v3.ClientConfig";
const NODE_TYPE_URL: &str = "type.googleapis.com/envoy.config.core.v3.Node";

/// Service that reports the connected clients of this replica.
#[derive(Clone, Debug)]
pub struct DebugService {
    sessions: SessionTable,
    access: Arc<CallerAccess>,
    /// Name of the replica.
    replica: String,
    cluster_id: String,
    stream_permits: Arc<Semaphore>,
}

impl DebugService {
    /// Creates the service that reports `sessions` in the name of `replica`.
    pub fn new(
        sessions: SessionTable,
        access: Arc<CallerAccess>,
        replica: &str,
        cluster_id: &str,
    ) -> Self {
        Self {
            sessions,
            access,
            replica: replica.to_owned(),
            cluster_id: cluster_id.to_owned(),
            stream_permits: Arc::new(Semaphore::new(MAX_STREAMS)),
        }
    }

    /// Opens a state-of-the-world stream, if its caller may use it.
    pub(crate) async fn open(
        self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<mpsc::Receiver<Result<DiscoveryResponse, Status>>, Status> {
        let (metadata, extensions) = (request.metadata(), request.extensions());
        let caller = self
            .access
            .authenticate_caller(metadata, extensions)
            .await?;
        self.access.authorize_debug(&caller, extensions)?;
        let streams = Arc::clone(&self.stream_permits);
        let permit = streams
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("too many debug streams at once"))?;
        let (sender, receiver) = mpsc::channel(1);
        ambit_rt::spawn("xDS debug stream", async move {
            let serve = self.serve(request.into_inner(), &sender);
            if let Ok(Err(status)) = tokio::time::timeout(MAX_STREAM_AGE, serve).await {
                // Sending fails only if the client has disconnected.
                sender.send(Err(status)).await.ok();
            }
            drop(permit);
        });
        Ok(receiver)
    }

    async fn serve(
        &self,
        mut requests: Streaming<DiscoveryRequest>,
        sender: &mpsc::Sender<Result<DiscoveryResponse, Status>>,
    ) -> Result<(), Status> {
        for _ in 0..MAX_REQUESTS {
            let request = tokio::select! {
                request = requests.message() => request?,
                () = sender.closed() => None,
            };
            let Some(request) = request else {
                return Ok(());
            };
            // An acknowledgement. istioctl's first request has a nonce, too.
            if request.response_nonce == RESPONSE_NONCE {
                continue;
            }
            let response = self.debug_response(&request.type_url)?;
            if sender.send(Ok(response)).await.is_err() {
                return Ok(());
            }
        }
        Err(Status::resource_exhausted(
            "too many requests on one stream",
        ))
    }

    fn debug_response(&self, type_url: &str) -> Result<DiscoveryResponse, Status> {
        let sessions: Vec<_> = self.sessions.lock().values().cloned().collect();
        let resources: Vec<_> = match type_url {
            SYNC_STATUS_TYPE => {
                let clients = sessions.iter().filter_map(|one| self.client_config(one));
                clients
                    .map(|one| pack_any(CLIENT_CONFIG_TYPE_URL, &one))
                    .collect()
            }
            CONNECTIONS_TYPE => {
                let nodes = sessions.iter().filter_map(|one| self.node(one));
                nodes.map(|one| pack_any(NODE_TYPE_URL, &one)).collect()
            }
            other => {
                let other: String = other.chars().take(200).collect();
                return Err(Status::unimplemented(format!(
                    "{other:?} is not served on a state-of-the-world stream: {SYNC_STATUS_TYPE} and {CONNECTIONS_TYPE} are, for \
                     istioctl; proxies ask by DeltaAggregatedResources"
                )));
            }
        };
        let version = env!("CARGO_PKG_VERSION");
        // Field names of Istio's `BuildInfo`.
        let identifier = json!({
            "Component": "istiod",
            "ID": self.replica,
            "Info": {"version": version, "revision": "ambit", "golang_version": "", "status": "", "tag": version},
        });
        Ok(DiscoveryResponse {
            version_info: version.to_owned(),
            resources,
            type_url: type_url.to_owned(),
            nonce: RESPONSE_NONCE.to_owned(),
            control_plane: Some(ControlPlane {
                identifier: identifier.to_string(),
            }),
        })
    }

    /// Returns the xDS node of a session's client, if the client has sent it.
    fn node(&self, session: &SessionStatus) -> Option<Node> {
        let node = session.node.as_ref()?;
        let text = |text: &str| Value {
            kind: Some(Kind::StringValue(text.to_owned())),
        };
        let fields = [
            ("CLUSTER_ID", self.cluster_id.as_str()),
            ("ISTIO_VERSION", node.version.as_str()),
            ("NAMESPACE", session.caller.namespace.as_str()),
            ("NODE_NAME", node.node_name.as_str()),
        ];
        let fields: BTreeMap<_, _> = fields
            .into_iter()
            .map(|(name, value)| (name.to_owned(), text(value)))
            .collect();
        Some(Node {
            id: node.display_name().to_owned(),
            metadata: Some(Struct { fields }),
            ..Node::default()
        })
    }

    fn client_config(&self, session: &SessionStatus) -> Option<ClientConfig> {
        let config = |one: &crate::session::SubscriptionStatus| GenericXdsConfig {
            type_url: one.resource_type.type_url().to_owned(),
            version_info: one.acknowledged_nonce.clone(),
            config_status: match &one.error {
                Some(_) => ConfigStatus::Error,
                None if one.sent_nonce.is_empty() => ConfigStatus::NotSent,
                None if one.sent_nonce == one.acknowledged_nonce => ConfigStatus::Synced,
                None => ConfigStatus::Stale,
            }
            .into(),
            ..GenericXdsConfig::default()
        };
        Some(ClientConfig {
            node: Some(self.node(session)?),
            generic_xds_configs: session.subscriptions.iter().map(config).collect(),
        })
    }
}

fn pack_any(type_url: &str, message: &impl Message) -> Any {
    Any {
        type_url: type_url.to_owned(),
        value: message.encode_to_vec(),
    }
}
