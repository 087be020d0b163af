//! Scripted SPIFFE agent like SPIRE's: the Workload API and the Delegated Identity API on Unix
//! sockets.

use std::{collections::BTreeMap, path::PathBuf, pin::Pin};

use ambit_model::Identity;
use ambit_rt::AbortOnDrop;
use ambit_wire::{
    delegated_identity::{
        SubscribeToX509BundlesRequest, SubscribeToX509BundlesResponse, SubscribeToX509sviDsRequest,
        SubscribeToX509sviDsResponse, X509svidWithKey,
        delegated_identity_server::{DelegatedIdentity, DelegatedIdentityServer},
    },
    spiffe::{
        X509svid, X509svidRequest, X509svidResponse,
        spiffe_workload_api_server::{SpiffeWorkloadApi, SpiffeWorkloadApiServer},
    },
    spire_types::{Selector, Spiffeid, X509svid as Chain},
};
use tokio::{net::UnixListener, sync::watch};
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{UnixListenerStream, WatchStream},
};
use tonic::{Request, Response, Status, transport::Server};

/// X.509-SVID that the scripted agent sends.
#[derive(Clone, Default)]
pub struct SpiffeSvid {
    /// SPIFFE ID of the SVID.
    pub id: String,
    /// Certificate chain as DER, the leaf first.
    pub chain: Vec<Vec<u8>>,
    /// Private key as PKCS#8 in DER.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for SpiffeSvid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpiffeSvid")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// State of the scripted agent: SVIDs and trust bundles.
#[derive(Clone, Debug, Default)]
pub struct SpiffeEntries {
    /// SVIDs for the process that calls the Workload API.
    pub workload_svids: Vec<SpiffeSvid>,
    /// SVIDs of the Delegated Identity API by namespace and service account, with the IDs of the trust domains with
    /// which they federate.
    pub delegated_svids: BTreeMap<(String, String), (Vec<SpiffeSvid>, Vec<String>)>,
    /// Trust bundles by trust domain, as concatenated DER certificates.
    pub bundles: BTreeMap<String, Vec<u8>>,
    /// Whether callers of the Delegated Identity API are rejected.
    pub rejects_delegates: bool,
}

impl SpiffeEntries {
    /// Adds or replaces the registration entry of an identity, with one SVID.
    pub fn register_delegated(
        &mut self,
        identity: &Identity,
        svid: SpiffeSvid,
        federates_with: &[&str],
    ) {
        let key = (
            identity.namespace.to_string(),
            identity.service_account.to_string(),
        );
        let domains = federates_with.iter();
        let domains = domains.map(|name| format!("spiffe://{name}")).collect();
        self.delegated_svids.insert(key, (vec![svid], domains));
    }
}

/// Running scripted agent, which stops when dropped.
#[derive(Debug)]
pub struct SpiffeAgent {
    directory: tempfile::TempDir,
    entries: watch::Sender<SpiffeEntries>,
    servers: Vec<AbortOnDrop<()>>,
}

impl SpiffeAgent {
    /// Starts an agent without SVIDs and bundles.
    pub fn start() -> Self {
        let mut agent = Self {
            directory: tempfile::tempdir().expect("a directory"),
            entries: watch::Sender::default(),
            servers: Vec::new(),
        };
        agent.restart();
        agent
    }

    /// Returns the Workload API's socket, in the form of a program's setting.
    pub fn workload_socket(&self) -> String {
        format!("unix://{}", self.path("workload.sock").display())
    }

    /// Returns the Delegated Identity API's socket, in the form of a program's setting.
    pub fn admin_socket(&self) -> String {
        format!("unix://{}", self.path("admin.sock").display())
    }

    /// Changes the agent's state, and sends the change to all callers.
    pub fn change(&self, change: impl FnOnce(&mut SpiffeEntries)) {
        self.entries.send_modify(change);
    }

    /// Ends all streams, and stops listening, as an agent that exits.
    pub fn stop(&mut self) {
        self.servers.clear();
        for name in ["workload.sock", "admin.sock"] {
            // At the first start no socket exists.
            let _gone = std::fs::remove_file(self.path(name));
        }
    }

