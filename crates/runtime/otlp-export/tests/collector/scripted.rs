//! Collector with scripted responses over HTTP/1.1, written without an HTTP library, so that it logs nothing itself.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use ambit_rt::logging::unrecorded;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

/// Timeout of every wait in the tests.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Scripted behaviour of the collector for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// Responds with 200.
    Accept,
    /// Responds with 200, and closes the connection without announcing it.
    AcceptAndClose,
    /// Responds with this status and headers, without a body.
    Status(&'static str),
    /// Reads the request and sends no response.
    Hang,
    /// Responds with 200 and an endless body.
    Endless,
    /// Responds with endless headers.
    EndlessHead,
    /// Closes the connection without a response.
    Close,
    /// Responds with bytes that are not HTTP.
    InvalidHttp,
}

/// Request that the collector has received.
#[derive(Debug)]
pub(crate) struct ReceivedRequest {
    /// Request line and headers, in lower case.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    received: mpsc::UnboundedReceiver<ReceivedRequest>,
}

impl Collector {
    /// Starts the collector; `replies` are for one request each, and all later requests succeed.
    pub(crate) async fn start(replies: &[Reply]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        Self::serve(listener, replies)
    }

    pub(crate) fn serve(listener: TcpListener, replies: &[Reply]) -> Self {
        let address = listener.local_addr().unwrap();
        let (sender, received) = mpsc::unbounded_channel();
        let replies: VecDeque<Reply> = replies.iter().copied().collect();
        let replies = Arc::new(Mutex::new(replies));
        // The runtime logs sockets, too; those of the collector must not count as the program's.
        tokio::spawn(unrecorded(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let connection = serve_connection(stream, sender.clone(), replies.clone());
                tokio::spawn(unrecorded(connection));
            }
        }));
        Self { address, received }
    }

    /// Returns the next request that the collector received.
    pub(crate) async fn next(&mut self) -> ReceivedRequest {
        let next = tokio::time::timeout(TEST_TIMEOUT, self.received.recv()).await;
        next.expect("a request in time").unwrap()
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn serve_connection(
    mut stream: TcpStream,
    sender: mpsc::UnboundedSender<ReceivedRequest>,
    replies: Arc<Mutex<VecDeque<Reply>>>,
) {
    let mut bytes = Vec::new();
    loop {
        let Some(received) = read_request(&mut stream, &mut bytes).await else {
            return;
        };
        sender.send(received).ok();
        let reply = replies.lock().pop_front().unwrap_or(Reply::Accept);
        let take: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let written = match reply {
            Reply::Accept => stream.write_all(take).await,
            Reply::Status(head) => {
                let response = format!("HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(response.as_bytes()).await
            }
            Reply::Hang => std::future::pending().await,
            Reply::Endless => {
                let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n";
                send_endlessly(&mut stream, head, &[0; 1024]).await
            }
            Reply::EndlessHead => {
                send_endlessly(&mut stream, b"HTTP/1.1 200 OK\r\n", b"a: b\r\n").await
            }
            Reply::AcceptAndClose => {
                stream.write_all(take).await.ok();
                return;
            }
            Reply::Close => return,
            Reply::InvalidHttp => {
                stream
                    .write_all(b"\x16\x03\x01 nothing of HTTP\r\n\r\n")
                    .await
            }
        };
        if written.is_err() {
            return;
        }
    }
}

async fn send_endlessly(stream: &mut TcpStream, head: &[u8], more: &[u8]) -> std::io::Result<()> {
    stream.write_all(head).await?;
    loop {
        stream.write_all(more).await?;
    }
}

/// Reads a request that has a `content-length`.
async fn read_request(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<ReceivedRequest> {
    loop {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head.split_once("content-length: ").unwrap().1;
            let length: usize = length.lines().next().unwrap().parse().unwrap();
            let (start, end) = (end + 4, end + 4 + length);
            if bytes.len() >= end {
                let body = bytes[start..end].to_vec();
                bytes.drain(..end);
                return Some(ReceivedRequest { head, body });
            }
        }
        if stream.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}
