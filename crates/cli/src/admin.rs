//! Talking to the admin port of a node proxy or a control plane, ours or Istio's.

use std::{io, net::TcpStream, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;

use crate::error::{CliError, ErrorKind};

/// How long an answer may take; a dump of a large mesh is many megabytes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Larger answers are refused.
const MAX_BODY: usize = 1 << 30;

/// Where to ask.
pub struct Admin {
    /// What the place is called in messages.
    name: String,
    connect: Box<dyn Fn() -> io::Result<TcpStream>>,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Admin {
    /// The admin port at an address, `127.0.0.1:15000` for instance.
    pub fn at(address: &str) -> Self {
        let address = address
            .trim_start_matches("http://")
            .trim_end_matches('/')
            .to_owned();
        let name = address.clone();
        Self {
            name,
            connect: Box::new(move || TcpStream::connect(&address)),
        }
    }

    /// An admin port that is reached in another way, called `name` in messages.
    pub fn through(
        name: impl Into<String>,
        connect: impl Fn() -> io::Result<TcpStream> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            connect: Box::new(connect),
        }
    }

    /// What the place is called in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `GET path`.
    ///
    /// # Errors
    /// When nobody answers, or not with 200.
    pub fn get(&self, path: &str) -> Result<Bytes, CliError> {
        self.request(Method::GET, path)
    }

    /// `POST path` with an empty body.
    ///
    /// # Errors
    /// When nobody answers, or not with 200.
    pub fn post(&self, path: &str) -> Result<Bytes, CliError> {
        self.request(Method::POST, path)
    }

    fn request(&self, method: Method, path: &str) -> Result<Bytes, CliError> {
        let unreachable = |error: Box<dyn std::error::Error + Send + Sync>| {
            CliError::new(ErrorKind::Unreachable, format!("cannot ask {}", self.name))
                .because(error)
                .hint("the admin port listens on the loopback of its own network namespace")
        };
        let stream = (self.connect)().map_err(|e| unreachable(e.into()))?;
        stream
            .set_nonblocking(true)
            .map_err(|e| unreachable(e.into()))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::HOST, "localhost")
            .body(Empty::<Bytes>::new())
            .map_err(|e| unreachable(e.into()))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| unreachable(e.into()))?;
        let (status, body) = runtime
            .block_on(async { tokio::time::timeout(PATIENCE, exchange(stream, request)).await })
            .map_err(|e| unreachable(e.into()))?
            .map_err(unreachable)?;
        if status == StatusCode::OK {
            return Ok(body);
        }
        let said = String::from_utf8_lossy(&body);
        Err(CliError::new(
            ErrorKind::Failed,
            format!(
                "{} answers {path} with {status}: {}",
                self.name,
                said.trim()
            ),
        ))
    }
}

async fn exchange(
    stream: TcpStream,
    request: Request<Empty<Bytes>>,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let io = TokioIo::new(tokio::net::TcpStream::from_std(stream)?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let connection = ambit_rt::spawn("admin connection", connection);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_BODY)
        .collect()
        .await?
        .to_bytes();
    connection.abort();
    Ok((status, body))
}
