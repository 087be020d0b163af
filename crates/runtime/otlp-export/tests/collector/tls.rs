//! Tests of exports to collectors over TLS.

use std::{io::Write as _, sync::Arc};

use ambit_otlp_export::Exporter;
use ambit_rt::Env;
use rcgen::{CertificateParams, KeyPair};
use rustls::{ServerConfig, crypto::aws_lc_rs};
use rustls_pki_types::PrivateKeyDer;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use crate::fixture::{Program, SENT_COUNTER};

/// Starts a collector with a self-signed certificate over TLS; returns its endpoint and the certificate.
async fn start_tls_collector(name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await?;
                let mut bytes = [0; 64 * 1024];
                // A small request arrives in one read; otherwise it gets no response.
                while stream.read(&mut bytes).await? > 0 {
                    let take = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    stream.write_all(take).await?;
                    stream.flush().await?;
                }
                Ok::<_, std::io::Error>(())
            });
        }
    });
    (format!("https://localhost:{port}"), certificate.pem())
}

/// Writes a root certificate to a temporary file.
fn certificate_file(pem: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(pem.as_bytes()).unwrap();
    file
}

const CERTIFICATE_VARIABLE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";

#[tokio::test]
async fn collectors_are_trusted_by_the_configured_authority() {
    let (endpoint, authority) = start_tls_collector("localhost").await;
    let authority = certificate_file(&authority);
    let path = authority.path().to_str().unwrap();
    let program = Program::start(&endpoint, &[(CERTIFICATE_VARIABLE, path)]);
    program.wait_until_counted(SENT_COUNTER).await;
}

#[tokio::test]
async fn collectors_of_other_authorities_and_names_get_nothing() {
    let (_, other) = start_tls_collector("localhost").await;
    let (untrusted, _) = start_tls_collector("localhost").await;
    let (misnamed, own) = start_tls_collector("elsewhere").await;
    for (endpoint, authority) in [
        (untrusted, certificate_file(&other)),
        (misnamed, certificate_file(&own)),
    ] {
        let path = authority.path().to_str().unwrap();
        let variables = [
            (CERTIFICATE_VARIABLE, path),
            ("OTEL_METRIC_EXPORT_INTERVAL", "3600000"),
        ];
        let program = Program::start(&endpoint, &variables);
        let registry = program.registry.clone();
        program.exporter.finish(crate::scripted::TEST_TIMEOUT).await;
        let scrape = ambit_rt::metrics::exposition(&registry).unwrap();
        for count in ["outcome=\"sent\"} 0", "outcome=\"failed\"} 1"] {
            assert!(scrape.contains(count), "{scrape}");
        }
    }
}

#[test]
fn authorities_that_cannot_be_read_are_an_error_at_the_start() {
    for (path, text) in [("/does/not/exist.pem", ""), ("", "no certificate")] {
        let file = certificate_file(text);
        let path = match path {
            "" => file.path().to_str().unwrap(),
            path => path,
        };
        let env = Env::from_pairs([
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector"),
            (CERTIFICATE_VARIABLE, path),
        ]);
        let error = Exporter::from_env(&env, "ambit-test").unwrap_err();
        assert!(error.to_string().contains(path), "{error}");
    }
}
