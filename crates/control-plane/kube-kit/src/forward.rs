//! A connection to a port inside a pod, through the API server and the kubelet: what listens on the
//! pod's loopback address only can be reached so.

use std::future::Future;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::io::{AsyncRead, AsyncWrite};

/// Why a port of a pod cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The API server or the kubelet does not forward.
    #[error("cannot forward to port {port} of pod {pod}")]
    Refused {
        /// Name of the pod.
        pod: String,
        /// Port of the pod.
        port: u16,
        /// Cause of the error.
        #[source]
        source: kube::Error,
    },
    /// Missing listener, or closed connection.
    #[error("port {port} of pod {pod}: {message}")]
    Broken {
        /// Name of the pod.
        pod: String,
        /// Port of the pod.
        port: u16,
        /// Message of the kubelet.
        message: String,
    },
}

/// Opens a connection. The future returns, once the connection has ended, the reason of the other
/// side, if it sent one.
///
/// # Errors
/// When the API server or the kubelet does not forward. Whether anything listens shows only later.
pub async fn dial(
    client: &Client,
    namespace: &str,
    pod: &str,
    port: u16,
) -> Result<
    (
        impl AsyncRead + AsyncWrite + Unpin + use<>,
        impl Future<Output = Option<String>> + use<>,
    ),
    ForwardError,
> {
    let name = || format!("{namespace}/{pod}");
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let forwarded = pods.portforward(pod, &[port]).await;
    let mut forwarded = forwarded.map_err(|source| ForwardError::Refused {
        pod: name(),
        port,
        source,
    })?;
    match (forwarded.take_stream(port), forwarded.take_error(port)) {
        (Some(stream), Some(error)) => Ok((stream, error)),
        _ => Err(ForwardError::Broken {
            pod: name(),
            port,
            message: "the API server did not open it".to_owned(),
        }),
    }
}
