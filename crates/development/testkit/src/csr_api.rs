//! Serves an implementation of the CSR API over TLS.

use std::net::SocketAddr;

use ambit_rt::{AbortOnDrop, Drain, drain};
use ambit_tls::TlsSettings;
use ambit_wire::citadel::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;

/// Running server of the CSR API, which stops when dropped.
#[derive(Debug)]
pub(crate) struct CsrApi {
    pub(crate) address: SocketAddr,
    _drain: Drain,
    _task: AbortOnDrop<()>,
}

impl CsrApi {
    /// Starts a server on a listener, with a serving certificate chain and its key.
    pub(crate) fn start(
        listener: TcpListener,
        settings: &TlsSettings,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        service: impl IstioCertificateService,
    ) -> Self {
        let address = listener.local_addr().expect("an address");
        let config =
            ambit_grpc_listener::server_config(settings, chain, key).expect("a server config");
        let (drain, watcher) = drain::channel();
        let incoming = ambit_grpc_listener::incoming_connections(
            listener,
            watcher,
            move || config.clone(),
            |_| (),
        );
        let service = IstioCertificateServiceServer::new(service);
        let task = ambit_rt::spawn_abortable("csr api", async move {
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await
                .ok();
        });
        Self {
            address,
            _drain: drain,
            _task: task,
        }
    }
}
