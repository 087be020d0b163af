//! One HTTP request over a new connection, for tests that read the pages of programs.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::Duration,
};

/// Timeout of reading from a silent server.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Status and body of an HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code of the response.
    pub status: u16,
    /// Body as text.
    pub body: String,
}

/// Sends a request to `host` (address and port), and reads the response. Uses HTTP/1.0, so that the response ends with
/// the connection and is not chunked.
///
/// # Errors
///
/// If there is no response, or no valid one.
pub fn request(
    host: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<Response> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let mut head = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, text.clone());
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(malformed)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok(Response {
        status: status.ok_or_else(malformed)?,
        body: body.to_owned(),
    })
}
