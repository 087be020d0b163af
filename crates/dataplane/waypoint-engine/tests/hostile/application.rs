//! Test applications: a strict HTTP/1.1 server that accepts only well-formed requests, and scripted servers.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use ambit_hbone::{Settings, TunnelIo, server, tls};
use ambit_rt::AbortOnDrop;
use ambit_testkit::{build, wait_until};
use http::HeaderMap;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Notify, mpsc},
};

use crate::fixture::{TIMEOUT, World, bind_listener};

/// Request that the strict server has received, or the reason why it is malformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReceivedRequest {
    Complete {
        head: String,
        body: Vec<u8>,
        /// Trailer lines of a chunked body.
        trailers: Vec<String>,
    },
    Malformed(String),
    /// Incomplete request, whose connection ended early.
    Truncated,
}

/// Strict HTTP/1.1 server that responds to well-formed requests with `ok`, and records all requests.
pub(crate) struct StrictServer {
    pub(crate) address: SocketAddr,
    received: mpsc::UnboundedReceiver<ReceivedRequest>,
}

impl StrictServer {
    pub(crate) async fn start() -> Self {
        let (tell, received) = mpsc::unbounded_channel();
        let address = run_scripted_server(move |_, stream| {
            let tell = tell.clone();
            async move {
                let mut stream = BufReader::new(stream);
                loop {
                    match read_request(&mut stream).await {
                        Ok(None) => return,
                        Ok(Some(whole)) => {
                            // The receiver may be gone at the end of a test.
                            let _over = tell.send(whole);
                            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                            if stream.write_all(answer).await.is_err() {
                                return;
                            }
                        }
                        Err(not_one) => {
                            let _over = tell.send(not_one);
                            return;
                        }
                    }
                }
            }
        });
        Self {
            address: address.await.0,
            received,
        }
    }

    /// Returns the requests that the server has received since the last call.
    pub(crate) fn received(&mut self) -> Vec<ReceivedRequest> {
        std::iter::from_fn(|| self.received.try_recv().ok()).collect()
    }
}

/// Runs a server that calls `script` for each accepted connection, with the number of earlier connections. Returns the
/// server's address, and the counter of connections.
pub(crate) async fn run_scripted_server<F: Future<Output = ()> + Send>(
    script: impl Fn(usize, TcpStream) -> F + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let (listener, address) = bind_listener().await;
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let script = Arc::new(script);
    ambit_rt::spawn("application", async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            let (script, before) = (script.clone(), counted.fetch_add(1, Relaxed));
            ambit_rt::spawn("application connection", async move {
                script(before, stream).await;
            });
        }
    });
    (address, count)
}

/// Runs an HBONE server at port 15008 of an address, until the guard is dropped. It calls `script` for each tunnel; the
/// notification breaks the tunnel's connection.
pub(crate) async fn run_tunnel_server<F: Future<Output = ()> + Send + 'static>(
    world: &World,
    name: &str,
    ip: &str,
    script: impl Fn(TunnelIo, Arc<Notify>) -> F + Send + Sync + 'static,
) -> AbortOnDrop<()> {
    let identity = build::identity("ns", name);
    let (script, pki) = (Arc::new(script), world.pki.clone());
    // The listener of a previous test may not be closed yet.
    let mut bound = None;
    wait_until(
        "the endpoint of an earlier scene has released the port",
        || {
            bound = std::net::TcpListener::bind((ip, 15008)).ok();
            bound.is_some()
        },
    )
    .await;
    let bound = bound.unwrap();
    bound.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(bound).unwrap();
    ambit_rt::spawn_abortable("endpoint", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let config = pki.cert(&identity).server_config().unwrap();
            let script = script.clone();
            ambit_rt::spawn("endpoint connection", async move {
                let stream = tls::accept(stream, config, TIMEOUT).await.unwrap();
                let (settings, never) = (Settings::default(), std::future::pending());
                let broken = Arc::new(Notify::new());
                let serving = server::serve(stream, &settings, never, |incoming| {
                    let (script, broken) = (script.clone(), broken.clone());
                    ambit_rt::spawn("endpoint tunnel", async move {
                        let tunnel = incoming.accept(HeaderMap::new()).unwrap();
                        script(tunnel.into_io(), broken).await;
                    });
                });
                tokio::select! {
                    _ended = serving => {}
                    () = broken.notified() => {}
                }
            });
        }
    })
}

