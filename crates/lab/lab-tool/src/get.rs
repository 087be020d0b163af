//! Clients for people and simple tests: one `GET`, optionally repeated, and a connection that is kept open.

use std::{
    io,
    net::{TcpStream, ToSocketAddrs},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use crate::http1::{Connection, Url};

/// Exit code for an HTTP error status, the same as curl's.
const HTTP_ERROR_EXIT_CODE: u8 = 22;

#[expect(clippy::print_stdout, reason = "its output is the pod's log")]
pub(crate) fn get(url: &str, every: Option<u64>, timeout: Duration) -> ExitCode {
    loop {
        let started = Instant::now();
        let (code, line) = match fetch(url, timeout) {
            Ok((status @ 200..=399, body)) => (0, format!("{status} {}", body.trim_end())),
            Ok((status, body)) => (
                HTTP_ERROR_EXIT_CODE,
                format!("{status} {}", body.trim_end()),
            ),
            Err(error) => (exit_code(&error), format!("failed: {error}")),
        };
        println!("{line}");
        match every {
            None => return ExitCode::from(code),
            Some(every) => {
                thread::sleep(Duration::from_millis(every).saturating_sub(started.elapsed()));
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "its output is the pod's log")]
pub(crate) fn hold(target: &str) -> ExitCode {
    let held = TcpStream::connect(target).and_then(|mut stream| {
        println!("connected to {target}");
        io::copy(&mut stream, &mut io::sink())
    });
    match held {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::from(7)
        }
    }
}

/// Connects to the first reachable address of the host and sends a `GET`; returns the last error if none is reachable.
fn fetch(url: &str, timeout: Duration) -> io::Result<(u16, String)> {
    let url = Url::parse(url)?;
    let not_found = |text: String| io::Error::new(io::ErrorKind::NotFound, text);
    let addresses = url.target.to_socket_addrs();
    let addresses = addresses.map_err(|error| not_found(error.to_string()))?;
    let mut last = not_found(format!("{} has no address", url.host));
    for address in addresses {
        match Connection::open(address, timeout) {
            Ok(mut connection) => return connection.get(&url, false),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns the exit code that curl uses for this kind of failure, so that callers can distinguish failures.
fn exit_code(error: &io::Error) -> u8 {
    use io::ErrorKind as E;
    match error.kind() {
        // The name has no address.
        E::NotFound => 6,
        E::ConnectionRefused | E::HostUnreachable | E::NetworkUnreachable => 7,
        E::InvalidData => 8,
        E::TimedOut | E::WouldBlock => 28,
        E::UnexpectedEof => 52,
        E::ConnectionReset | E::ConnectionAborted | E::BrokenPipe => 56,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Fetches a URL from a server that handles the connection by `serve`, and returns the exit code.
    fn fetch_exit_code(serve: impl FnOnce(TcpStream) + Send + 'static) -> u8 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = thread::spawn(move || serve(listener.accept().unwrap().0));
        let error = fetch(&url, Duration::from_millis(200)).unwrap_err();
        server.join().unwrap();
        exit_code(&error)
    }

    #[test]
    fn failures_have_the_codes_of_curl() {
        // A socket that is closed with unread data is reset.
        let reset = |stream: TcpStream| {
            stream.peek(&mut [0]).unwrap();
        };
        assert_eq!(fetch_exit_code(reset), 56);
        let close = |stream: TcpStream| {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            io::copy(&mut &stream, &mut io::sink()).unwrap();
        };
        assert_eq!(fetch_exit_code(close), 52);
        let keep_silent = |stream: TcpStream| {
            io::copy(&mut &stream, &mut io::sink()).unwrap();
        };
        assert_eq!(fetch_exit_code(keep_silent), 28);
        let wrong = |mut stream: TcpStream| {
            io::Write::write_all(&mut stream, b"SSH-2.0\r\n").unwrap();
            io::copy(&mut stream, &mut io::sink()).unwrap();
        };
        assert_eq!(fetch_exit_code(wrong), 8);
        let unknown = fetch("http://no such name/", Duration::from_secs(1));
        assert_eq!(exit_code(&unknown.unwrap_err()), 6);
    }
}
