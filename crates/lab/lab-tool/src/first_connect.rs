//! Measures the first connection of a new process: when the first response arrived, and which attempts failed before
//! it.

use std::{
    io::{self, Read, Write},
    process::ExitCode,
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde_json::json;

use crate::{
    duration,
    http1::{connect, resolve},
    signals::sleep_forever,
};

/// Pause between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// HOST:PORT of a server that sends back every byte
    target: String,
    /// How long one try may take
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    timeout: Duration,
    /// How long to try at all
    #[arg(long, default_value = "60s", value_parser = duration::parse)]
    give_up: Duration,
    /// Text to send, to look for in a packet capture
    #[arg(long, default_value = "ambit-first-connect-in-clear")]
    marker: String,
    /// Wait for ever afterwards, so that the pod stays
    #[arg(long)]
    stay: bool,
}

#[expect(clippy::print_stdout, reason = "its output is the pod's log")]
pub(crate) fn run(args: &Args) -> ExitCode {
    let (start, unix) = (Instant::now(), SystemTime::now());
    let mut failures = Vec::new();
    let answer = loop {
        match exchange(args) {
            Ok(()) => break Some(start.elapsed()),
            Err(error) => failures.push(json!({
                "at_ms": ms(start.elapsed()),
                "error": error.to_string(),
            })),
        }
        if start.elapsed() > args.give_up {
            break None;
        }
        thread::sleep(RETRY_INTERVAL);
    };
    let unix = unix
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let line = json!({
        "event": "first-connect",
        "unix": unix.as_secs_f64(),
        "first_answer_ms": answer.map(ms),
        "retries": failures.len(),
        "failures": failures,
    });
    println!("{line}");
    if args.stay {
        sleep_forever();
    }
    ExitCode::from(if answer.is_some() { 0 } else { 7 })
}

fn exchange(args: &Args) -> io::Result<()> {
    let mut stream = connect(resolve(&args.target)?, args.timeout)?;
    stream.write_all(args.marker.as_bytes())?;
    let mut received = vec![0; args.marker.len()];
    stream.read_exact(&mut received)?;
    if received != args.marker.as_bytes() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not an echo"));
    }
    Ok(())
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
