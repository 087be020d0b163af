//! Fetching a key set over HTTP. The author of an object chooses the address, and its server is not trusted: time and
//! size are bounded, and a condition contains only the kind of an error, nothing of a response.

use std::{io, sync::Arc};

use ambit_derive::{KeyForm, KeySource};
use ambit_egress::{ConnectError, Guard};
use ambit_jwt::{KeySet, KeySetError, MAX_KEY_SET};
use ambit_model::ArcStr;
use http::{
    Request, StatusCode, Uri,
    header::{ACCEPT, HOST, LOCATION, USER_AGENT},
};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::{
    bundle::{self, BundleError},
    callees::{CalleeError, Callees},
};

/// Maximum redirects of a fetch.
const MAX_REDIRECTS: usize = 3;
/// Path of an issuer's discovery document.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Fetches key sets.
pub(super) struct Fetcher {
    tls: TlsConnector,
    guard: Guard,
    callees: Callees,
}

/// Error of fetching a key set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
    #[error("{0:?} is no address of http or https")]
    Address(String),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Callee(#[from] CalleeError),
    #[error("no TLS with {0}: {1}")]
    Tls(String, #[source] io::Error),
    #[error("the response is not valid HTTP")]
    Http(#[source] hyper::Error),
    #[error("the response is truncated, or longer than {MAX_KEY_SET} bytes")]
    Body,
    #[error("the response has the status {0}")]
    Status(StatusCode),
    #[error("the response redirects too often, or from https to http")]
    Redirect,
    #[error("the issuer's configuration names no jwks_uri, or another issuer")]
    Discovery,
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    KeySet(#[from] KeySetError),
    #[error("the set has no key that can be used")]
    NoKeys,
}

impl Fetcher {
    /// One that believes the authorities of the system, and calls what the guard and the objects of the mesh let it.
    pub(super) fn with_system_roots(guard: Guard, callees: Callees) -> Self {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "a certificate authority of the system cannot be read");
        }
        roots.add_parsable_certificates(found.certs);
        Self::new(roots, guard, callees)
    }

    fn new(roots: RootCertStore, guard: Guard, callees: Callees) -> Self {
        let config = ClientConfig::builder().with_root_certificates(roots);
        Self {
            tls: TlsConnector::from(Arc::new(config.with_no_client_auth())),
            guard,
            callees,
        }
    }

    /// The key set, in which there is a key that can be used; of a trust bundle its roots, as PEM.
    pub(super) async fn key_set(&self, source: &KeySource) -> Result<String, FetchError> {
        let fetching = async {
            let caller = source.namespace.as_ref();
            let url = match source.form {
                KeyForm::KeySet | KeyForm::TrustBundle => source.url.to_string(),
                KeyForm::Issuer => self.discover(&source.url, caller).await?,
            };
            let text = self.get(&url, caller).await?;
            if source.form == KeyForm::TrustBundle {
                return Ok(bundle::roots(&text)?);
            }
            let keys = KeySet::read(&text)?;
            if keys.is_empty() {
                return Err(FetchError::NoKeys);
            }
            String::from_utf8(text).map_err(|_| FetchError::NoKeys)
        };
        let fetched = tokio::time::timeout(source.timeout, fetching).await;
        fetched.map_err(|_| FetchError::Timeout(source.timeout))?
    }

    /// Address of the key set in an issuer's discovery document.
    async fn discover(&self, issuer: &str, caller: Option<&ArcStr>) -> Result<String, FetchError> {
        let url = format!("{}{DISCOVERY}", issuer.trim_end_matches('/'));
        let text = self.get(&url, caller).await?;
        let document: serde_json::Value =
            serde_json::from_slice(&text).map_err(|_| FetchError::Discovery)?;
        let text = |name: &str| document.get(name).and_then(serde_json::Value::as_str);
        // It names its issuer (OpenID Connect Discovery 1.0, section 4.3).
        if text("issuer") != Some(issuer) {
            return Err(FetchError::Discovery);
        }
        let keys = text("jwks_uri").ok_or(FetchError::Discovery)?;
        if url.starts_with("https:") && !keys.starts_with("https:") {
            return Err(FetchError::Redirect);
        }
        Ok(keys.to_owned())
    }

    async fn get(&self, url: &str, caller: Option<&ArcStr>) -> Result<Vec<u8>, FetchError> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            match self.get_once(&url, caller).await? {
                Answer::Body(body) => return Ok(body),
                Answer::Elsewhere(to) => {
                    if url.starts_with("https:") && !to.starts_with("https:") {
                        return Err(FetchError::Redirect);
                    }
                    url = to;
                }
            }
        }
        Err(FetchError::Redirect)
    }

    async fn get_once(&self, url: &str, caller: Option<&ArcStr>) -> Result<Answer, FetchError> {
        let no_address = || FetchError::Address(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| no_address())?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(no_address()),
        };
        let authority = uri.authority().ok_or_else(no_address)?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority
            .port_u16()
            .unwrap_or(if is_tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::get(path)
            .header(HOST, authority.as_str())
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "ambit-control")
            .body(Empty::<bytes::Bytes>::new())
            .map_err(|_| no_address())?;
        let mut addresses = ambit_egress::resolve(&self.guard, &host, port).await?;
        if let Some(namespace) = caller {
            addresses = self.callees.allowed(namespace, &host, addresses).await?;
        }
        let stream = ambit_egress::connect_to(&host, &addresses).await?;
        if !is_tls {
            return exchange(stream, request).await;
        }
        let name = ServerName::try_from(host.clone()).map_err(|_| no_address())?;
        let stream = self.tls.connect(name, stream).await;
        let stream = stream.map_err(|error| FetchError::Tls(host, error))?;
        exchange(stream, request).await
    }
}

enum Answer {
    Body(Vec<u8>),
    Elsewhere(String),
}

async fn exchange<IO>(io: IO, request: Request<Empty<bytes::Bytes>>) -> Result<Answer, FetchError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shake = http1::Builder::new().handshake(TokioIo::new(io)).await;
    let (mut sender, connection) = shake.map_err(FetchError::Http)?;
    let answering = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(FetchError::Http)?;
        let status = response.status();
        if status.is_redirection() {
            let to = response
                .headers()
                .get(LOCATION)
                .and_then(|to| to.to_str().ok());
            return to
                .map(|to| Answer::Elsewhere(to.to_owned()))
                .ok_or(FetchError::Redirect);
        }
        if status != StatusCode::OK {
            return Err(FetchError::Status(status));
        }
        let body = Limited::new(response.into_body(), MAX_KEY_SET)
            .collect()
            .await;
        let body = body.map_err(|_| FetchError::Body)?;
        Ok(Answer::Body(body.to_bytes().to_vec()))
    };
    let mut answering = std::pin::pin!(answering);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        biased;
        answer = &mut answering => answer,
        ended = &mut connection => {
            ended.map_err(FetchError::Http)?;
            // What it brought is still to be read.
            answering.await
        }
    }
}

#[cfg(test)]
mod tests;
