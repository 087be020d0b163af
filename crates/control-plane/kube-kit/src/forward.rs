//! A connection to a port inside a pod, through the API server and the kubelet: the way to reach
//! servers that listen on the pod's loopback address only.

use std::future::Future;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Why a port of a pod cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The API server or the kubelet does not forward.
    #[error("cannot forward to port {port} of pod {pod}")]
    Refused {
        /// The pod.
        pod: String,
        /// The port.
        port: u16,
        /// The cause.
        #[source]
        source: kube::Error,
    },
    /// Nothing listens there, or the connection ended.
    #[error("port {port} of pod {pod}: {message}")]
    Broken {
        /// The pod.
        pod: String,
        /// The port.
        port: u16,
        /// The cause.
        message: String,
    },
}

/// Opens a connection. The future resolves when the connection has ended, with the other side's error
/// if it sent one.
///
/// # Errors
/// When the API server or the kubelet does not forward. A missing listener shows only later.
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

/// Sends bytes to a port and reads the answer until it is `complete` or the other side closes, which
/// is not always reported.
///
/// # Errors
/// When the port cannot be reached, or the connection breaks before the first byte arrives.
pub async fn ask(
    client: &Client,
    namespace: &str,
    pod: &str,
    port: u16,
    question: &[u8],
    complete: impl Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, ForwardError> {
    let (mut stream, error) = dial(client, namespace, pod, port).await?;
    let mut answer = Vec::new();
    let mut outcome = stream.write_all(question).await;
    while outcome.is_ok() && !complete(&answer) {
        match stream.read_buf(&mut answer).await {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => outcome = Err(error),
        }
    }
    if !answer.is_empty() {
        return Ok(answer);
    }
    drop(stream);
    let message = match (error.await, outcome) {
        (Some(message), _) => message,
        (None, Err(error)) => error.to_string(),
        (None, Ok(())) => "it closed the connection without an answer".to_owned(),
    };
    Err(ForwardError::Broken {
        pod: format!("{namespace}/{pod}"),
        port,
        message,
    })
}
