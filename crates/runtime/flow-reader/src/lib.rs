//! Reads the streams of flow events of many proxies, including proxies that start later.
//!
//! Used by the command line and the control plane, which implement how a proxy is reached ([`ProxyConnector`]).
#![forbid(unsafe_code)]

mod error;
mod lines;

use std::{collections::HashMap, fmt, hash::Hash, sync::Arc, time::Duration};

use ambit_flow::Filter;
use ambit_rt::AbortOnDrop;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, combinators::UnsyncBoxBody};
use hyper::{Request, Response, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::timeout,
};

pub use error::{BoxError, ReadError};

use error::{MAX_LINE_BYTES, READ_TIMEOUT};
use lines::LineBuffer;

/// Interval at which the running proxies are listed.
const LIST_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum length of the text in a response that refuses the stream, in bytes.
const MAX_REASON_BYTES: usize = 1024;

/// Event in the streams of all proxies.
#[derive(Clone, Debug)]
pub enum ReaderEvent {
    /// The stream of the proxy with this name has begun.
    Connected(String),
    /// Complete lines of a proxy's stream, at least one, each with its line feed.
    Lines(Bytes),
    /// The stream of a proxy failed or ended: name and reason. The reader connects to the proxy again.
    Disconnected(String, String),
}

/// Response to a request for flow events, with its connection.
pub struct OpenStream {
    /// Status and body of the response.
    pub response: Response<UnsyncBoxBody<Bytes, BoxError>>,
    /// Task of the HTTP connection, which is aborted with this value.
    pub connection: Option<AbortOnDrop<hyper::Result<()>>>,
}

impl fmt::Debug for OpenStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenStream")
            .field("status", &self.response.status())
            .finish_non_exhaustive()
    }
}

/// Lists the proxies of a mesh and connects to them.
pub trait ProxyConnector: Send + Sync + 'static {
    /// Identifier of a proxy, which displays the name that users know.
    type Proxy: Clone + Eq + Hash + fmt::Display + Send + Sync + 'static;

    /// Lists the proxies that are running now.
    fn list(&self) -> impl Future<Output = Result<Vec<Self::Proxy>, String>> + Send;

    /// Connects to a proxy, and sends a GET request for `path`.
    fn open(
        &self,
        proxy: &Self::Proxy,
        path: &str,
    ) -> impl Future<Output = Result<OpenStream, String>> + Send;
}

/// Sends a GET request for `path` over a connection to a proxy.
///
/// # Errors
///
/// When the peer does not speak HTTP/1.1, or does not respond in time.
pub async fn request<S>(stream: S, path: &str) -> Result<OpenStream, ReadError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = http1::Builder::new()
        .max_buf_size(2 * MAX_LINE_BYTES)
        .handshake(TokioIo::new(stream));
    let (mut requests, connection) = handshake.await?;
    let connection = ambit_rt::spawn_abortable("connection to a proxy", connection);
    let request = Request::builder()
        .uri(path)
        .header(HOST, "localhost")
        .body(Empty::<Bytes>::new())?;
    let response = timeout(READ_TIMEOUT, requests.send_request(request)).await;
    let response = response.map_err(|_elapsed| ReadError::Timeout)??;
    Ok(OpenStream {
        response: response.map(|body| body.map_err(BoxError::from).boxed_unsync()),
        connection: Some(connection),
    })
}

/// Reads the streams of all proxies until the receiver of events is dropped.
pub async fn follow<P: ProxyConnector>(
    proxies: P,
    filter: &Filter,
    sender: mpsc::Sender<ReaderEvent>,
) {
    let (proxies, path) = (Arc::new(proxies), Arc::<str>::from(flows_path(filter)));
    let mut reading: HashMap<P::Proxy, AbortOnDrop<()>> = HashMap::new();
    let mut trouble = None;
    while !sender.is_closed() {
        reading.retain(|_, reader| !reader.is_finished());
        match proxies.list().await {
            Ok(all) => {
                trouble = None;
                for proxy in all {
                    let (proxies, path, sender) = (proxies.clone(), path.clone(), sender.clone());
                    reading.entry(proxy.clone()).or_insert_with(|| {
                        ambit_rt::spawn_abortable("flows of a proxy", async move {
                            let ended = read_proxy(&*proxies, &proxy, &path, &sender).await;
                            let ended = ReaderEvent::Disconnected(proxy.to_string(), ended);
                            // Fails only without a receiver.
                            let _gone = sender.send(ended).await;
                        })
                    });
                }
            }
            Err(why) if trouble.as_ref() != Some(&why) => {
                let ended =
                    ReaderEvent::Disconnected("the list of proxies".to_owned(), why.clone());
                trouble = Some(why);
                if sender.send(ended).await.is_err() {
                    return;
                }
            }
            Err(_) => {}
        }
        // The timeout elapsed, or there is no receiver: either is handled above.
        let _elapsed = timeout(LIST_INTERVAL, sender.closed()).await;
    }
}

/// Reads one proxy's stream to its end, and returns the reason of the end.
async fn read_proxy<P: ProxyConnector>(
    proxies: &P,
    proxy: &P::Proxy,
    path: &str,
    sender: &mpsc::Sender<ReaderEvent>,
) -> String {
    let opened = match proxies.open(proxy, path).await {
        Ok(opened) => opened,
        Err(error) => return error,
    };
    match read_stream(opened, proxy, sender).await {
        Ok(()) => "the stream has ended".to_owned(),
        Err(error) => error.to_string(),
    }
}

