//! Connection to a SPIFFE agent: its Unix socket, and streams that are reopened when they end.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    path::PathBuf,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use ambit_rt::{AbortOnDrop, Backoff};
use ambit_tls::split_concatenated_der;
use bytes::Bytes;
use rand::Rng;
use rustls_pki_types::CertificateDer;
use serde::{Serialize, Serializer};
use tonic::{
    Response, Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::SpiffeError;

/// Timeout for the first message of an agent's stream.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size, in bytes, of a message from the agent that contains trust bundles or all identities of the calling
/// workload.
pub(super) const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Maximum size, in bytes, of a message from the agent with the SVIDs of one of the node's workloads.
pub(super) const MAX_SVID_MESSAGE_BYTES: usize = 1 << 20;
const BACKOFF_INITIAL: Duration = Duration::from_millis(100);
const BACKOFF_CAP: Duration = Duration::from_secs(5);

/// Root certificates by trust domain.
pub(super) type Bundles = BTreeMap<String, Vec<CertificateDer<'static>>>;

/// Error of a setting that should be the path of a SPIFFE agent's Unix socket, but is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a Unix socket of the form unix:///PATH")]
pub struct SpiffeSocketError(String);

/// Unix socket of a SPIFFE agent.
#[derive(Clone, Debug)]
pub struct SpiffeSocket {
    path: PathBuf,
    endpoint: Endpoint,
}

impl SpiffeSocket {
    /// Returns a channel that connects when first used, and again whenever the connection is lost.
    pub(super) fn channel(&self) -> Channel {
        self.endpoint.connect_lazy()
    }
}

impl FromStr for SpiffeSocket {
    type Err = SpiffeSocketError;

    fn from_str(text: &str) -> Result<Self, SpiffeSocketError> {
        let error = || SpiffeSocketError(text.to_owned());
        let path = text.strip_prefix("unix:").ok_or_else(error)?;
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') {
            return Err(error());
        }
        let endpoint = Endpoint::from_shared(format!("unix://{path}")).map_err(|_| error())?;
        // Without HTTP/2 pings: SPIRE's agent closes connections that send them, and the kernel reports an agent's end.
        Ok(Self {
            path: path.into(),
            endpoint,
        })
    }
}

impl fmt::Display for SpiffeSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.path.display())
    }
}

impl Serialize for SpiffeSocket {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Spawns a task that receives certificates from the agent. If the task panics, the process ends, since its
/// certificates would expire.
pub(super) fn spawn_essential(
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) -> AbortOnDrop<()> {
    ambit_rt::spawn_abortable(name, ambit_rt::end_process_on_panic(name, task))
}

/// Passes each message or error of the agent's stream to `on_answer`, and reopens the stream whenever it ends. Never
/// returns.
pub(super) async fn subscribe_with_retry<M, F>(
    api: &Arc<str>,
    open_stream: impl Fn() -> F,
    mut on_answer: impl FnMut(Result<M, SpiffeError>),
) where
    F: Future<Output = Result<Response<Streaming<M>>, Status>>,
{
    let mut backoff = Backoff::new(BACKOFF_INITIAL, BACKOFF_CAP, 0.2);
    loop {
        let error = match open_stream().await {
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match stream.message().await {
                        Ok(Some(message)) => {
                            backoff.reset();
                            on_answer(Ok(message));
                        }
                        Ok(None) => break SpiffeError::StreamEnded(api.clone()),
                        Err(status) => break status_error(api, status),
                    }
                }
            }
            Err(status) => status_error(api, status),
        };
        let delay = backoff.next_delay(rand::rng().random());
        tracing::debug!(%error, retry_in = ?delay, "no stream of the SPIFFE agent");
        on_answer(Err(error));
        tokio::time::sleep(delay).await;
    }
}

fn status_error(api: &Arc<str>, status: Status) -> SpiffeError {
    SpiffeError::Status {
        api: api.clone(),
        status: Box::new(status),
    }
}

/// Returns the trust domain of a SPIFFE ID; a bare trust domain is returned unchanged.
pub(super) fn trust_domain(id: &str) -> &str {
    let rest = id.strip_prefix("spiffe://").unwrap_or(id);
    rest.split_once('/').map_or(rest, |(domain, _)| domain)
}

/// Decodes bundles of root certificates. Bundles that cannot be decoded are skipped: their trust domains are not
/// accepted.
pub(super) fn parse_bundles(api: &str, encoded: &HashMap<String, Bytes>) -> Bundles {
    let mut bundles = Bundles::new();
    for (domain, der) in encoded {
        let domain = trust_domain(domain);
        match split_concatenated_der(der) {
            Ok(roots) => {
                bundles.insert(domain.to_owned(), roots);
            }
            Err(error) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                tracing::warn!(
                    api,
                    domain,
                    error,
                    "the bundle of a trust domain cannot be used"
                );
            }
        }
    }
    bundles
}
