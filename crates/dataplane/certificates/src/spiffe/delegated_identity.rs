//! SPIRE's Delegated Identity API: a stream for each identity of the node, and one for all trust bundles.

use std::{
    collections::{BTreeSet, HashMap},
    pin::Pin,
    sync::Arc,
};

use ambit_model::Identity;
use ambit_rt::AbortOnDrop;
use ambit_tls::{TlsSettings, WorkloadCert};
use ambit_wire::{
    delegated_identity::{
        SubscribeToX509BundlesRequest, SubscribeToX509BundlesResponse, SubscribeToX509sviDsRequest,
        SubscribeToX509sviDsResponse, X509svidWithKey,
        delegated_identity_client::DelegatedIdentityClient,
    },
    spire_types::Selector,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::transport::Channel;

use super::{
    agent::{
        self, Bundles, MAX_MESSAGE_BYTES, MAX_SVID_MESSAGE_BYTES, RESPONSE_TIMEOUT, SpiffeSocket,
    },
    api_result::{ApiResult, wait_for_result, warn_of_outage},
};
use crate::{CaClient, FetchError, Renewals, SpiffeError, svid::Svid};

/// Client of the Delegated Identity API on the admin socket of SPIRE's agent, for the identities of a node's
/// workloads.
#[derive(Debug)]
pub struct DelegatedIdentity {
    shared: Arc<Shared>,
    channel: Channel,
    _bundles: AbortOnDrop<()>,
}

#[derive(Debug)]
struct Shared {
    api: Arc<str>,
    settings: TlsSettings,
    bundles: watch::Sender<ApiResult<Bundles>>,
    subscriptions: Mutex<HashMap<Identity, IdentitySubscription>>,
    renewals: Renewals,
}

/// Subscription to the SVID of one identity of the node, with the task that reads its stream.
#[derive(Debug)]
struct IdentitySubscription {
    response: Arc<watch::Sender<ApiResult<SvidResponse>>>,
    /// TLS settings that accept the trust domains with which the identity's registration entry federates.
    settings: TlsSettings,
    _stream: AbortOnDrop<()>,
}

/// SVIDs of one identity, from the agent's last message.
#[derive(Debug, PartialEq, Eq)]
struct SvidResponse {
    svid: Option<Svid>,
    /// SPIFFE IDs of other SVIDs that match the same selectors (at most 8).
    other_spiffe_ids: Vec<String>,
    federates_with: BTreeSet<String>,
}

impl DelegatedIdentity {
    /// Subscribes to the agent's trust bundles until the value is dropped. Must be called within the runtime that
    /// runs the streams.
    pub fn start(socket: &SpiffeSocket, settings: &TlsSettings) -> Self {
        let shared = Arc::new(Shared {
            api: format!("the Delegated Identity API at {socket}").into(),
            settings: settings.clone(),
            bundles: watch::Sender::new(ApiResult::Pending),
            subscriptions: Mutex::default(),
            renewals: Renewals::default(),
        });
        let channel = socket.channel();
        let bundles = agent::spawn_essential("spiffe bundles", {
            let (shared, channel) = (shared.clone(), channel.clone());
            async move {
                let open = || {
                    let mut client = client(&channel, MAX_MESSAGE_BYTES);
                    let request = SubscribeToX509BundlesRequest {};
                    async move { client.subscribe_to_x509_bundles(request).await }
                };
                agent::subscribe_with_retry(&shared.api, open, |answer| shared.on_bundles(answer))
                    .await;
            }
        });
        Self {
            shared,
            channel,
            _bundles: bundles,
        }
    }
}

impl Drop for DelegatedIdentity {
    fn drop(&mut self) {
        // Ends the streams, whose tasks hold references to `shared`.
        self.shared.subscriptions.lock().clear();
    }
}

fn client(channel: &Channel, max_bytes: usize) -> DelegatedIdentityClient<Channel> {
    DelegatedIdentityClient::new(channel.clone()).max_decoding_message_size(max_bytes)
}

/// Follows the stream of one identity's SVIDs, and queues a renewal whenever the agent replaces them.
async fn subscribe_to_identity(
    shared: Arc<Shared>,
    channel: Channel,
    identity: Identity,
    slot: Arc<watch::Sender<ApiResult<SvidResponse>>>,
) {
    let selector = |value: String| Selector {
        r#type: "k8s".to_owned(),
        value,
    };
    let open = || {
        let mut client = client(&channel, MAX_SVID_MESSAGE_BYTES);
        let request = SubscribeToX509sviDsRequest {
            selectors: vec![
                selector(format!("ns:{}", identity.namespace)),
                selector(format!("sa:{}", identity.service_account)),
            ],
        };
        async move { client.subscribe_to_x509svi_ds(request).await }
    };
    agent::subscribe_with_retry(&shared.api, open, |answer| {
        let workload = answer
            .map(|message: SubscribeToX509sviDsResponse| SvidResponse::new(&identity, &message));
        if publish_if_changed(&slot, workload) {
            shared.accept_federated_domains(&identity);
            shared.renewals.add(identity.clone());
        }
    })
    .await;
}

/// Stores a result of the agent's stream. Returns whether it is a message that differs from the previous one, so that
/// certificates must be fetched again. After an error, fetched certificates remain in use until they expire.
fn publish_if_changed<T: PartialEq>(
    slot: &watch::Sender<ApiResult<T>>,
    answer: Result<T, SpiffeError>,
) -> bool {
    let last = slot.send_replace(answer.into());
    let now = slot.borrow();
    let now = now.available();
    now.is_some() && now != last.available()
}

impl SvidResponse {
    fn new(identity: &Identity, message: &SubscribeToX509sviDsResponse) -> Self {
        let id = identity.to_string();
        let is_own = |one: &&X509svidWithKey| spiffe_id(one) == id;
        let own = message.x509_svids.iter().find(is_own);
        let others = message.x509_svids.iter().filter(|one| !is_own(one));
        Self {
            svid: own.map(|one| {
                let chain = one.x509_svid.iter().flat_map(|svid| &svid.cert_chain);
                Svid::new(chain.map(|der| &der[..]), &one.x509_svid_key)
            }),
            other_spiffe_ids: others.take(8).map(spiffe_id).collect(),
            federates_with: message
                .federates_with
                .iter()
                .map(|id| agent::trust_domain(id).to_owned())
                .collect(),
        }
    }
}

fn spiffe_id(svid: &X509svidWithKey) -> String {
    let id = svid.x509_svid.as_ref().and_then(|svid| svid.id.as_ref());
    let text = id.map(|id| format!("spiffe://{}{}", id.trust_domain, id.path));
    text.unwrap_or_default()
}

impl Shared {
    fn on_bundles(&self, answer: Result<SubscribeToX509BundlesResponse, SpiffeError>) {
        warn_of_outage(&self.bundles.borrow(), &answer);
        let decode = |message: SubscribeToX509BundlesResponse| {
            agent::parse_bundles(&self.api, &message.ca_certificates)
        };
        if !publish_if_changed(&self.bundles, answer.map(decode)) {
            return;
        }
        let followed: Vec<_> = self.subscriptions.lock().keys().cloned().collect();
        for identity in followed {
            self.accept_federated_domains(&identity);
            self.renewals.add(identity);
        }
    }

    /// Accepts the trust domains with which an identity federates, verified by the roots in the agent's last bundles.
    fn accept_federated_domains(&self, identity: &Identity) {
        let followed = self.subscriptions.lock();
        let Some(followed) = followed.get(identity) else {
            return;
        };
        let (bundles, workload) = (self.bundles.borrow(), followed.response.borrow());
        let (Some(bundles), Some(workload)) = (bundles.available(), workload.available()) else {
            return;
        };
        let mut federated = Bundles::clone(bundles);
        federated.retain(|domain, _| {
            workload.federates_with.contains(domain) && identity.trust_domain != domain.as_str()
        });
        if let Err(error) = followed
            .settings
            .trust_domains()
            .replace_federated(federated)
        {
            tracing::warn!(%identity, %error, "federated trust domains unchanged");
        }
    }

    async fn fetch(&self, identity: &Identity) -> Result<WorkloadCert, FetchError> {
        let followed = {
            let followed = self.subscriptions.lock();
            let of_identity = followed.get(identity);
            of_identity.map(|one| (one.response.subscribe(), one.settings.clone()))
        };
        let (workload, settings) =
            followed.ok_or_else(|| SpiffeError::StreamEnded(self.api.clone()))?;
        let both = async {
            (
                wait_for_result(self.bundles.subscribe(), &self.api).await,
                wait_for_result(workload, &self.api).await,
            )
        };
        let (bundles, workload) = tokio::time::timeout(RESPONSE_TIMEOUT, both)
            .await
            .map_err(|_| FetchError::TimedOut(RESPONSE_TIMEOUT))?;
        let (api, boxed) = (self.api.clone(), || Box::new(identity.clone()));
        let (bundles, workload) = (bundles?, workload?);
        let Some(svid) = &workload.svid else {
            return Err(FetchError::from(SpiffeError::NoRegistrationEntry {
                api,
                identity: boxed(),
                others: workload.other_spiffe_ids.clone(),
            }));
        };
        let Some(roots) = bundles.get(identity.trust_domain.as_str()) else {
            return Err(FetchError::from(SpiffeError::NoBundle {
                api,
                identity: boxed(),
            }));
        };
        let certificate = svid.certificate(&settings, identity, roots.clone());
        Ok(certificate.map_err(|source| SpiffeError::InvalidSvid {
            api,
            identity: boxed(),
            source: Arc::new(source),
        })?)
    }
}

impl CaClient for DelegatedIdentity {
    fn fetch<'a>(
        &'a self,
        identity: &'a Identity,
    ) -> Pin<Box<dyn Future<Output = Result<WorkloadCert, FetchError>> + Send + 'a>> {
        Box::pin(self.shared.fetch(identity))
    }

    fn subscribe(&self, identity: &Identity) {
        let mut followed = self.shared.subscriptions.lock();
        followed.entry(identity.clone()).or_insert_with(|| {
            let of_workload = self.shared.settings.trust_domains().for_workload();
            let workload = Arc::new(watch::Sender::new(ApiResult::Pending));
            let stream = subscribe_to_identity(
                self.shared.clone(),
                self.channel.clone(),
                identity.clone(),
                workload.clone(),
            );
            IdentitySubscription {
                response: workload,
                settings: self.shared.settings.clone().with_trust_domains(of_workload),
                _stream: agent::spawn_essential("spiffe identity", stream),
            }
        });
    }

    fn unsubscribe(&self, identity: &Identity) {
        self.shared.subscriptions.lock().remove(identity);
    }

    fn renewals(&self) -> Renewals {
        self.shared.renewals.clone()
    }
}
