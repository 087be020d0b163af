//! Minimal HTTP/1.1 client for measurements: sequential requests on a connection, and errors that
//! distinguish refused, reset, closed, late and wrong responses.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    time::Duration,
};

/// Maximum size of the head of a request or response (start line and header lines), in bytes.
pub(crate) const MAX_HEAD_BYTES: u64 = 16 * 1024;
/// Maximum number of header lines of a response.
const MAX_HEADERS: usize = 64;
/// Maximum size of a response body, in bytes.
const MAX_BODY_BYTES: u64 = 1 << 20;

/// A parsed `http://HOST[:PORT]/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) host: String,
    /// Host and port to resolve and connect to.
    pub(crate) target: String,
    pub(crate) path: String,
}

impl Url {
    pub(crate) fn parse(url: &str) -> io::Result<Self> {
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| io::Error::other("give an http:// URL"))?;
        let (host, path) = match rest.split_once('/') {
            Some((host, path)) => (host, format!("/{path}")),
            None => (rest, "/".to_owned()),
        };
        let has_port = host.rsplit_once(':').is_some_and(|(before, port)| {
            port.parse::<u16>().is_ok() && (!before.contains(':') || before.ends_with(']'))
        });
        let target = if has_port {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        Ok(Self {
            host: host.to_owned(),
            target,
            path,
        })
    }
}

/// Resolves `HOST:PORT` to its first address.
pub(crate) fn resolve(target: &str) -> io::Result<SocketAddr> {
    target
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other(format!("{target} has no address")))
}

/// Opens a TCP connection whose reads and writes have the same timeout as the connect.
pub(crate) fn connect(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// HTTP/1.1 connection for sequential requests.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    is_last: bool,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        connect(address, timeout).map(|stream| Self {
            stream: BufReader::new(stream),
            is_last: false,
        })
    }

    /// Returns whether the server announced with `Connection: close` that it closes the connection.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_last
    }

    /// Sends a GET request, and returns the status code and the body; `keep` is whether to keep the connection open.
    pub(crate) fn get(&mut self, url: &Url, keep: bool) -> io::Result<(u16, String)> {
        let connection = if keep { "keep-alive" } else { "close" };
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: {connection}\r\n\r\n",
            url.path, url.host
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let answer = read_response(&mut self.stream)?;
        self.is_last = answer.is_last;
        Ok((answer.status, answer.body))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Response {
    status: u16,
    body: String,
    /// Whether the server sent `Connection: close`, so that the connection has no further responses.
    is_last: bool,
}

/// Parsed head of a response: status, body length, and whether the connection ends.
struct ResponseHead {
    status: u16,
    length: u64,
    is_last: bool,
}

fn read_response(reader: &mut impl BufRead) -> io::Result<Response> {
    let ResponseHead {
        status,
        length,
        is_last,
    } = read_head(reader)?;
    let mut body = String::new();
    let read = reader
        .take(length.min(MAX_BODY_BYTES))
        .read_to_string(&mut body)?;
    match u64::try_from(read) {
        Ok(read) if read == length => Ok(Response {
            status,
            body,
            is_last,
        }),
        _ => Err(closed_early()),
    }
}

/// Reads the head of a response line by line, without consuming the body.
fn read_head(reader: &mut impl BufRead) -> io::Result<ResponseHead> {
    let no_http = || io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP");
    let mut head = Vec::new();
    let mut reader = reader.take(MAX_HEAD_BYTES);
    loop {
        let read = reader.read_until(b'\n', &mut head)?;
        if read == 0 || !head.ends_with(b"\n") {
            return Err(closed_early());
        }
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut answer = httparse::Response::new(&mut headers);
        let parsed = answer.parse(&head).map_err(|_| no_http())?;
        let Some(status) = answer.code.filter(|_| parsed.is_complete()) else {
            continue;
        };
        let value = |name: &str| {
            let mut headers = answer.headers.iter();
            let header = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
            Some(std::str::from_utf8(header.value).map_err(|_| no_http()))
        };
        let length = value("content-length").transpose()?.unwrap_or("0");
        let connection = value("connection").transpose()?.unwrap_or_default();
        return Ok(ResponseHead {
            status,
            length: length.trim().parse().map_err(|_| no_http())?,
            is_last: connection.trim().eq_ignore_ascii_case("close"),
        });
    }
}

fn closed_early() -> io::Error {
    let text = "the connection was closed without an answer";
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Result<(u16, String), io::ErrorKind> {
        let answer = read_response(&mut io::Cursor::new(text)).map_err(|error| error.kind())?;
        Ok((answer.status, answer.body))
    }

    #[test]
    fn response_is_read_exactly_to_its_length() {
        let mut reader = io::Cursor::new(
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 404 No\r\n\r\n",
        );
        let next = |reader: &mut io::Cursor<&str>| read_response(reader).unwrap();
        assert_eq!(next(&mut reader).body, "hi");
        assert_eq!(next(&mut reader).status, 404);
    }

    #[test]
    fn last_response_of_a_connection_is_marked() {
        for (header, is_last) in [
            ("", false),
            ("connection: close\r\n", true),
            ("Connection: Close\r\n", true),
            ("Connection: keep-alive\r\n", false),
        ] {
            let answer = format!("HTTP/1.1 200 OK\r\n{header}\r\n");
            let answer = read_response(&mut io::Cursor::new(answer)).unwrap();
            assert_eq!(answer.is_last, is_last, "{header}");
        }
    }

    #[test]
    fn truncated_response_is_an_early_end() {
        let whole = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
        for cut in 0..whole.len() {
            assert_eq!(answer(&whole[..cut]), Err(io::ErrorKind::UnexpectedEof));
        }
    }

    #[test]
    fn bytes_other_than_http_are_a_wrong_response() {
        assert_eq!(answer("SSH-2.0\r\n"), Err(io::ErrorKind::InvalidData));
    }

    #[test]
    fn a_url_has_a_port_or_gets_one() {
        let url = Url::parse("http://orders/a/b").unwrap();
        assert_eq!(
            (url.target.as_str(), url.path.as_str()),
            ("orders:80", "/a/b")
        );
        assert_eq!(
            Url::parse("http://[::1]:8080").unwrap().target,
            "[::1]:8080"
        );
        assert_eq!(Url::parse("http://[::1]").unwrap().target, "[::1]:80");
        assert!(Url::parse("https://x").is_err());
    }
}
