//! A small client of HTTP/1.1: requests without bodies, redirects, and answers of bounded size.

use std::{io, sync::Arc};

use ambit_egress::{ConnectError, Guard};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri,
    header::{AUTHORIZATION, HOST, LOCATION, USER_AGENT},
};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, rustls};

use super::sources::{Caller, SourceError};

/// Maximum redirects that are followed.
const MAX_REDIRECTS: usize = 5;

/// Requests go to the addresses that the guard lets it call, also after redirects.
#[derive(Clone, Debug)]
pub(super) struct Client {
    guard: Guard,
    /// TLS configuration, created on first use.
    tls: Arc<Mutex<Option<Arc<rustls::ClientConfig>>>>,
    /// The plugin that is bound by what the mesh lets its namespace; none for the administrator's.
    caller: Option<Caller>,
}

/// Response of bounded size.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    /// Whether no redirect changed the server.
    pub(super) is_of_first: bool,
    url: String,
}

/// Error of a request without a response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("{0:?} is no URL of a server")]
    Url(String),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("no TLS with {host}")]
    Tls {
        host: String,
        #[source]
        error: io::Error,
    },
    #[error("{host} does not speak HTTP as it should")]
    Http {
        host: String,
        #[source]
        error: hyper::Error,
    },
    #[error("{url} answers with {status}")]
    Status { url: String, status: StatusCode },
    #[error("{url} is larger than {limit} bytes")]
    TooLarge { url: String, limit: usize },
    #[error("the response of {url} is truncated")]
    Broken { url: String },
    #[error("more than {MAX_REDIRECTS} redirects")]
    Redirects,
    #[error("a redirect from https to http is not followed")]
    Downgrade,
    #[error("there are no roots of certificates on this system")]
    Roots,
}

impl Answer {
    pub(super) fn successful(self) -> Result<Self, ClientError> {
        if self.status == StatusCode::OK {
            return Ok(self);
        }
        Err(ClientError::Status {
            url: self.url,
            status: self.status,
        })
    }
}

impl Client {
    pub(super) fn new(guard: Guard) -> Self {
        Self {
            guard,
            tls: Arc::default(),
            caller: None,
        }
    }

    /// Restricts the client to a plugin's namespace.
    pub(super) fn for_plugin(&self, caller: Caller) -> Self {
        Self {
            caller: Some(caller),
            ..self.clone()
        }
    }

    /// Connects to an address of a host that may be called.
    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, ClientError> {
        let mut addresses = ambit_egress::resolve(&self.guard, host, port).await?;
        if let Some(caller) = &self.caller {
            let mut refused = None;
            for address in std::mem::take(&mut addresses) {
                match caller.may_fetch_at(address.ip()).await {
                    Ok(()) => addresses.push(address),
                    Err(error) => refused = Some(error),
                }
            }
            if let (Some(error), true) = (refused, addresses.is_empty()) {
                return Err(error.into());
            }
        }
        Ok(ambit_egress::connect_to(host, &addresses).await?)
    }

    /// Sends a GET request, following redirects. Credentials are sent to the first server only.
    pub(super) async fn get(
        &self,
        url: &str,
        headers: &[(HeaderName, HeaderValue)],
        limit: usize,
    ) -> Result<Answer, ClientError> {
        let mut uri = parse(url)?;
        let first = uri.authority().cloned();
        let mut is_first = true;
        for _ in 0..=MAX_REDIRECTS {
            // After a redirect to another server, credentials are no longer sent.
            is_first &= uri.authority() == first.as_ref();
            let sent = headers
                .iter()
                .filter(|(name, _)| is_first || *name != AUTHORIZATION);
            let mut answer = self.once(&uri, sent, limit).await?;
            answer.is_of_first = is_first;
            let location = answer.headers.get(LOCATION).and_then(|to| to.to_str().ok());
            let (true, Some(location)) = (answer.status.is_redirection(), location) else {
                return Ok(answer);
            };
            uri = redirected(&uri, location)?;
        }
        Err(ClientError::Redirects)
    }

