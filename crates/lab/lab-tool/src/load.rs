//! Steady load: a fixed rate of requests on keep-alive connections, another on new connections, and
//! connections that stay open, each on a thread of its own. One thread collects the results.

mod schedule;
mod tally;
mod worker;

use std::{
    io,
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde_json::json;

use crate::{
    duration,
    http1::{Url, resolve},
    signals,
};
use schedule::Schedule;
use tally::{ConnectionMode, FinishedRequest, Tally, milliseconds};
use worker::{Clock, Worker, WorkerTask};

/// Interval at which the intermediate sums are printed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// URL to GET, on keep-alive and on new connections: `http://HOST[:PORT]/PATH`
    #[arg(long)]
    http: Option<String>,
    /// HOST:PORT of a server that sends back every byte, for the long connections
    #[arg(long)]
    echo: Option<String>,
    /// Requests a second on keep-alive connections
    #[arg(long, default_value_t = 200)]
    rate_keepalive: u32,
    /// Number of keep-alive connections
    #[arg(long, default_value_t = 4)]
    connections: u32,
    /// Requests a second on new connections
    #[arg(long, default_value_t = 200)]
    rate_new: u32,
    /// How many of these may wait at a time
    #[arg(long, default_value_t = 4)]
    workers: u32,
    /// Number of long connections
    #[arg(long, default_value_t = 10)]
    long: u32,
    /// How often each of these says something
    #[arg(long, default_value = "100ms", value_parser = duration::parse)]
    long_every: Duration,
    /// How long to go on; by default until SIGTERM
    #[arg(long)]
    seconds: Option<u64>,
    /// How long to wait for a connection, or for an answer
    #[arg(long, default_value = "2s", value_parser = duration::parse)]
    timeout: Duration,
    /// Text that every HTTP answer must contain, for example "called by 10.244.1.7"
    #[arg(long, default_value = "")]
    expect: String,
    /// Print the sums so far every second
    #[arg(long)]
    progress: bool,
}

#[expect(clippy::print_stderr, reason = "its output is the pod's log")]
pub(crate) fn run(args: &Args) -> ExitCode {
    let workers = match create_workers(args) {
        Ok(workers) if !workers.is_empty() => workers,
        Ok(_) => {
            eprintln!("nothing to do: give --http URL, --echo HOST:PORT or both");
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
    signals::on_termination_signal(move || end.store(true, Ordering::Relaxed));
    let mut tally = Tally::default();
    for mode in [
        ConnectionMode::KeepAlive,
        ConnectionMode::New,
        ConnectionMode::Long,
    ] {
        let of_mode = workers.iter().filter(|worker| worker.mode == mode).count();
        if of_mode > 0 {
            tally.expect_workers(mode, u32::try_from(of_mode).unwrap_or(u32::MAX));
        }
    }
    let clock = Clock {
        start: Instant::now(),
        unix: SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default(),
    };
    print(&json!({"event": "begun", "unix": clock.unix.as_secs_f64()}));
    let (report, finished) = mpsc::channel();
    for worker in workers {
        let (report, ended) = (report.clone(), Arc::clone(&ended));
        thread::spawn(move || worker.run(clock, &report, &ended));
    }
    drop(report);
    let end = args.seconds.map(Duration::from_secs);
    tally_results(&mut tally, clock, end, args.progress, &finished, &ended);
    ExitCode::SUCCESS
}

/// Collects the workers' results until the end of the load, and prints each failure as it arrives.
fn tally_results(
    tally: &mut Tally,
    clock: Clock,
    end: Option<Duration>,
    progress: bool,
    finished: &mpsc::Receiver<FinishedRequest>,
    ended: &AtomicBool,
) {
    let mut running = false;
    let mut next_progress = PROGRESS_INTERVAL;
    // Time of the stop: requests in flight may still finish.
    let mut stopped = None;
    loop {
        match finished.recv_timeout(Duration::from_millis(50)) {
            Ok(finished) => {
                tally.record(&finished);
                print_failure(&finished, clock);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let now = clock.now();
        if !running && tally.is_running() {
            running = true;
            print(
                &json!({"event": "running", "at": now.as_secs_f64(), "unix": clock.to_unix_seconds(now)}),
            );
        }
        if progress && now >= next_progress {
            next_progress += PROGRESS_INTERVAL;
            let sums = tally.summaries(now);
            print(&json!({"event": "progress", "at": now.as_secs_f64(), "modes": sums}));
        }
        if stopped.is_none() {
            if end.is_some_and(|end| now >= end) {
                ended.store(true, Ordering::Relaxed);
            }
            if ended.load(Ordering::Relaxed) {
                stopped = Some(now);
            }
        }
    }
    let end = stopped.unwrap_or_else(|| clock.now());
    print(&json!({
        "event": "summary",
        "seconds": end.as_secs_f64(),
        "unix": clock.to_unix_seconds(end),
        "modes": tally.summaries(end),
    }));
}

fn print_failure(finished: &FinishedRequest, clock: Clock) {
    let Some(failure) = &finished.failure else {
        return;
    };
    print(&json!({
        "event": "failure",
        "mode": finished.mode,
        "worker": finished.worker,
        "kind": failure.kind,
        "opening": finished.is_first_on_connection,
        "at": finished.finished_at.as_secs_f64(),
        "unix": clock.to_unix_seconds(finished.finished_at),
        "after_ms": milliseconds(finished.finished_at.saturating_sub(finished.due)),
        "text": failure.text,
    }));
}

#[expect(clippy::print_stdout, reason = "its output is the pod's log")]
fn print(line: &serde_json::Value) {
    println!("{line}");
}

/// Creates the workers of all modes; host names are resolved once, to exclude resolution from the measurement.
fn create_workers(args: &Args) -> io::Result<Vec<Worker>> {
    let mut workers = Vec::new();
    let worker = |mode, number, schedule, address, task| Worker {
        mode,
        number,
        schedule,
        address,
        timeout: args.timeout,
        task,
    };
    if let Some(url) = &args.http {
        let url = Url::parse(url)?;
        let address = address(&url.target)?;
        for (mode, rate, count) in [
            (
                ConnectionMode::KeepAlive,
                args.rate_keepalive,
                args.connections,
            ),
            (ConnectionMode::New, args.rate_new, args.workers),
        ] {
            let count = if rate == 0 { 0 } else { count };
            workers.extend((0..count).map(|number| {
                let task = WorkerTask::Get {
                    url: url.clone(),
                    expect: args.expect.clone(),
                };
                let schedule = Schedule::with_rate_share(rate, number, count);
                worker(mode, number, schedule, address, task)
            }));
        }
    }
    if let Some(echo) = &args.echo {
        let address = address(echo)?;
        workers.extend((0..args.long).map(|number| {
            let first = args.long_every * number / args.long.max(1);
            let schedule = Schedule::with_interval(args.long_every, first);
            worker(
                ConnectionMode::Long,
                number,
                schedule,
                address,
                WorkerTask::Echo,
            )
        }));
    }
    Ok(workers)
}

fn address(target: &str) -> io::Result<SocketAddr> {
    resolve(target)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot resolve {target}: {error}")))
}