    /// Ends all streams, and listens for new ones, as a restarted agent.
    pub fn restart(&mut self) {
        self.stop();
        let entries = self.entries.clone();
        let workload = Server::builder()
            .add_service(SpiffeWorkloadApiServer::new(WorkloadApi(entries.clone())));
        let admin = Server::builder()
            .add_service(DelegatedIdentityServer::new(DelegatedIdentityApi(entries)));
        for (name, router) in [("workload.sock", workload), ("admin.sock", admin)] {
            let listener = UnixListener::bind(self.path(name)).expect("a socket");
            let incoming = UnixListenerStream::new(listener);
            self.servers
                .push(ambit_rt::spawn_abortable("spiffe agent", async move {
                    router.serve_with_incoming(incoming).await.ok();
                }));
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct WorkloadApi(watch::Sender<SpiffeEntries>);

#[tonic::async_trait]
impl SpiffeWorkloadApi for WorkloadApi {
    type FetchX509SVIDStream = ResponseStream<X509svidResponse>;

    async fn fetch_x509svid(
        &self,
        request: Request<X509svidRequest>,
    ) -> Result<Response<Self::FetchX509SVIDStream>, Status> {
        let security = request.metadata().get("workload.spiffe.io");
        if security.is_none_or(|value| value != "true") {
            return Err(Status::invalid_argument(
                "security header missing from request",
            ));
        }
        let entries = WatchStream::new(self.0.subscribe());
        Ok(Response::new(Box::pin(
            entries.map(|entries| workload_response(&entries)),
        )))
    }
}

fn workload_response(entries: &SpiffeEntries) -> Result<X509svidResponse, Status> {
    if entries.workload_svids.is_empty() {
        return Err(Status::permission_denied("no identity issued"));
    }
    let domain = |id: &str| {
        let rest = id.strip_prefix("spiffe://").unwrap_or_default();
        rest.split('/').next().unwrap_or_default().to_owned()
    };
    let own: Vec<_> = entries
        .workload_svids
        .iter()
        .map(|svid| domain(&svid.id))
        .collect();
    let svids = entries
        .workload_svids
        .iter()
        .zip(&own)
        .map(|(svid, domain)| X509svid {
            spiffe_id: svid.id.clone(),
            x509_svid: svid.chain.concat().into(),
            x509_svid_key: svid.key.clone().into(),
            bundle: entries
                .bundles
                .get(domain)
                .cloned()
                .unwrap_or_default()
                .into(),
        });
    let foreign = entries.bundles.iter();
    let foreign = foreign.filter(|(domain, _)| !own.contains(domain));
    Ok(X509svidResponse {
        svids: svids.collect(),
        federated_bundles: foreign
            .map(|(domain, der)| (format!("spiffe://{domain}"), der.clone().into()))
            .collect(),
    })
}

struct DelegatedIdentityApi(watch::Sender<SpiffeEntries>);

impl DelegatedIdentityApi {
    fn authorize(&self) -> Result<(), Status> {
        match self.0.borrow().rejects_delegates {
            true => Err(Status::permission_denied(
                "caller not configured as an authorized delegate",
            )),
            false => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl DelegatedIdentity for DelegatedIdentityApi {
    type SubscribeToX509SVIDsStream = ResponseStream<SubscribeToX509sviDsResponse>;
    type SubscribeToX509BundlesStream = ResponseStream<SubscribeToX509BundlesResponse>;

    async fn subscribe_to_x509svi_ds(
        &self,
        request: Request<SubscribeToX509sviDsRequest>,
    ) -> Result<Response<Self::SubscribeToX509SVIDsStream>, Status> {
        self.authorize()?;
        let selectors = request.into_inner().selectors;
        let value = |prefix: &str| {
            let of_k8s = selectors.iter().filter(|one| one.r#type == "k8s");
            let mut values = of_k8s.filter_map(|Selector { value, .. }| value.strip_prefix(prefix));
            let value = values.next().map(str::to_owned);
            value.ok_or_else(|| Status::invalid_argument("selectors of another form"))
        };
        let key = (value("ns:")?, value("sa:")?);
        let entries = WatchStream::new(self.0.subscribe());
        let answers = entries.map(move |entries| {
            let (svids, federates_with) = entries
                .delegated_svids
                .get(&key)
                .cloned()
                .unwrap_or_default();
            Ok(SubscribeToX509sviDsResponse {
                x509_svids: svids.iter().map(with_key).collect(),
                federates_with,
            })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn subscribe_to_x509_bundles(
        &self,
        _request: Request<SubscribeToX509BundlesRequest>,
    ) -> Result<Response<Self::SubscribeToX509BundlesStream>, Status> {
        self.authorize()?;
        let entries = WatchStream::new(self.0.subscribe());
        let answers = entries.map(|entries| {
            let bundles = entries.bundles.into_iter();
            Ok(SubscribeToX509BundlesResponse {
                ca_certificates: bundles
                    .map(|(domain, der)| (format!("spiffe://{domain}"), der.into()))
                    .collect(),
            })
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

fn with_key(svid: &SpiffeSvid) -> X509svidWithKey {
    let rest = svid.id.strip_prefix("spiffe://").unwrap_or_default();
    let (domain, path) = rest.split_once('/').unwrap_or((rest, ""));
    X509svidWithKey {
        x509_svid: Some(Chain {
            cert_chain: svid.chain.iter().map(|der| der.clone().into()).collect(),
            id: Some(Spiffeid {
                trust_domain: domain.to_owned(),
                path: format!("/{path}"),
            }),
        }),
        x509_svid_key: svid.key.clone().into(),
    }
}