    async fn once(
        &self,
        uri: &Uri,
        headers: impl Iterator<Item = &(HeaderName, HeaderValue)> + Send,
        limit: usize,
    ) -> Result<Answer, ClientError> {
        let host = uri.host().unwrap_or_default().to_owned();
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let failed = |error| ClientError::Tls {
            host: host.clone(),
            error,
        };
        let name = host.trim_matches(['[', ']']);
        let stream = self.connect(name, port).await?;
        let stream: Box<dyn Io> = if is_tls {
            let invalid = |_| ClientError::Url(named(uri));
            let server = ServerName::try_from(name.to_owned()).map_err(invalid)?;
            let connector = TlsConnector::from(self.tls()?);
            Box::new(connector.connect(server, stream).await.map_err(failed)?)
        } else {
            Box::new(stream)
        };
        let wrong = |error| ClientError::Http {
            host: host.clone(),
            error,
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(wrong)?;
        let _driving = ambit_rt::spawn_abortable("module download", async move {
            // What breaks it breaks the answer.
            let _ended = connection.await;
        });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.uri_mut() = path.parse().map_err(|_| ClientError::Url(named(uri)))?;
        let all = request.headers_mut();
        all.extend(headers.cloned());
        let authority = uri.authority().map(|authority| authority.as_str());
        if let Ok(host) = HeaderValue::from_str(authority.unwrap_or_default()) {
            all.insert(HOST, host);
        }
        all.insert(USER_AGENT, HeaderValue::from_static("ambit-waypoint"));
        let response = sender.send_request(request).await.map_err(wrong)?;
        let (parts, body) = response.into_parts();
        let url = named(uri);
        let body = Limited::new(body, limit).collect().await.map_err(|error| {
            if error.downcast_ref::<LengthLimitError>().is_some() {
                return ClientError::TooLarge {
                    url: url.clone(),
                    limit,
                };
            }
            ClientError::Broken { url: url.clone() }
        })?;
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.to_bytes().to_vec(),
            is_of_first: true,
            url,
        })
    }

    fn tls(&self) -> Result<Arc<rustls::ClientConfig>, ClientError> {
        let mut made = self.tls.lock();
        if let Some(made) = &*made {
            return Ok(made.clone());
        }
        let mut roots = rustls::RootCertStore::empty();
        for root in rustls_native_certs::load_native_certs().certs {
            // An unreadable one is skipped.
            let _added = roots.add(root);
        }
        if roots.is_empty() {
            return Err(ClientError::Roots);
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions();
        let config = config.map_err(|_| ClientError::Roots)?;
        let config = config.with_root_certificates(roots).with_no_client_auth();
        Ok(made.insert(Arc::new(config)).clone())
    }
}

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

fn parse(url: &str) -> Result<Uri, ClientError> {
    let uri: Option<Uri> = url.parse().ok();
    let is_server = |uri: &Uri| {
        let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
        scheme && uri.host().is_some_and(|host| !host.is_empty())
    };
    uri.filter(is_server)
        .ok_or_else(|| ClientError::Url(without_query(url)))
}

fn without_query(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    url.get(..end).unwrap_or_default().to_owned()
}

/// A URL for error messages: the target of a redirect may have a signature in its query that grants access.
fn named(uri: &Uri) -> String {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let scheme = uri.scheme_str().unwrap_or_default();
    format!("{scheme}://{authority}{}", uri.path())
}

