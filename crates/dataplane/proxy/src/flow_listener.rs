//! Port on which the control plane reads flow events for authorized users: `GET /flows` over mTLS, under the proxy's
//! own identity. Every other client is refused in the handshake or right after it.

use std::{io, sync::Arc, time::Duration};

use ambit_certificates::Certificates;
use ambit_model::Identity;
use ambit_rt::{
    DrainWatcher, ErrorChain, SlotLimits,
    handshakes::{self, AdmittedListener, HandshakeCloseReason, HandshakeLimits},
    http::{Request, Response, method_not_allowed, not_found},
};
use ambit_telemetry::{Flows, ReaderKind};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::flow_stream;

/// Limits of TLS handshakes on the port of flow events. A handshake takes longer while the proxy's own certificate is
/// fetched.
const HANDSHAKE_LIMITS: HandshakeLimits = HandshakeLimits {
    slots: SlotLimits {
        total: 32,
        per_source: 8,
        protected_per_source: 2,
    },
    per_second: 5,
    burst: 20,
    timeout: Duration::from_secs(10),
    queue: 1,
};

/// Identities of the server and the only accepted client on the flow event port.
#[derive(Clone, Debug)]
pub struct FlowAccess {
    /// Identity whose certificate the proxy presents as server.
    pub proxy_identity: Identity,
    /// Identity of the control plane, the only client that is accepted.
    pub reader_identity: Identity,
}

/// Responds to a request of the control plane on the port of flow events.
pub(crate) fn respond(flows: &Arc<Flows>, request: &Request) -> Response {
    match (request.uri().path(), request.method()) {
        (ambit_flow::FLOWS_PATH, &http::Method::GET) => {
            flow_stream::respond(flows, ReaderKind::ControlPlane, request)
        }
        (ambit_flow::FLOWS_PATH, _) => method_not_allowed("GET"),
        _ => not_found(),
    }
}

/// Accepts connections of the control plane on the flow event port until the drain begins.
pub(crate) fn start(
    listener: TcpListener,
    access: FlowAccess,
    certificates: Certificates,
    drain: DrainWatcher,
) -> AdmittedListener<TlsStream<TcpStream>> {
    let gatekeeper = Arc::new(ReaderAuthenticator {
        access,
        certificates,
    });
    let admission = move |stream| {
        let gatekeeper = gatekeeper.clone();
        async move {
            let admitted = gatekeeper.authenticate(stream).await;
            admitted.map_err(|refused| ErrorChain(&refused).to_string())
        }
    };
    // Refusals are logged, and there is nothing to count them by.
    handshakes::accept_with_handshake(
        "flow events",
        listener,
        HANDSHAKE_LIMITS,
        drain,
        admission,
        drop::<HandshakeCloseReason>,
    )
    .into()
}

