//! HTTP server that reflects requests: the body of each response is the head of its request.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::ExitCode,
};

use crate::{http1::MAX_HEAD_BYTES, serve};

/// Path prefix under which requests get no response.
const SILENT_PATH: &str = "/silent";

/// Runs the reflecting HTTP server on a port.
pub(crate) fn serve_http(port: u16) -> ExitCode {
    serve::serve(port, reflect_requests)
}

fn reflect_requests(mut stream: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(head) = read_head(&mut reader)? {
        let target = head.split(' ').nth(1).unwrap_or_default();
        if target.starts_with(SILENT_PATH) {
            return io::copy(&mut reader, &mut io::sink()).map(drop);
        }
        let length = head.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n{head}"
        )?;
    }
    Ok(())
}

/// Reads the head of a request without a body; `None` if the client has closed the connection, or the head is too
/// large.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut head = String::new();
    let mut limited = reader.take(MAX_HEAD_BYTES);
    loop {
        let mut line = String::new();
        if limited.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if line.trim().is_empty() {
            return Ok(Some(head));
        }
        head.push_str(&line);
    }
}