/// Target of a redirect: never from TLS to plaintext.
fn redirected(from: &Uri, location: &str) -> Result<Uri, ClientError> {
    let to = if location.starts_with('/') && !location.starts_with("//") {
        let (scheme, authority) = (from.scheme_str(), from.authority());
        let (Some(scheme), Some(authority)) = (scheme, authority) else {
            return Err(ClientError::Url(without_query(location)));
        };
        parse(&format!("{scheme}://{authority}{location}"))?
    } else {
        parse(location)?
    };
    if from.scheme_str() == Some("https") && to.scheme_str() != Some("https") {
        return Err(ClientError::Downgrade);
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::{super::scripted::Scripted, *};

    /// One that may call servers on this machine.
    fn near() -> Client {
        Client::new(Guard::new(vec!["127.0.0.1/32".parse().unwrap()]))
    }

    #[tokio::test]
    async fn forbidden_addresses_are_not_called_by_redirects_either() {
        let server = Scripted::new(|path: &str| match path.strip_prefix("/to/") {
            Some(to) => format!("307 There\r\nlocation: http://{to}"),
            None => "200 OK".to_owned(),
        });
        let port = server.address.port();
        let refused = async |client: &Client, url: &str| {
            let error = client.get(url, &[], 10).await.unwrap_err();
            matches!(error, ClientError::Connect(ConnectError::Forbidden { .. }))
        };
        let own = format!("http://{}/x", server.address);
        assert!(refused(&Client::new(Guard::default()), &own).await);
        assert_eq!(server.received(), []);
        for host in [
            "127.0.0.2",
            "[::1]",
            "169.254.169.254",
            "[64:ff9b::a9fe:a9fe]",
        ] {
            let to = format!("http://{}/to/{host}:{port}/x", server.address);
            assert!(refused(&near(), &to).await, "{host}");
        }
    }

    #[tokio::test]
    async fn credentials_go_to_the_first_server_until_another_had_a_say() {
        // Leads to where the path says.
        let leads = |path: &str| match path.strip_prefix("/to/") {
            Some(to) => format!("307 There\r\nlocation: http://{to}"),
            None => "200 OK".to_owned(),
        };
        let (first, other) = (Scripted::new(leads), Scripted::new(leads));
        let (own, elsewhere) = (first.address, other.address);
        let secret = [(AUTHORIZATION, HeaderValue::from_static("Basic c2VjcmV0"))];
        let client = near();
        let get = async |path: &str| {
            let url = format!("http://{own}{path}");
            let answer = client.get(&url, &secret, 10).await.unwrap();
            answer.successful().unwrap().is_of_first
        };
        assert!(get(&format!("/to/{own}/end")).await);
        assert!(!get(&format!("/to/{elsewhere}/to/{own}/back")).await);
        let received = |path: &str, has: bool| (path.to_owned(), has);
        assert_eq!(
            first.received(),
            [
                received(&format!("/to/{own}/end"), true),
                received("/end", true),
                received(&format!("/to/{elsewhere}/to/{own}/back"), true),
                received("/back", false),
            ]
        );
        assert_eq!(
            other.received(),
            [received(&format!("/to/{own}/back"), false)]
        );
    }

    #[tokio::test]
    async fn errors_tell_no_signatures_that_redirects_have() {
        let server = Scripted::new(|path: &str| match path {
            "/image" => "307 There\r\nlocation: /blob?signature=secret".to_owned(),
            "/nowhere" => "307 There\r\nlocation: ftp://x/?signature=secret".to_owned(),
            _ => "403 Forbidden".to_owned(),
        });
        let at = |path: &str| format!("http://{}{path}", server.address);
        let client = near();
        let refused = client.get(&at("/image"), &[], 10).await.unwrap();
        let refused = refused.successful().unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!("{} answers with 403 Forbidden", at("/blob"))
        );
        let nowhere = client.get(&at("/nowhere"), &[], 10).await.unwrap_err();
        assert_eq!(nowhere.to_string(), "\"ftp://x/\" is no URL of a server");
    }

    #[test]
    fn redirects_lead_to_servers_and_never_out_of_tls() {
        let from: Uri = "https://a.example:1/x?y".parse().unwrap();
        let to = |location| redirected(&from, location).map(|to| to.to_string());
        assert_eq!(to("/z").unwrap(), "https://a.example:1/z");
        assert_eq!(to("https://b.example/").unwrap(), "https://b.example/");
        assert!(matches!(
            to("http://a.example/"),
            Err(ClientError::Downgrade)
        ));
        for wrong in ["", "z", "file:///etc/passwd", "//b.example/"] {
            assert!(matches!(to(wrong), Err(ClientError::Url(_))), "{wrong:?}");
        }
    }
}