/// Reason why a connection to the port of flow events is refused.
#[derive(Debug, thiserror::Error)]
enum ReaderRefusal {
    #[error("there is no certificate for the proxy's own identity")]
    Certificate(#[source] ambit_certificates::CertError),
    #[error("the certificate cannot be used")]
    Config(#[source] rustls::Error),
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
    #[error("the client is {0:?}, not the control plane")]
    UnexpectedIdentity(Option<Identity>),
}

/// Performs the TLS handshakes of clients, and checks their identities.
struct ReaderAuthenticator {
    access: FlowAccess,
    certificates: Certificates,
}

impl ReaderAuthenticator {
    async fn authenticate(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, ReaderRefusal> {
        let own = self.certificates.get(&self.access.proxy_identity).await;
        let own = own.map_err(ReaderRefusal::Certificate)?;
        let config = own.server_config().map_err(ReaderRefusal::Config)?;
        let mut config = ServerConfig::clone(&config);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let accept = TlsAcceptor::from(Arc::new(config)).accept(stream);
        let stream = accept.await.map_err(ReaderRefusal::Handshake)?;
        let chain = stream.get_ref().1.peer_certificates();
        let peer = ambit_tls::peer_identity(chain.unwrap_or_default());
        match peer.as_ref() == Some(&self.access.reader_identity) {
            true => Ok(stream),
            false => Err(ReaderRefusal::UnexpectedIdentity(peer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ambit_certificates::CertificatesOptions;
    use ambit_rt::{drain, http as rt_http};
    use ambit_testkit::{FakeCa, Pki};
    use ambit_tls::WorkloadCert;
    use rustls::{ClientConfig, pki_types::ServerName};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::TlsConnector;

    use super::*;

    fn identity(account: &str) -> Identity {
        Identity::new("td", "istio-system", account)
    }

    /// Starts the flow event port with certificates of the test CA `pki`.
    async fn serve(pki: Arc<Pki>) -> (SocketAddr, ambit_rt::Drain) {
        let listener = rt_http::bind(([127, 0, 0, 1], 0).into(), "test").await;
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        let ca = FakeCa::new(pki, Duration::from_secs(3600));
        let certificates = Certificates::start(Arc::new(ca), CertificatesOptions::default());
        let access = FlowAccess {
            proxy_identity: identity("ztunnel"),
            reader_identity: identity("ambit-control"),
        };
        let (drain, watcher) = drain::channel();
        let listener = start(listener, access, certificates, watcher.clone());
        let flows = Arc::<Flows>::default();
        let respond = move |request| {
            let flows = flows.clone();
            async move { respond(&flows, &request) }
        };
        let options = rt_http::ServerOptions::default();
        let serve = rt_http::serve("test", listener, options, watcher, respond);
        ambit_rt::spawn("test", serve);
        (address, drain)
    }

    /// Sends a request for flow events and returns the response's status line; empty if the server closes before it.
    async fn status(address: SocketAddr, config: ClientConfig) -> String {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::IpAddress(address.ip().into());
        let Ok(mut stream) = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
        else {
            return String::new();
        };
        let request = b"GET /flows?confined=true&namespace=shop HTTP/1.1\r\nhost: x\r\n\r\n";
        // A refused client may find the connection closed here already.
        stream.write_all(request).await.ok();
        let mut response = [0; 64];
        let length = stream.read(&mut response).await.unwrap_or(0);
        let text = String::from_utf8_lossy(&response[..length]).into_owned();
        text.lines().next().unwrap_or_default().to_owned()
    }

    /// Client certificate resolver that presents no certificate.
    #[derive(Debug)]
    struct NoClientCertificate;

    impl rustls::client::ResolvesClientCert for NoClientCertificate {
        fn resolve(
            &self,
            _: &[&[u8]],
            _: &[rustls::SignatureScheme],
        ) -> Option<Arc<rustls::sign::CertifiedKey>> {
            None
        }

        fn has_certs(&self) -> bool {
            false
        }
    }

    /// Builds the TLS configuration of a client that expects a server with the identity `expected`.
    fn client_tls_config(certificate: &WorkloadCert, expected: &Identity) -> ClientConfig {
        let config = certificate.client_config(std::slice::from_ref(expected));
        let mut config = ClientConfig::clone(&config.unwrap());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config
    }

    #[tokio::test]
    async fn control_plane_alone_reads() {
        let pki = Arc::new(Pki::new());
        let (address, _drain) = serve(pki.clone()).await;
        let own = identity("ztunnel");
        let reader = identity("ambit-control");
        let read = status(address, client_tls_config(&pki.cert(&reader), &own)).await;
        assert_eq!(read, "HTTP/1.1 200 OK");

        let elsewhere = Identity::new("td", "shop", "ambit-control");
        let foreign = Identity::new("other", "istio-system", "ambit-control");
        for stranger in [own.clone(), identity("istiod"), elsewhere, foreign] {
            let refused = status(address, client_tls_config(&pki.cert(&stranger), &own)).await;
            assert_eq!(refused, "", "{stranger}");
        }
        let other_mesh = Pki::new();
        let refused = status(address, client_tls_config(&other_mesh.cert(&reader), &own)).await;
        assert_eq!(refused, "", "another authority");
        let refused = status(address, client_tls_config(&pki.expired_cert(&reader), &own)).await;
        assert_eq!(refused, "", "expired");
    }

    #[tokio::test]
    async fn proxy_proves_its_own_identity() {
        let pki = Arc::new(Pki::new());
        let (address, _drain) = serve(pki.clone()).await;
        let certificate = pki.cert(&identity("ambit-control"));
        let other = status(address, client_tls_config(&certificate, &identity("other"))).await;
        assert_eq!(other, "");
    }

    #[tokio::test]
    async fn clients_without_certificate_or_tls_get_nothing() {
        let pki = Arc::new(Pki::new());
        let (address, _drain) = serve(pki.clone()).await;
        let mut anonymous =
            client_tls_config(&pki.cert(&identity("ambit-control")), &identity("ztunnel"));
        anonymous.client_auth_cert_resolver = Arc::new(NoClientCertificate);
        assert_eq!(status(address, anonymous).await, "");

        let mut plain = TcpStream::connect(address).await.unwrap();
        plain
            .write_all(b"GET /flows HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut response = Vec::new();
        plain.read_to_end(&mut response).await.ok();
        assert!(!response.starts_with(b"HTTP"), "{response:?}");
    }
}
