//! Server of the conformance tests: HTTP/1.1, HTTP/2 and gRPC on each port, with TLS on some; TCP on others.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    future::{Ready, ready},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full, combinators::WithTrailers};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
};
use tokio_rustls::TlsAcceptor;

use crate::grpc;

/// The arguments of the suite's own image, as far as the suite uses them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A port of HTTP
    #[arg(long)]
    port: Vec<u16>,
    /// A port of gRPC
    #[arg(long)]
    grpc: Vec<u16>,
    /// A port of TCP, where the server speaks first
    #[arg(long)]
    tcp: Vec<u16>,
    /// Which of the ports of HTTP speaks TLS
    #[arg(long)]
    tls: Vec<u16>,
    /// Ignored: the server makes its own certificate
    #[arg(long)]
    crt: Option<String>,
    /// Ignored: the server makes its own key
    #[arg(long)]
    key: Option<String>,
}

/// Serves on all ports until SIGTERM.
pub(crate) async fn run(args: &Args) -> Result<()> {
    let mut end = signal(SignalKind::terminate())?;
    let acceptor = acceptor()?;
    let ports: BTreeSet<u16> = args.port.iter().chain(&args.grpc).copied().collect();
    for port in ports {
        let tls = args.tls.contains(&port).then(|| acceptor.clone());
        tokio::spawn(serve(bind(port).await?, tls));
    }
    for port in &args.tcp {
        tokio::spawn(serve_tcp(bind(*port).await?));
    }
    end.recv().await;
    Ok(())
}

async fn bind(port: u16) -> Result<TcpListener> {
    let bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await;
    bound.with_context(|| format!("cannot listen at port {port}"))
}

fn acceptor() -> Result<TlsAcceptor> {
    let own = rcgen::generate_simple_self_signed(vec!["echo".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.into()], key.into())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves HTTP and gRPC requests on a listener.
pub(crate) async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>) {
    while let Ok((connection, peer)) = listener.accept().await {
        let port = listener.local_addr().map_or(0, |local| local.port());
        // TCP_NODELAY: a response in several pieces would wait for the client's acknowledgement of
        // the first.
        if connection.set_nodelay(true).is_err() {
            continue;
        }
        let tls = tls.clone();
        tokio::spawn(async move {
            match tls {
                None => serve_http(connection, peer, port).await,
                // A client that does not speak TLS is disconnected.
                Some(tls) => {
                    if let Ok(connection) = tls.accept(connection).await {
                        serve_http(connection, peer, port).await;
                    }
                }
            }
        });
    }
}

async fn serve_http(
    connection: impl AsyncRead + AsyncWrite + Unpin + 'static,
    peer: SocketAddr,
    port: u16,
) {
    let answer = service_fn(move |request| respond(request, peer, port));
    let builder = auto::Builder::new(TokioExecutor::new());
    // The client reports failures.
    drop(
        builder
            .serve_connection(TokioIo::new(connection), answer)
            .await,
    );
}

/// Response body of HTTP and gRPC; only gRPC has trailers.
type Body = WithTrailers<Full<Bytes>, Ready<Option<Result<HeaderMap, Infallible>>>>;

async fn respond(
    request: Request<Incoming>,
    peer: SocketAddr,
    port: u16,
) -> Result<Response<Body>, hyper::Error> {
    let (head, body) = request.into_parts();
    body.collect().await?;
    let description = describe(&head, peer, port);
    let is_grpc =
        head.headers.get(CONTENT_TYPE) == Some(&HeaderValue::from_static(grpc::CONTENT_TYPE));
    let (kind, body, trailers) = if is_grpc {
        let status = HeaderName::from_static(grpc::GRPC_STATUS);
        let trailers = HeaderMap::from_iter([(status, HeaderValue::from_static("0"))]);
        (
            grpc::CONTENT_TYPE,
            grpc::encode(description),
            Some(trailers),
        )
    } else {
        ("text/plain", description.into(), None)
    };
    let mut response = Response::new(Full::new(body).with_trailers(ready(trailers.map(Ok))));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

/// Returns the properties of a request that the suite parses, one a line.
fn describe(head: &http::request::Parts, peer: SocketAddr, port: u16) -> String {
    let uri = &head.uri;
    let host = head
        .headers
        .get(http::header::HOST)
        .and_then(|host| host.to_str().ok());
    let host = host.or_else(|| uri.authority().map(http::uri::Authority::as_str));
    let mut lines = vec![
        format!("ServicePort={port}"),
        format!("Host={}", host.unwrap_or_default()),
        format!(
            "URL={}",
            uri.path_and_query().map_or("/", |path| path.as_str())
        ),
        format!("Method={}", head.method),
        format!("Proto={:?}", head.version),
        format!("IP={}", peer.ip()),
    ];
    let headers = head.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        format!("RequestHeader={name}:{value}")
    });
    lines.extend(headers);
    lines.push(format!("Hostname={}", hostname()));
    lines.join("\n")
}

/// Returns the pod's name.
fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

async fn serve_tcp(listener: TcpListener) {
    while let Ok((mut connection, _)) = listener.accept().await {
        let greeting = format!("StatusCode=200\nHostname={}\n", hostname());
        // A disconnected client reads nothing.
        drop(TcpStream::write_all(&mut connection, greeting.as_bytes()).await);
    }
}
