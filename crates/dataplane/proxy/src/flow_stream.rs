//! `GET /flows` streams flow events as they happen, one JSON object a line, until the reader disconnects.

use std::{sync::Arc, time::Duration};

use ambit_flow::{Filter, StreamItem};
use ambit_rt::http::{Request, Response, query_parameters, stream, text};
use ambit_telemetry::{FlowReader, Flows, ReaderKind};
use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::{sync::mpsc, time::timeout};

/// Interval of heartbeats (empty lines) on a stream without events, by which the server notices a disconnected reader.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout for sending one chunk of events to a slow reader.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum chunks of events that are queued for a reader.
const MAX_QUEUED_CHUNKS: usize = 2;

/// Responds to a request for the stream of flow events.
pub(crate) fn respond(flows: &Arc<Flows>, kind: ReaderKind, request: &Request) -> Response {
    let parameters: Vec<_> = query_parameters(request.uri()).collect();
    let parameters = parameters
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let filter = match Filter::from_parameters(parameters) {
        Ok(filter) => filter,
        Err(error) => return text(400, format!("{error}\n")),
    };
    let Some(reader) = flows.subscribe(kind, filter) else {
        return text(503, "too many readers of flow events: close another one\n");
    };
    let (sender, chunks) = mpsc::channel(MAX_QUEUED_CHUNKS);
    ambit_rt::spawn("reader of flow events", write_chunks(reader, sender));
    stream(200, "application/x-ndjson", chunks)
}

async fn write_chunks(mut reader: FlowReader, chunks: mpsc::Sender<Bytes>) {
    // Says that the reading has begun.
    let mut chunk = Bytes::from_static(b"\n");
    loop {
        if !matches!(timeout(SEND_TIMEOUT, chunks.send(chunk)).await, Ok(Ok(()))) {
            return;
        }
        let next = tokio::select! {
            next = timeout(HEARTBEAT_INTERVAL, reader.next()) => next,
            () = chunks.closed() => return,
        };
        chunk = match next {
            Ok(Some(items)) => encode_lines(&items),
            Ok(None) => return,
            Err(_) => Bytes::from_static(b"\n"),
        };
    }
}

fn encode_lines(items: &[StreamItem]) -> Bytes {
    let mut lines = BytesMut::new().writer();
    for item in items {
        // Cannot fail: the keys are texts, and memory takes all.
        if serde_json::to_writer(&mut lines, item).is_ok() {
            lines.get_mut().put_u8(b'\n');
        }
    }
    lines.into_inner().freeze()
}
