//! Connects to a port inside a pod through the API server and the kubelet, which also reaches
//! listeners on the pod's loopback address.

use std::future::Future;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::io::{AsyncRead, AsyncWrite};

/// Reason why a port of a pod cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The API server or the kubelet refuses to forward the port.
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
    /// The port has no listener, or the connection was closed.
    #[error("port {port} of pod {pod}: {message}")]
    ConnectionFailed {
        /// Name of the pod.
        pod: String,
        /// Port of the pod.
        port: u16,
        /// Error message of the kubelet.
        message: String,
    },
}

/// Opens a connection to a port of a pod. The returned future completes when the connection has ended, with the
/// kubelet's error, if it sent one.
///
/// # Errors
///
/// When the API server or the kubelet refuses to forward. A missing listener is reported only later, by the future.
pub async fn open_port_forward(
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
        _ => Err(ForwardError::ConnectionFailed {
            pod: name(),
            port,
            message: "the API server did not open it".to_owned(),
        }),
    }
}