/// Reads an HTTP/1.1 request up to the end of its header section; false if the stream ends before.
pub(crate) async fn read_request_head(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else {
            return false;
        };
        seen.push(byte);
    }
    true
}

type Stream = BufReader<TcpStream>;

/// Parses the next request by the strict grammar of RFC 9112; `None` if the connection ends between two requests.
pub(crate) async fn read_request(
    stream: &mut Stream,
) -> Result<Option<ReceivedRequest>, ReceivedRequest> {
    let mut head = String::new();
    let mut length = None;
    let mut chunked = false;
    let mut hosts = 0;
    loop {
        let Some(line) = read_line(stream).await? else {
            return if head.is_empty() {
                Ok(None)
            } else {
                Err(ReceivedRequest::Truncated)
            };
        };
        if line.is_empty() {
            break;
        }
        if head.is_empty() {
            check_request_line(&line)?;
        } else {
            let (name, value) = line.split_once(": ").ok_or_else(|| malformed(&line))?;
            let is_token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_token) {
                return Err(malformed(&line));
            }
            match name {
                "host" => hosts += 1,
                "content-length" => {
                    let number = value.parse::<usize>().map_err(|_| malformed(&line))?;
                    if length.replace(number).is_some() {
                        return Err(malformed(&line));
                    }
                }
                "transfer-encoding" if value == "chunked" && !chunked => chunked = true,
                "transfer-encoding" => return Err(malformed(&line)),
                _ => {}
            }
        }
        head.push_str(&line);
        head.push('\n');
    }
    if hosts != 1 || (chunked && length.is_some()) {
        return Err(malformed(&head));
    }
    let (body, trailers) = match length {
        _ if chunked => read_chunked_body(stream).await?,
        Some(length) => (read_exactly(stream, length).await?, Vec::new()),
        None => (Vec::new(), Vec::new()),
    };
    Ok(Some(ReceivedRequest::Complete {
        head,
        body,
        trailers,
    }))
}

fn malformed(what: &str) -> ReceivedRequest {
    ReceivedRequest::Malformed(what.to_owned())
}

fn check_request_line(line: &str) -> Result<(), ReceivedRequest> {
    let words: Vec<_> = line.split(' ').collect();
    let [method, target, "HTTP/1.1"] = words[..] else {
        return Err(malformed(line));
    };
    let is_path = target.starts_with('/') || target == "*";
    let is_visible = target.bytes().all(|byte| byte.is_ascii_graphic());
    if method.is_empty() || !is_path || !is_visible {
        return Err(malformed(line));
    }
    Ok(())
}

/// Reads a line that ends with CRLF and contains no other control character but tabs; `None` at the end of the
/// connection.
async fn read_line(stream: &mut Stream) -> Result<Option<String>, ReceivedRequest> {
    let mut bytes = Vec::new();
    stream
        .read_until(b'\n', &mut bytes)
        .await
        .map_err(|_| ReceivedRequest::Truncated)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if !bytes.ends_with(b"\n") {
        return Err(ReceivedRequest::Truncated);
    }
    let line = bytes
        .strip_suffix(b"\r\n")
        .ok_or_else(|| malformed(&text))?;
    if line
        .iter()
        .any(|byte| byte.is_ascii_control() && *byte != b'\t')
    {
        return Err(malformed(&text));
    }
    Ok(Some(String::from_utf8_lossy(line).into_owned()))
}

async fn read_exactly(stream: &mut Stream, length: usize) -> Result<Vec<u8>, ReceivedRequest> {
    let mut bytes = vec![0; length];
    let read = stream.read_exact(&mut bytes).await;
    read.map(|_| bytes).map_err(|_| ReceivedRequest::Truncated)
}

async fn read_chunked_body(stream: &mut Stream) -> Result<(Vec<u8>, Vec<String>), ReceivedRequest> {
    let mut body = Vec::new();
    loop {
        let size = read_line(stream).await?.ok_or(ReceivedRequest::Truncated)?;
        let length = usize::from_str_radix(&size, 16).map_err(|_| malformed(&size))?;
        if length == 0 {
            let mut trailers = Vec::new();
            loop {
                let trailer = read_line(stream).await?.ok_or(ReceivedRequest::Truncated)?;
                if trailer.is_empty() {
                    return Ok((body, trailers));
                }
                trailers.push(trailer);
            }
        }
        body.extend(read_exactly(stream, length).await?);
        if read_exactly(stream, 2).await? != b"\r\n" {
            return Err(malformed(&size));
        }
    }
}
