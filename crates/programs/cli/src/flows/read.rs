//! Reads the streams of all proxies, and of those that come later.

use std::{collections::HashMap, time::Duration};

use ambit_flow::{Filter, StreamItem};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

use super::{Proxies, Proxy};

/// Time between two looks at which proxies there are.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How long a proxy may be silent: it writes an empty line every ten seconds.
const SILENCE: Duration = Duration::from_secs(30);
/// Longest line of a stream.
const MAX_LINE: usize = 64 << 10;

/// News of the proxies that are read.
#[derive(Clone, Debug)]
pub(crate) enum Received {
    /// A proxy's stream has begun.
    Began(String),
    /// Event of a proxy.
    Item(Box<StreamItem>),
    /// A proxy's stream has ended, or could not begin: its name, and why. It is tried again.
    Ended(String, String),
}

/// Reads until there is no receiver.
pub(crate) async fn follow(proxies: Proxies, filter: Filter, sender: mpsc::Sender<Received>) {
    let proxies = std::sync::Arc::new(proxies);
    let mut reading: HashMap<Proxy, JoinHandle<()>> = HashMap::new();
    let mut trouble = None;
    while !sender.is_closed() {
        reading.retain(|_, reader| !reader.is_finished());
        match proxies.list().await {
            Ok(all) => {
                trouble = None;
                for proxy in all {
                    let (proxies, filter, sender) =
                        (proxies.clone(), filter.clone(), sender.clone());
                    reading.entry(proxy.clone()).or_insert_with(|| {
                        ambit_rt::spawn("flows of a proxy", async move {
                            let ended = read(&proxies, &proxy, &filter, &sender).await;
                            let ended = Received::Ended(proxy.to_string(), ended);
                            // Nobody receives any more, then.
                            let _gone = sender.send(ended).await;
                        })
                    });
                }
            }
            Err(error) => {
                let why = error.to_string();
                if trouble.as_ref() != Some(&why) {
                    let ended = Received::Ended("the list of proxies".to_owned(), why.clone());
                    trouble = Some(why);
                    if sender.send(ended).await.is_err() {
                        break;
                    }
                }
            }
        }
        // The time is over, or there is no receiver: either is handled above.
        let _elapsed = timeout(LOOK_AGAIN, sender.closed()).await;
    }
    for reader in reading.into_values() {
        reader.abort();
    }
}

/// Reads one proxy's stream to its end; returns why it ended.
async fn read(
    proxies: &Proxies,
    proxy: &Proxy,
    filter: &Filter,
    sender: &mpsc::Sender<Received>,
) -> String {
    let stream = match proxies.dial(proxy).await {
        Ok(stream) => stream,
        Err(error) => return error.to_string(),
    };
    match read_stream(stream, proxy, filter, sender).await {
        Ok(()) => "the stream has ended".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("the request cannot be made: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("the connection broke: {0}")]
    Http(#[from] hyper::Error),
    #[error("nothing came for {SILENCE:?}")]
    Silent,
    #[error("status {0}: {1}")]
    Refused(u16, String),
    #[error("a line is longer than {MAX_LINE} bytes")]
    TooLong,
}

async fn read_stream(
    stream: Box<dyn super::proxies::Stream>,
    proxy: &Proxy,
    filter: &Filter,
    sender: &mpsc::Sender<Received>,
) -> Result<(), ReadError> {
    let (mut requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let _connection = ambit_rt::spawn_abortable("connection to a proxy", connection);
    let request = Request::builder()
        .uri(path(filter))
        .header(HOST, "localhost")
        .body(Empty::<Bytes>::new())?;
    let silent = |_| ReadError::Silent;
    let response = timeout(SILENCE, requests.send_request(request));
    let response = response.await.map_err(silent)??;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let mut lines = Lines::default();
    if status == 200 {
        let began = Received::Began(proxy.to_string());
        if sender.send(began).await.is_err() {
            return Ok(());
        }
    }
    while let Some(frame) = timeout(SILENCE, body.frame()).await.map_err(silent)? {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        if status != 200 {
            let text = String::from_utf8_lossy(&data).trim().to_owned();
            return Err(ReadError::Refused(status, text));
        }
        for item in lines.add(&data)? {
            if sender.send(Received::Item(Box::new(item))).await.is_err() {
                return Ok(());
            }
        }
    }
    match status {
        200 => Ok(()),
        _ => Err(ReadError::Refused(status, String::new())),
    }
}

/// Path and query of a filter.
fn path(filter: &Filter) -> String {
    let mut path = "/flows".to_owned();
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

/// Lines of a stream, as its chunks come.
#[derive(Debug, Default)]
struct Lines {
    begun: BytesMut,
}

impl Lines {
    /// The events that are complete with a chunk. Lines that are no event that this version knows are left out.
    fn add(&mut self, chunk: &[u8]) -> Result<Vec<StreamItem>, ReadError> {
        self.begun.extend_from_slice(chunk);
        let mut items = Vec::new();
        while let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
            let line = self.begun.split_to(end + 1);
            items.extend(serde_json::from_slice(&line).ok());
        }
        match self.begun.len() > MAX_LINE {
            true => Err(ReadError::TooLong),
            false => Ok(items),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_encoded_into_the_path() {
        let filter = Filter {
            refused: true,
            from: Some("spiffe://td/ns/a b/sa/c&d".parse().unwrap()),
            ..Filter::default()
        };
        assert_eq!(
            path(&filter),
            "/flows?refused=true&from=spiffe://td/ns/a%20b/sa/c%26d"
        );
        assert_eq!(path(&Filter::default()), "/flows");
    }

    #[test]
    fn lines_are_put_together_from_chunks() {
        let lost = StreamItem::Lost {
            sampled: 3,
            refusals: 0,
        };
        let text = format!("\n{}\n", serde_json::to_string(&lost).unwrap());
        let mut lines = Lines::default();
        let mut items = Vec::new();
        for byte in text.bytes() {
            items.extend(lines.add(&[byte]).unwrap());
        }
        assert_eq!(items, [lost]);
    }

    #[test]
    fn lines_of_later_versions_are_left_out_and_endless_ones_refused() {
        let mut lines = Lines::default();
        let later = lines.add(b"{\"type\":\"later\"}\nnonsense\n");
        assert_eq!(later.unwrap(), []);
        let endless = lines.add(&vec![b'a'; MAX_LINE + 1]);
        assert!(matches!(endless, Err(ReadError::TooLong)));
    }
}
