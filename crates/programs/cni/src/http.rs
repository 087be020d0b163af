//! Sends one HTTP/1.1 request over a Unix socket, without an async runtime, so that the plugin starts in milliseconds.
//! `httparse` parses the response.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Maximum size of a response in bytes.
const MAX_RESPONSE_BYTES: u64 = 1024 * 1024;
/// Maximum header lines of a response; the agent sends a few.
const MAX_HEADERS: usize = 64;

/// HTTP response of the agent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Sends one request and reads the complete response within `limit`, even if the agent stalls. A `body`, which is JSON,
/// makes it a POST.
pub(crate) fn request(
    socket: &Path,
    path: &str,
    body: Option<&str>,
    limit: Duration,
) -> io::Result<Response> {
    let request = match body {
        None => format!("GET {path} HTTP/1.1\r\nHost: unix\r\nConnection: close\r\n\r\n"),
        Some(body) => format!(
            "POST {path} HTTP/1.1\r\nHost: unix\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        ),
    };
    let mut stream = DeadlineStream {
        until: Instant::now() + limit,
        stream: connect(socket)?,
    };
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut bytes)?;
    parse_response(&bytes)
}

/// Connection to the agent whose reads and writes share the deadline `until`.
struct DeadlineStream {
    stream: UnixStream,
    until: Instant,
}

impl DeadlineStream {
    fn time_left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let text = "the agent does not answer in time";
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        Ok(Some(left))
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.time_left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.time_left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Connects to the agent's socket without blocking: a hanging agent with a full backlog would otherwise block
/// forever.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn malformed_error(problem: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the agent's answer {problem}"),
    )
}

/// Returns the error for a response that ends early, as when the agent is killed. The request may be retried, so the
/// error's kind is not `InvalidData`.
fn early_end_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the agent's answer is cut short",
    )
}

fn parse_response(bytes: &[u8]) -> io::Result<Response> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Err(early_end_error()),
        Err(error) => return Err(malformed_error(&format!("is not HTTP ({error})"))),
    };
    let status = head.code.ok_or_else(|| malformed_error("is not HTTP"))?;
    let mut body = bytes.get(length..).unwrap_or_default();
    let mut chunked = false;
    for header in head.headers.iter() {
        let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
        if header.name.eq_ignore_ascii_case("content-length") {
            let length: usize = value
                .parse()
                .map_err(|_| malformed_error("has no valid length"))?;
            body = body.get(..length).ok_or_else(early_end_error)?;
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.eq_ignore_ascii_case("chunked");
        }
    }
    let body = if chunked {
        decode_chunked(body)?
    } else {
        body.to_vec()
    };
    Ok(Response {
        status,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

fn decode_chunked(mut bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let (start, size) = match httparse::parse_chunk_size(bytes) {
            Ok(httparse::Status::Complete(line)) => line,
            Ok(httparse::Status::Partial) => return Err(early_end_error()),
            Err(_) => return Err(malformed_error("has a malformed chunk")),
        };
        let size = usize::try_from(size).map_err(|_| malformed_error("has a malformed chunk"))?;
        if size == 0 {
            return Ok(body);
        }
        let rest = bytes.get(start..).unwrap_or_default();
        let (chunk, rest) = rest.split_at_checked(size).ok_or_else(early_end_error)?;
        body.extend_from_slice(chunk);
        bytes = rest
            .strip_prefix(b"\r\n")
            .ok_or_else(|| malformed_error("has a malformed chunk"))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_parsed_in_every_framing() {
        for text in [
            "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 500 x\r\nconnection: close\r\n\r\nhello",
            "HTTP/1.0 500\r\n\r\nhello",
            "HTTP/1.1 500 x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
        ] {
            let answer = parse_response(text.as_bytes()).unwrap();
            assert_eq!(
                answer,
                Response {
                    status: 500,
                    body: "hello".to_owned()
                },
                "{text}"
            );
        }
    }

    #[test]
    fn invalid_responses_are_errors() {
        for text in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
        ] {
            assert!(parse_response(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_cause_a_panic_of_the_parser(bytes: Vec<u8>, body: Vec<u8>) {
            drop((parse_response(&bytes), decode_chunked(&body)));
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            drop(parse_response(&[&head[..], &body].concat()));
        }
    }
}
