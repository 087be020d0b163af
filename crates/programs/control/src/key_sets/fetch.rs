//! Fetches a key set over HTTP. The author of an object chooses the address, and its server is not trusted: time and
//! size are limited, and a condition contains only the kind of an error, nothing of a response.

use ambit_derive::{KeyFormat, KeySource};
use ambit_egress::ConnectError;
use ambit_fetch::{Client, Get};
use ambit_jwt::{KeySet, KeySetError, MAX_KEY_SET_BYTES};
use ambit_model::ArcStr;
use http::{HeaderValue, StatusCode, header::ACCEPT};

use super::{
    bundle::{self, BundleError},
    callees::CalleeChecker,
};

/// Path of an issuer's OpenID Connect discovery document.
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// Fetches key sets and trust bundles.
pub(super) struct Fetcher {
    client: Client,
    callees: CalleeChecker,
}

/// Reason why a key set could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
    #[error("{0:?} is no address of http or https")]
    InvalidUrl(String),
    #[error(transparent)]
    Connect(ConnectError),
    #[error(transparent)]
    ForbiddenCallee(Box<dyn std::error::Error + Send + Sync>),
    #[error("no TLS with {0}: {1}")]
    Tls(String, #[source] std::io::Error),
    #[error("the response is not valid HTTP")]
    Http(#[source] hyper::Error),
    #[error("the response is truncated")]
    Truncated,
    #[error("the response is longer than {MAX_KEY_SET_BYTES} bytes")]
    TooLarge,
    #[error("the response has the status {0}")]
    Status(StatusCode),
    #[error("the response redirects too often, or from https to http")]
    Redirect,
    #[error("this system has no certificate authorities")]
    NoSystemRoots,
    #[error("the issuer's configuration names no jwks_uri, or another issuer")]
    InvalidDiscoveryDocument,
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    KeySet(#[from] KeySetError),
    #[error("the set has no key that can be used")]
    NoKeys,
}

/// Omits the URL from the error, since a redirect may have chosen it.
impl From<ambit_fetch::FetchError> for FetchError {
    fn from(error: ambit_fetch::FetchError) -> Self {
        match error {
            ambit_fetch::FetchError::InvalidUrl(url) => Self::InvalidUrl(url),
            ambit_fetch::FetchError::Connect(error) => Self::Connect(error),
            ambit_fetch::FetchError::Refused(error) => Self::ForbiddenCallee(error),
            ambit_fetch::FetchError::Tls { host, error } => Self::Tls(host, error),
            ambit_fetch::FetchError::Http { error, .. } => Self::Http(error),
            ambit_fetch::FetchError::Status { status, .. } => Self::Status(status),
            ambit_fetch::FetchError::TooLarge { .. } => Self::TooLarge,
            ambit_fetch::FetchError::Truncated { .. } => Self::Truncated,
            ambit_fetch::FetchError::TooManyRedirects | ambit_fetch::FetchError::TlsDowngrade => {
                Self::Redirect
            }
            ambit_fetch::FetchError::NoTrustStore => Self::NoSystemRoots,
        }
    }
}

impl Fetcher {
    /// Creates a fetcher that calls only addresses that the client's guard and `callees` permit.
    pub(super) fn new(client: Client, callees: CalleeChecker) -> Self {
        Self { client, callees }
    }

    /// Fetches a key set, which must have a usable key; for a trust bundle, returns the roots as PEM.
    pub(super) async fn fetch_key_set(&self, source: &KeySource) -> Result<String, FetchError> {
        let fetching = async {
            let caller = source.namespace.as_ref();
            let url = match source.format {
                KeyFormat::KeySet | KeyFormat::TrustBundle => source.url.to_string(),
                KeyFormat::Issuer => self.discover_key_set_url(&source.url, caller).await?,
            };
            let text = self.get(&url, caller).await?;
            if source.format == KeyFormat::TrustBundle {
                return Ok(bundle::parse_roots(&text)?);
            }
            let keys = KeySet::parse_jwks(&text)?;
            if keys.is_empty() {
                return Err(FetchError::NoKeys);
            }
            String::from_utf8(text).map_err(|_| FetchError::NoKeys)
        };
        let fetched = tokio::time::timeout(source.timeout, fetching).await;
        fetched.map_err(|_| FetchError::Timeout(source.timeout))?
    }

    /// Returns the URL of the key set (`jwks_uri`) from an issuer's discovery document.
    async fn discover_key_set_url(
        &self,
        issuer: &str,
        caller: Option<&ArcStr>,
    ) -> Result<String, FetchError> {
        let url = format!("{}{DISCOVERY_PATH}", issuer.trim_end_matches('/'));
        let text = self.get(&url, caller).await?;
        let document: serde_json::Value =
            serde_json::from_slice(&text).map_err(|_| FetchError::InvalidDiscoveryDocument)?;
        let text = |name: &str| document.get(name).and_then(serde_json::Value::as_str);
        // The document must name its issuer (OpenID Connect Discovery 1.0, section 4.3).
        if text("issuer") != Some(issuer) {
            return Err(FetchError::InvalidDiscoveryDocument);
        }
        let keys = text("jwks_uri").ok_or(FetchError::InvalidDiscoveryDocument)?;
        if url.starts_with("https:") && !keys.starts_with("https:") {
            return Err(FetchError::Redirect);
        }
        Ok(keys.to_owned())
    }

    async fn get(&self, url: &str, caller: Option<&ArcStr>) -> Result<Vec<u8>, FetchError> {
        let get = Get {
            url,
            headers: &[(ACCEPT, HeaderValue::from_static("application/json"))],
            limit: MAX_KEY_SET_BYTES,
        };
        let callees = caller.map(|namespace| self.callees.for_namespace(namespace));
        let response = self.client.get(get, &callees).await?;
        Ok(response.error_for_status()?.body)
    }
}

#[cfg(test)]
mod tests;
