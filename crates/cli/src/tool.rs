//! Programs for the pods of a lab, so that examples need nothing installed: a server that tells who
//! called, and a client that calls again and again.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::Subcommand;

/// The largest head of a request or answer.
const MAX_HEAD: u64 = 16 * 1024;

#[derive(Debug, Subcommand)]
pub(crate) enum Tool {
    /// Serve HTTP: every answer says who served and who called
    Serve {
        /// Port
        #[arg(long, default_value_t = 8080)]
        port: u16,
        /// What it calls itself
        #[arg(long, default_value = "server")]
        name: String,
        /// Repeat this text in every answer
        #[arg(long, default_value = "")]
        text: String,
    },
    /// Send back every byte, on every connection
    Echo {
        /// Port
        #[arg(long, default_value_t = 9000)]
        port: u16,
    },
    /// GET a URL; exits with 0 if it succeeded, 22 for an HTTP error, 7 for none at all
    Get {
        /// http://HOST[:PORT]/PATH
        url: String,
        /// Again and again, so many milliseconds apart
        #[arg(long)]
        every: Option<u64>,
        /// Milliseconds to wait for an answer
        #[arg(long, default_value_t = 5000)]
        timeout: u64,
    },
    /// Keep a connection open; ends when the other side does
    Hold {
        /// HOST:PORT
        target: String,
    },
    /// Wait for ever
    Sleep,
}

pub(crate) fn run(tool: &Tool) -> ExitCode {
    match tool {
        Tool::Serve { port, name, text } => serve(*port, |stream| answer(stream, name, text)),
        Tool::Echo { port } => serve(*port, echo),
        Tool::Get {
            url,
            every,
            timeout,
        } => get(url, *every, Duration::from_millis(*timeout)),
        Tool::Hold { target } => hold(target),
        Tool::Sleep => loop {
            thread::park();
        },
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    // Takes IPv4 too, where the kernel has both.
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
}

#[expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "its output is the pod's log"
)]
fn serve(port: u16, serve: impl Fn(TcpStream) -> io::Result<()> + Send + Clone) -> ExitCode {
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
                if let Err(error) = serve(stream) {
                    println!("a connection ended early: {error}");
                }
            });
        }
    });
    ExitCode::SUCCESS
}

#[expect(clippy::print_stdout, reason = "its output is the pod's log")]
fn answer(mut stream: TcpStream, name: &str, text: &str) -> io::Result<()> {
    let peer = stream.peer_addr()?.ip().to_canonical();
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut head = String::new();
        let mut lines = 0_u32;
        loop {
            let mut line = String::new();
            if (&mut reader).take(MAX_HEAD).read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            lines += 1;
            if lines == 1 {
                head.clone_from(&line);
            } else if lines > 100 {
                return Ok(());
            }
        }
        println!("{} from {peer}", head.trim());
        let pod = std::env::var("HOSTNAME").unwrap_or_default();
        let body = format!("{name} in {pod}, called by {peer}{text}\n");
        let reply = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(reply.as_bytes())?;
    }
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut reader = stream.try_clone()?;
    io::copy(&mut reader, &mut stream).map(drop)
}

#[expect(clippy::print_stdout, reason = "its output is the pod's log")]
fn get(url: &str, every: Option<u64>, timeout: Duration) -> ExitCode {
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
fn hold(target: &str) -> ExitCode {
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

fn fetch(url: &str, timeout: Duration) -> io::Result<(u16, String)> {
    let rest = url
        .strip_prefix("http://")
        .ok_or_else(|| io::Error::other("give an http:// URL"))?;
    let (host, path) = match rest.split_once('/') {
        Some((host, path)) => (host, format!("/{path}")),
        None => (rest, "/".to_owned()),
    };
    let target = if host.rsplit_once(':').is_some_and(|(before, port)| {
        port.parse::<u16>().is_ok() && (!before.contains(':') || before.ends_with(']'))
    }) {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let mut last = io::Error::other(format!("{host} has no address"));
    for address in target.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return exchange(stream, host, &path, timeout),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn exchange(
    mut stream: TcpStream,
    host: &str,
    path: &str,
    timeout: Duration,
) -> io::Result<(u16, String)> {
    stream.set_read_timeout(Some(timeout))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    (&mut reader).take(MAX_HEAD).read_line(&mut line)?;
    if line.is_empty() {
        let error = "the connection was closed without an answer";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, error));
    }
    let status = line
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("the answer is no HTTP"))?;
    let mut length = 0;
    loop {
        line.clear();
        (&mut reader).take(MAX_HEAD).read_line(&mut line)?;
        match line.trim() {
            "" => break,
            header => {
                if let Some((name, value)) = header.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    length = value.trim().parse().unwrap_or(0);
                }
            }
        }
    }
    let mut body = String::new();
    reader.take(length).read_to_string(&mut body)?;
    Ok((status, body))
}
