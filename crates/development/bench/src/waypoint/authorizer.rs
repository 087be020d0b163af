//! External authorizer over gRPC (Envoy's `envoy.service.auth.v3`) that allows all requests: the provider of a CUSTOM
//! policy for Ambit, and of the ext_authz filter for Envoy.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use super::{compared_proxy::AMBIT_WAYPOINT, servers::extension_provider};

/// Namespace and name of the authorizer's pod.
pub(super) const NAMESPACED_NAME: (&str, &str) = ("authorizers", "authorizer");
pub(super) const PORT: u16 = 9000;
/// gRPC message with a `CheckResponse` whose status is 0 (OK).
const ALLOW_RESPONSE: &[u8] = &[0, 0, 0, 0, 2, 0x0a, 0];

/// Returns the manifests of the authorizer's pod, and of the objects that make Ambit's waypoint call it.
pub(super) fn manifests() -> Result<String> {
    let command = format!("{}, authorizer", std::env::current_exe()?.display());
    let provider = extension_provider(
        NAMESPACED_NAME,
        &command,
        PORT,
        ("allows", "envoyExtAuthzGrpc"),
    );
    let gateway = AMBIT_WAYPOINT.name;
    Ok(format!(
        "{provider}apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: asked, namespace: {gateway}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: {gateway}}}]
  action: CUSTOM
  provider: {{name: allows}}
  rules: [{{}}]
---
"
    ))
}

/// Returns the configuration of Envoy's ext_authz filter.
pub(super) fn ext_authz() -> Value {
    json!({
        "transport_api_version": "V3",
        "grpc_service": {"envoy_grpc": {"cluster_name": NAMESPACED_NAME.1}, "timeout": "10s"},
    })
}

/// Serves an authorizer that allows everything, until the process ends.
pub(crate) fn serve() -> Result<()> {
    ambit_rt::current_thread_runtime()?.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(async move {
                if let Err(error) = serve_connection(stream).await {
                    eprintln!("a connection of a waypoint's: {error:#}");
                }
            });
        }
    })
}

async fn serve_connection(stream: TcpStream) -> Result<()> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(accepted) = connection.accept().await {
        let (request, answer) = accepted?;
        tokio::spawn(async move {
            // The waypoint's request is refused then, which the load counts.
            if let Err(error) = allow(request, answer).await {
                eprintln!("a question of a waypoint's: {error:#}");
            }
        });
    }
    Ok(())
}

async fn allow(request: Request<h2::RecvStream>, mut answer: SendResponse<Bytes>) -> Result<()> {
    let mut body = request.into_body();
    while let Some(data) = body.data().await {
        let length = data?.len();
        body.flow_control().release_capacity(length)?;
    }
    let head = Response::builder().header("content-type", "application/grpc");
    let mut stream = answer.send_response(head.body(()).context("a fixed response")?, false)?;
    stream.send_data(Bytes::from_static(ALLOW_RESPONSE), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    Ok(stream.send_trailers(trailers)?)
}
