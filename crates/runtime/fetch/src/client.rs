//! HTTP/1.1 client: requests without bodies, redirects, and responses of bounded size.

mod tls;

use std::net::IpAddr;

use ambit_egress::Guard;
use ambit_rt::AbortOnDrop;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri,
    header::{AUTHORIZATION, HOST, LOCATION, USER_AGENT},
};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use crate::{
    Admission,
    error::{FetchError, MAX_REDIRECTS},
    url::{format_without_query, parse, redirect_target},
};
use tls::LazyTlsConfig;

/// HTTP client that calls only addresses that its guard permits. Clones share the TLS configuration.
#[derive(Clone, Debug)]
pub struct Client {
    guard: Guard,
    user_agent: &'static str,
    tls: LazyTlsConfig,
}

/// Parameters of a GET request.
#[derive(Clone, Copy, Debug)]
pub struct Get<'a> {
    /// URL with the scheme http or https.
    pub url: &'a str,
    /// Headers in addition to `host` and `user-agent`. `authorization` is sent to the first server only, and not
    /// after a redirect to another one.
    pub headers: &'a [(HeaderName, HeaderValue)],
    /// Maximum size of the response body, in bytes.
    pub limit: usize,
}

/// Response with its complete body.
#[derive(Debug)]
pub struct Response {
    /// Status of the response, after redirects were followed.
    pub status: StatusCode,
    /// Headers of the response.
    pub headers: HeaderMap,
    /// Complete body of the response.
    pub body: Vec<u8>,
    /// Whether the response is from the URL's own server, since no redirect led to another one.
    pub is_from_first_host: bool,
    url: String,
}

impl Response {
    /// Returns the response if its status is 200.
    ///
    /// # Errors
    ///
    /// When it has another status.
    pub fn error_for_status(self) -> Result<Self, FetchError> {
        if self.status == StatusCode::OK {
            return Ok(self);
        }
        Err(FetchError::Status {
            url: self.url,
            status: self.status,
        })
    }
}

impl Client {
    /// Creates a client that verifies servers by the system's trust store, which is read at the first use of TLS.
    #[must_use]
    pub fn new(guard: Guard, user_agent: &'static str) -> Self {
        Self {
            guard,
            user_agent,
            tls: LazyTlsConfig::default(),
        }
    }

    /// Sends a GET request and follows redirects. The caller sets the timeout.
    ///
    /// # Errors
    ///
    /// When a server may not be called or cannot be reached, violates HTTP, or its response is too large.
    pub async fn get(
        &self,
        get: Get<'_>,
        admission: &impl Admission,
    ) -> Result<Response, FetchError> {
        let mut uri = parse(get.url)?;
        let first = uri.authority().cloned();
        let mut is_first = true;
        for _ in 0..=MAX_REDIRECTS {
            is_first &= uri.authority() == first.as_ref();
            let stream = self.connect(&uri, admission).await?;
            let exchange = self.send(stream, &uri, get.headers, is_first).await?;
            match exchange.location() {
                Some(location) => uri = redirect_target(&uri, location)?,
                None => {
                    return exchange
                        .read(get.limit, format_without_query(&uri), is_first)
                        .await;
                }
            }
        }
        Err(FetchError::TooManyRedirects)
    }

    /// Connects to the server of a URL, with TLS if the scheme is https.
    async fn connect(
        &self,
        uri: &Uri,
        admission: &impl Admission,
    ) -> Result<Box<dyn Io>, FetchError> {
        let is_tls = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let stream = self.connect_to(host, port, admission).await?;
        if !is_tls {
            return Ok(Box::new(stream));
        }
        let server = rustls_pki_types::ServerName::try_from(host.to_owned());
        let server = server.map_err(|_| FetchError::InvalidUrl(format_without_query(uri)))?;
        let stream = self.tls.connector()?.connect(server, stream).await;
        let stream = stream.map_err(|error| FetchError::Tls {
            host: host.to_owned(),
            error,
        })?;
        Ok(Box::new(stream))
    }

    /// Connects to a host, at an address that guard and admission permit.
    async fn connect_to<A: Admission>(
        &self,
        host: &str,
        port: u16,
        admission: &A,
    ) -> Result<TcpStream, FetchError> {
        let mut admitted = Vec::new();
        let mut refused = None;
        for address in ambit_egress::resolve(&self.guard, host, port).await? {
            match check_admission(admission, host, address.ip()).await {
                Ok(()) => admitted.push(address),
                Err(error) => refused = Some(error),
            }
        }
        if let (Some(error), true) = (refused, admitted.is_empty()) {
            return Err(FetchError::Refused(Box::new(error)));
        }
        Ok(ambit_egress::connect_to(host, &admitted).await?)
    }

    /// Sends a request, and waits for the response headers.
    async fn send(
        &self,
        stream: Box<dyn Io>,
        uri: &Uri,
        headers: &[(HeaderName, HeaderValue)],
        is_first: bool,
    ) -> Result<UnreadResponse, FetchError> {
        let host = uri.host().unwrap_or_default();
        let wrong = |error| FetchError::Http {
            host: host.to_owned(),
            error,
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.uri_mut() = path
            .parse()
            .map_err(|_| FetchError::InvalidUrl(format_without_query(uri)))?;
        let sent = request.headers_mut();
        for (name, value) in headers {
            if is_first || *name != AUTHORIZATION {
                sent.append(name, value.clone());
            }
        }
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let authority = HeaderValue::from_str(authority);
        sent.insert(
            HOST,
            authority.map_err(|_| FetchError::InvalidUrl(format_without_query(uri)))?,
        );
        sent.insert(USER_AGENT, HeaderValue::from_static(self.user_agent));
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(wrong)?;
        let connection = ambit_rt::spawn_abortable("fetch", async move {
            // An error of the connection is also an error of the response.
            let _ended = connection.await;
        });
        Ok(UnreadResponse {
            response: sender.send_request(request).await.map_err(wrong)?,
            _connection: connection,
        })
    }
}

/// Checks that the admission permits an address, and each IPv4 address that it embeds, so that another notation
/// cannot bypass it.
async fn check_admission<A: Admission>(
    admission: &A,
    host: &str,
    ip: IpAddr,
) -> Result<(), A::Error> {
    for ip in ambit_egress::embedded_addresses(ip).into_iter().flatten() {
        admission.admit(host, ip.to_canonical()).await?;
    }
    Ok(())
}

/// Response whose body has not been read, with its connection. Dropping the value closes the connection.
struct UnreadResponse {
    response: http::Response<Incoming>,
    _connection: AbortOnDrop<()>,
}

impl UnreadResponse {
    /// Returns the `Location` of a redirect; `None` for other responses.
    fn location(&self) -> Option<&str> {
        let is_redirect = self.response.status().is_redirection();
        let location = self.response.headers().get(LOCATION);
        let location = location.filter(|_| is_redirect)?;
        location.to_str().ok()
    }

    async fn read(
        self,
        limit: usize,
        url: String,
        is_from_first_host: bool,
    ) -> Result<Response, FetchError> {
        let (head, body) = self.response.into_parts();
        let body = match Limited::new(body, limit).collect().await {
            Ok(body) => body.to_bytes().to_vec(),
            Err(error) if error.is::<LengthLimitError>() => {
                return Err(FetchError::TooLarge { url, limit });
            }
            Err(_) => return Err(FetchError::Truncated { url }),
        };
        Ok(Response {
            status: head.status,
            headers: head.headers,
            body,
            is_from_first_host,
            url,
        })
    }
}

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

#[cfg(test)]
mod tests;