async fn read_stream(
    opened: OpenStream,
    proxy: &impl fmt::Display,
    sender: &mpsc::Sender<ReaderEvent>,
) -> Result<(), ReadError> {
    let OpenStream {
        response,
        connection: _connection,
    } = opened.error_for_status().await?;
    let mut body = response.into_body();
    if sender
        .send(ReaderEvent::Connected(proxy.to_string()))
        .await
        .is_err()
    {
        return Ok(());
    }
    let mut lines = LineBuffer::default();
    while let Some(data) = next_chunk(&mut body).await? {
        if let Some(complete) = lines.add(&data)?
            && sender.send(ReaderEvent::Lines(complete)).await.is_err()
        {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the next bytes of a response body; `None` at its end.
async fn next_chunk(body: &mut UnsyncBoxBody<Bytes, BoxError>) -> Result<Option<Bytes>, ReadError> {
    loop {
        let frame = timeout(READ_TIMEOUT, body.frame()).await;
        match frame.map_err(|_elapsed| ReadError::Timeout)? {
            None => return Ok(None),
            Some(Err(error)) => return Err(ReadError::Body(error)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

impl OpenStream {
    /// Returns the response if its status is 200.
    ///
    /// # Errors
    ///
    /// Returns the text of a response with another status.
    pub async fn error_for_status(mut self) -> Result<Self, ReadError> {
        match self.response.status().as_u16() {
            200 => Ok(self),
            status => Err(read_refusal(status, self.response.body_mut()).await),
        }
    }
}

/// Reads the text of a response that refuses the stream.
async fn read_refusal(status: u16, body: &mut UnsyncBoxBody<Bytes, BoxError>) -> ReadError {
    let mut text = Vec::new();
    while text.len() < MAX_REASON_BYTES {
        match next_chunk(body).await {
            Ok(Some(data)) => text.extend_from_slice(&data),
            Ok(None) | Err(_) => break,
        }
    }
    text.truncate(MAX_REASON_BYTES);
    ReadError::Refused(status, String::from_utf8_lossy(&text).trim().to_owned())
}

/// Returns path and query of the stream with a filter.
pub fn flows_path(filter: &Filter) -> String {
    let mut path = ambit_flow::FLOWS_PATH.to_owned();
    for (at, (name, value)) in filter.parameters().into_iter().enumerate() {
        path.push(if at == 0 { '?' } else { '&' });
        path.push_str(name);
        path.push('=');
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'/' | b':' => {
                    path.push(char::from(byte));
                }
                other => path.push_str(&format!("%{other:02X}")),
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_encoded_into_the_path() {
        let filter = Filter {
            only_refused: true,
            client: Some("spiffe://td/ns/a b/sa/c&d".parse().unwrap()),
            ..Filter::default()
        };
        assert_eq!(
            flows_path(&filter),
            "/flows?refused=true&from=spiffe://td/ns/a%20b/sa/c%26d"
        );
        assert_eq!(flows_path(&Filter::default()), "/flows");
    }

    /// Proxy in the test whose stream consists of fixed bytes.
    struct FixedProxy(&'static [u8]);

    impl ProxyConnector for FixedProxy {
        type Proxy = &'static str;

        async fn list(&self) -> Result<Vec<Self::Proxy>, String> {
            Ok(vec!["one"])
        }

        async fn open(&self, _: &Self::Proxy, path: &str) -> Result<OpenStream, String> {
            assert_eq!(path, "/flows");
            let (ours, mut theirs) = tokio::io::duplex(1024);
            let bytes = self.0;
            ambit_rt::spawn("proxy", async move {
                use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
                let mut request = [0; 1024];
                if theirs.read(&mut request).await.is_ok_and(|read| read > 0) {
                    theirs.write_all(bytes).await.ok();
                }
            });
            request(ours, path).await.map_err(|error| error.to_string())
        }
    }

    async fn received_events(response: &'static [u8]) -> Vec<ReaderEvent> {
        let (sender, mut receiver) = mpsc::channel(16);
        let following = ambit_rt::spawn_abortable("follow", async move {
            follow(FixedProxy(response), &Filter::default(), sender).await;
        });
        let mut all = Vec::new();
        while let Some(received) = receiver.recv().await {
            let is_end = matches!(received, ReaderEvent::Disconnected(..));
            all.push(received);
            if is_end {
                break;
            }
        }
        drop(following);
        all
    }

    #[tokio::test]
    async fn stream_begins_brings_lines_and_ends() {
        let all = received_events(b"HTTP/1.1 200 OK\r\n\r\n\n{\"a\":1}\n{\"b\":2}\n{\"cut").await;
        let text: Vec<_> = all.iter().map(|one| format!("{one:?}")).collect();
        assert!(text[0].contains("Connected(\"one\")"), "{text:?}");
        let lines: Vec<u8> = all
            .iter()
            .filter_map(|one| match one {
                ReaderEvent::Lines(lines) => Some(lines.to_vec()),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(lines, b"\n{\"a\":1}\n{\"b\":2}\n");
    }

    #[tokio::test]
    async fn refusal_is_an_end_with_its_text() {
        let all =
            received_events(b"HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\ntoo many\n").await;
        let [ReaderEvent::Disconnected(proxy, why)] = &all[..] else {
            panic!("{all:?}");
        };
        assert_eq!(
            (proxy.as_str(), why.as_str()),
            ("one", "status 503: too many")
        );
    }
}
