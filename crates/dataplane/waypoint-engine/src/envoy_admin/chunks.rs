//! JSON responses that a blocking thread writes while the client reads them. A dump of any size takes a few chunks of
//! memory, and delays neither xDS nor the other pages of the admin port.

use std::{
    io::{self, Write},
    time::Duration,
};

use ambit_rt::http::{Response, stream};
use bytes::Bytes;
use tokio::{runtime::Handle, sync::mpsc};

/// Size of one chunk of a response, in bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// Maximum number of chunks that wait for the client.
const MAX_QUEUED_CHUNKS: usize = 2;
/// Timeout for the client to accept one more chunk.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

/// Responds with the output of `write`, which runs on a blocking thread until the client disconnects or is too slow.
pub(super) fn respond<F>(write: F) -> Response
where
    F: FnOnce(&mut ChunkWriter) -> serde_json::Result<()> + Send + 'static,
{
    let (chunks, received) = mpsc::channel(MAX_QUEUED_CHUNKS);
    let mut writer = ChunkWriter {
        chunks,
        runtime: Handle::current(),
        buffered: Vec::with_capacity(CHUNK_BYTES),
    };
    ambit_rt::spawn_blocking("dump in Envoy's kind", move || {
        let written = write(&mut writer).map_err(io::Error::from);
        if let Err(error) = written.and_then(|()| writer.flush()) {
            tracing::debug!(%error, "the reader of a dump is gone");
        }
    });
    stream(200, "application/json", received)
}

/// Writer that sends its output in chunks to the response body.
#[derive(Debug)]
pub(super) struct ChunkWriter {
    chunks: mpsc::Sender<Bytes>,
    runtime: Handle,
    buffered: Vec<u8>,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffered.extend_from_slice(bytes);
        if self.buffered.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffered.is_empty() {
            return Ok(());
        }
        let next = Vec::with_capacity(CHUNK_BYTES);
        let chunk = Bytes::from(std::mem::replace(&mut self.buffered, next));
        let sending = self.chunks.send_timeout(chunk, SEND_TIMEOUT);
        let sent = self.runtime.block_on(sending);
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
