//! Reads a request of the test server to the end of its body, before the server responds. A server that responds sooner
//! hides from tests whether a proxy would have delivered the rest.

use std::io::{self, BufRead, Read as _};

use crate::http1::MAX_HEAD_BYTES;

/// Maximum number of lines of a request's head, and of the trailers after its body.
const MAX_HEADER_LINES: usize = 256;

/// Framing of a request's body (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Length(u64),
    Chunked,
}

/// Reads one request and returns its request line; `None` if the client has closed the connection, or the head has too
/// many lines.
///
/// # Errors
/// When the connection ends within the body, or a chunk is malformed.
pub(super) fn read(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut first = String::new();
    let mut body = Body::Length(0);
    for lines in 0..MAX_HEADER_LINES {
        let Some(line) = read_line(reader)? else {
            return Ok(None);
        };
        if line.trim().is_empty() {
            skip_body(reader, body)?;
            return Ok(Some(first));
        }
        if lines == 0 {
            first = line;
        } else if let Some(described) = body_framing(&line) {
            body = described;
        }
    }
    Ok(None)
}

/// Returns the framing of the body, if this header line declares one.
fn body_framing(line: &str) -> Option<Body> {
    let (name, value) = line.split_once(':')?;
    match name.to_ascii_lowercase().as_str() {
        "content-length" => value.trim().parse().ok().map(Body::Length),
        "transfer-encoding" => Some(Body::Chunked),
        _ => None,
    }
}

fn skip_body(reader: &mut impl BufRead, body: Body) -> io::Result<()> {
    match body {
        Body::Length(length) => skip_bytes(reader, length),
        Body::Chunked => {
            while let length @ 1.. = chunk_length(reader)? {
                skip_bytes(reader, length)?;
                read_line(reader)?;
            }
            for _ in 0..MAX_HEADER_LINES {
                match read_line(reader)? {
                    Some(trailer) if !trailer.trim().is_empty() => {}
                    _ => break,
                }
            }
            Ok(())
        }
    }
}

fn chunk_length(reader: &mut impl BufRead) -> io::Result<u64> {
    let line = read_line(reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let digits = line.split(';').next().unwrap_or_default().trim();
    u64::from_str_radix(digits, 16).map_err(|_| io::Error::other("a chunk without a length"))
}

fn skip_bytes(reader: &mut impl BufRead, length: u64) -> io::Result<()> {
    match io::copy(&mut reader.take(length), &mut io::sink())? {
        skipped if skipped == length => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Reads the next line; `None` at the end of the connection.
fn read_line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = reader.take(MAX_HEAD_BYTES).read_line(&mut line)?;
    Ok((read > 0).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_one_connection_are_separated() {
        let mut reader =
            io::Cursor::new("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
        let mut next = || read(&mut reader).unwrap();
        assert_eq!(next().as_deref(), Some("GET /a HTTP/1.1\r\n"));
        assert_eq!(next().as_deref(), Some("GET /b HTTP/1.1\r\n"));
        assert_eq!(next(), None);
    }

    #[test]
    fn bodies_are_no_requests() {
        for body in [
            "Content-Length: 17\r\n\r\nGET /b HTTP/1.1\r\n",
            "Transfer-Encoding: chunked\r\n\r\n11;ext\r\nGET /b HTTP/1.1\r\n\r\n0\r\nA: b\r\n\r\n",
        ] {
            let mut reader =
                io::Cursor::new(format!("POST /a HTTP/1.1\r\n{body}GET /c HTTP/1.1\r\n\r\n"));
            let mut next = || read(&mut reader).unwrap();
            assert_eq!(next().as_deref(), Some("POST /a HTTP/1.1\r\n"), "{body}");
            assert_eq!(next().as_deref(), Some("GET /c HTTP/1.1\r\n"), "{body}");
        }
    }

    #[test]
    fn truncated_bodies_are_errors() {
        for body in [
            "Content-Length: 5\r\n\r\nabc",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
            "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "Transfer-Encoding: chunked\r\n\r\nx\r\nabc\r\n",
        ] {
            let mut reader = io::Cursor::new(format!("POST / HTTP/1.1\r\n{body}"));
            assert!(read(&mut reader).is_err(), "{body}");
        }
    }

    #[test]
    fn endless_heads_are_refused() {
        let mut reader = io::Cursor::new("a: b\r\n".repeat(1000));
        assert_eq!(read(&mut reader).unwrap(), None);
    }
}
