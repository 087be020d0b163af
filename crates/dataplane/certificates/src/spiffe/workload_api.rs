//! SPIFFE's Workload API: one stream with all identities of the calling process.

use std::{
    collections::{BTreeSet, HashMap},
    pin::Pin,
    sync::Arc,
};

use ambit_model::Identity;
use ambit_rt::AbortOnDrop;
use ambit_tls::{TlsSettings, WorkloadCert, split_concatenated_der};
use ambit_wire::spiffe::{
    X509svidRequest, X509svidResponse, spiffe_workload_api_client::SpiffeWorkloadApiClient,
};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Request, metadata::MetadataValue};

use super::{
    agent::{self, MAX_MESSAGE_BYTES, RESPONSE_TIMEOUT, SpiffeSocket},
    api_result::{ApiResult, wait_for_result, warn_of_outage},
};
use crate::{CaClient, FetchError, Renewals, SpiffeError, svid::Svid};

/// Client of SPIFFE's Workload API, for the identities of this process.
#[derive(Debug)]
pub struct WorkloadApi {
    shared: Arc<Shared>,
    _stream: AbortOnDrop<()>,
}

#[derive(Debug)]
struct Shared {
    api: Arc<str>,
    settings: TlsSettings,
    response: watch::Sender<ApiResult<Svids>>,
    subscribed_identities: Mutex<BTreeSet<Identity>>,
    renewals: Renewals,
}

/// SVIDs by SPIFFE ID, each with the encoded trust bundle of its domain.
type Svids = HashMap<String, (Svid, Bytes)>;

impl WorkloadApi {
    /// Subscribes to the agent's SVIDs until the value is dropped. Must be called within the runtime that runs the
    /// stream.
    pub fn start(socket: &SpiffeSocket, settings: &TlsSettings) -> Self {
        let of_workload = settings.trust_domains().for_workload();
        let shared = Arc::new(Shared {
            api: format!("the Workload API at {socket}").into(),
            settings: settings.clone().with_trust_domains(of_workload),
            response: watch::Sender::new(ApiResult::Pending),
            subscribed_identities: Mutex::default(),
            renewals: Renewals::default(),
        });
        let stream = agent::spawn_essential("workload api", {
            let (shared, channel) = (shared.clone(), socket.channel());
            async move {
                let open = || {
                    let client = SpiffeWorkloadApiClient::new(channel.clone());
                    let mut client = client.max_decoding_message_size(MAX_MESSAGE_BYTES);
                    let mut request = Request::new(X509svidRequest {});
                    // Browsers cannot be made to send it, so that pages cannot call the agent.
                    let security = MetadataValue::from_static("true");
                    request
                        .metadata_mut()
                        .insert("workload.spiffe.io", security);
                    async move { client.fetch_x509svid(request).await }
                };
                agent::subscribe_with_retry(&shared.api, open, |answer| shared.on_response(answer))
                    .await;
            }
        });
        Self {
            shared,
            _stream: stream,
        }
    }
}

impl Shared {
    fn on_response(&self, answer: Result<X509svidResponse, SpiffeError>) {
        warn_of_outage(&self.response.borrow(), &answer);
        let answer = answer.map(|message| self.parse_svids(message));
        let last = self.response.send_replace(answer.into());
        if let Some(svids) = self.response.borrow().available() {
            let last = last.available();
            for identity in &*self.subscribed_identities.lock() {
                let id = identity.to_string();
                if svids.get(&id) != last.and_then(|last| last.get(&id)) {
                    self.renewals.add(identity.clone());
                }
            }
        }
    }

    /// Returns the SVIDs in a message of the agent, and accepts the federated trust domains that the message has
    /// bundles for.
    fn parse_svids(&self, message: X509svidResponse) -> Svids {
        let ids = message.svids.iter().map(|svid| svid.spiffe_id.as_str());
        let own: BTreeSet<&str> = ids.map(agent::trust_domain).collect();
        let mut federated = agent::parse_bundles(&self.api, &message.federated_bundles);
        federated.retain(|domain, _| !own.contains(domain.as_str()));
        if let Err(error) = self.settings.trust_domains().replace_federated(federated) {
            tracing::warn!(%error, "federated trust domains unchanged");
        }
        let mut svids = Svids::new();
        for one in message.svids {
            let svid = Svid::new([&one.x509_svid[..]], &one.x509_svid_key);
            // The first of several for one identity is the default.
            svids.entry(one.spiffe_id).or_insert((svid, one.bundle));
        }
        svids
    }

    async fn fetch(&self, identity: &Identity) -> Result<WorkloadCert, FetchError> {
        let received = wait_for_result(self.response.subscribe(), &self.api);
        let svids = tokio::time::timeout(RESPONSE_TIMEOUT, received)
            .await
            .map_err(|_| FetchError::TimedOut(RESPONSE_TIMEOUT))?;
        Ok(self.certificate(identity, &*svids?)?)
    }

    fn certificate(&self, identity: &Identity, svids: &Svids) -> Result<WorkloadCert, SpiffeError> {
        let api = self.api.clone();
        let Some((svid, bundle)) = svids.get(&identity.to_string()) else {
            return Err(SpiffeError::NoRegistrationEntry {
                api,
                identity: Box::new(identity.clone()),
                others: svids.keys().take(8).cloned().collect(),
            });
        };
        let roots = split_concatenated_der(bundle).map_err(Into::into);
        roots
            .and_then(|roots| svid.certificate(&self.settings, identity, roots))
            .map_err(|source| SpiffeError::InvalidSvid {
                api,
                identity: Box::new(identity.clone()),
                source: Arc::new(source),
            })
    }
}

impl CaClient for WorkloadApi {
    fn fetch<'a>(
        &'a self,
        identity: &'a Identity,
    ) -> Pin<Box<dyn Future<Output = Result<WorkloadCert, FetchError>> + Send + 'a>> {
        Box::pin(self.shared.fetch(identity))
    }

    fn subscribe(&self, identity: &Identity) {
        self.shared
            .subscribed_identities
            .lock()
            .insert(identity.clone());
    }

    fn unsubscribe(&self, identity: &Identity) {
        self.shared.subscribed_identities.lock().remove(identity);
    }

    fn renewals(&self) -> Renewals {
        self.shared.renewals.clone()
    }
}
