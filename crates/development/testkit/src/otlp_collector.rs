//! OpenTelemetry collector over HTTP/1.1, which accepts and records every export.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use parking_lot::Mutex;

use crate::wait_until_blocking;

/// Default port of OTLP over HTTP.
const OTLP_HTTP_PORT: u16 = 4318;

/// Environment variables that make a program export metrics ten times per second, to the collector in the program's own
/// network namespace.
pub const OTLP_VARIABLES: [(&str, &str); 2] = [
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
];

/// Collector that records the received messages.
#[derive(Clone, Debug, Default)]
pub struct OtlpCollector(Arc<Mutex<Vec<Message>>>);

/// Path and body of an export request.
type Message = (String, Vec<u8>);

impl OtlpCollector {
    /// Starts a collector on loopback in the network namespace of the calling thread, which serves on threads.
    ///
    /// # Errors
    ///
    /// When the port cannot be bound.
    pub fn start() -> io::Result<Self> {
        Ok(Self::serve_at(OTLP_HTTP_PORT)?.0)
    }

    /// Starts a collector on a free port; returns the collector and its endpoint URL.
    ///
    /// # Errors
    ///
    /// When no port can be bound.
    pub fn start_on_free_port() -> io::Result<(Self, String)> {
        let (collector, address) = Self::serve_at(0)?;
        Ok((collector, format!("http://{address}")))
    }

    fn serve_at(port: u16) -> io::Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let address = listener.local_addr()?;
        let collector = Self::default();
        let serving = collector.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                thread::spawn(move || serving.serve(&stream));
            }
        });
        Ok((collector, address))
    }

    /// Serves requests until the client disconnects.
    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
                if line == "\r\n" {
                    break;
                }
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            self.0.lock().push((path, body));
            let mut stream = stream;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        }
    }

    /// Waits until a program has exported a metric and a log record: messages that contain its service name and these
    /// texts.
    pub fn wait_until_exported(&self, service: &str, metric: &str, message: &str) {
        for (path, text) in [("/v1/metrics", metric), ("/v1/logs", message)] {
            wait_until_blocking(&format!("{text} of {service} is exported"), || {
                let messages = self.0.lock();
                // Protobuf contains texts verbatim.
                messages.iter().any(|(own, body)| {
                    own == path && contains_text(body, service) && contains_text(body, text)
                })
            });
        }
    }
}

fn contains_text(body: &[u8], text: &str) -> bool {
    body.windows(text.len()).any(|part| part == text.as_bytes())
}
