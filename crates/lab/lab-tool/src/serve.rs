//! Servers for pods: HTTP that reports its caller, and an echo. Each connection has a thread.

mod request;

use std::{
    io::{self, BufReader, Write},
    net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream},
    process::ExitCode,
    thread,
    time::Duration,
};

/// One line of a slow response's body.
const SLOW_RESPONSE_LINE: &str = "still here\n";
const SLOW_RESPONSE_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of lines of a slow response.
const MAX_SLOW_RESPONSE_LINES: u32 = 36_000;

/// Runs the HTTP server on `port`, and optionally the echo server on another port.
pub(crate) fn serve_http(
    port: u16,
    name: &str,
    text: &str,
    echo_port: Option<u16>,
    quiet: bool,
) -> ExitCode {
    thread::scope(|scope| {
        let echoing = echo_port.map(|port| scope.spawn(move || serve_echo(port)));
        let code = serve(port, |stream| respond(stream, name, text, quiet));
        echoing
            .and_then(|echoing| echoing.join().ok())
            .unwrap_or(code)
    })
}

/// Runs the echo server on a port: it sends back every byte that it receives.
pub(crate) fn serve_echo(port: u16) -> ExitCode {
    serve(port, |mut stream| {
        let mut reader = stream.try_clone()?;
        io::copy(&mut reader, &mut stream).map(drop)
    })
}

/// Opens a listener for all addresses of both families, or for IPv4 if the kernel does not have IPv6.
pub(crate) fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
}

#[expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "its output is the pod's log"
)]
pub(crate) fn serve(
    port: u16,
    serve: impl Fn(TcpStream) -> io::Result<()> + Send + Clone,
) -> ExitCode {
    let listener = match listen(port) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("cannot listen on port {port}: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("listening on port {port}");
    thread::scope(|scope| {
        for stream in listener.incoming().filter_map(Result::ok) {
            let serve = serve.clone();
            scope.spawn(move || {
                let served = stream.set_nodelay(true).and_then(|()| serve(stream));
                if let Err(error) = served {
                    println!("a connection ended early: {error}");
                }
            });
        }
    });
    ExitCode::SUCCESS
}

/// Responds to each request on a connection with the names of server and caller; to `/slowly/SECONDS` with lines that
/// are sent over this time.
#[expect(clippy::print_stdout, reason = "its output is the pod's log")]
pub(crate) fn respond(
    mut stream: TcpStream,
    name: &str,
    text: &str,
    quiet: bool,
) -> io::Result<()> {
    let peer = stream.peer_addr()?.ip().to_canonical();
    let pod = std::env::var("HOSTNAME").unwrap_or_default();
    let body = format!("{name} in {pod}, called by {peer}{text}\n");
    let reply = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(request) = request::read(&mut reader)? {
        if !quiet {
            println!("{} from {peer}", request.trim());
        }
        match slow_response_lines(&request) {
            Some(lines) => respond_slowly(&mut stream, lines)?,
            None => stream.write_all(reply.as_bytes())?,
        }
    }
    Ok(())
}

/// Returns the number of lines of the response to `/slowly/SECONDS`; `None` for other paths.
fn slow_response_lines(request: &str) -> Option<u32> {
    let (_, rest) = request.split_once(" /slowly/")?;
    let seconds: u32 = rest.split([' ', '?']).next()?.parse().ok()?;
    Some(seconds.saturating_mul(10).min(MAX_SLOW_RESPONSE_LINES))
}

fn respond_slowly(stream: &mut TcpStream, lines: u32) -> io::Result<()> {
    let length = SLOW_RESPONSE_LINE.len() * usize::try_from(lines).unwrap_or_default();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n"
    )?;
    for _ in 0..lines {
        stream.write_all(SLOW_RESPONSE_LINE.as_bytes())?;
        thread::sleep(SLOW_RESPONSE_INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_slow_path_is_answered_slowly() {
        assert_eq!(
            slow_response_lines("GET /slowly/20?a HTTP/1.1\r\n"),
            Some(200)
        );
        for request in ["GET / HTTP/1.1\r\n", "GET /slowly/x HTTP/1.1\r\n", ""] {
            assert_eq!(slow_response_lines(request), None, "{request}");
        }
    }
}
