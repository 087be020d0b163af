//! Clients for people and simple tests: one GET, again and again if wanted; a connection that is held.

use std::{
    io,
    net::{TcpStream, ToSocketAddrs},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use super::http1::{Connection, Url};

#[expect(clippy::print_stdout, reason = "its output is the pod's log")]
pub(super) fn get(url: &str, every: Option<u64>, timeout: Duration) -> ExitCode {
    loop {
        let started = Instant::now();
        let (code, line) = match fetch(url, timeout) {
            Ok((status @ 200..=399, body)) => (0, format!("{status} {}", body.trim_end())),
            Ok((status, body)) => (22, format!("{status} {}", body.trim_end())),
            Err(error) => (7, format!("failed: {error}")),
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
pub(super) fn hold(target: &str) -> ExitCode {
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

/// Tries every address of the host; the last failure counts.
fn fetch(url: &str, timeout: Duration) -> io::Result<(u16, String)> {
    let url = Url::parse(url)?;
    let mut last = io::Error::other(format!("{} has no address", url.host));
    for address in url.target.to_socket_addrs()? {
        match Connection::open(address, timeout) {
            Ok(mut connection) => return connection.get(&url, false),
            Err(error) => last = error,
        }
    }
    Err(last)
}
