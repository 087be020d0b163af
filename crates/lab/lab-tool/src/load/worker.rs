//! Worker thread of the load: sends a request whenever one is due, on a connection that is reused or reopened.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    schedule::Schedule,
    tally::{ConnectionMode, Failure, FailureKind, FinishedRequest},
};
use crate::http1::{Connection, Url, connect};

/// Beginning of the load, as monotonic time and as Unix time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) start: Instant,
    /// Unix time at the beginning of the load.
    pub(super) unix: Duration,
}

impl Clock {
    pub(super) fn now(self) -> Duration {
        self.start.elapsed()
    }

    /// Converts an offset from the beginning of the load to Unix time in seconds.
    pub(super) fn to_unix_seconds(self, offset: Duration) -> f64 {
        (self.unix + offset).as_secs_f64()
    }
}

/// Kind of request that a worker sends.
#[derive(Debug)]
pub(super) enum WorkerTask {
    Get { url: Url, expect: String },
    Echo,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) mode: ConnectionMode,
    pub(super) number: u32,
    pub(super) schedule: Schedule,
    pub(super) address: SocketAddr,
    pub(super) timeout: Duration,
    pub(super) task: WorkerTask,
}

/// Open connection of a worker, for HTTP or echo requests.
enum OpenConnection {
    Http(Connection),
    Echo(TcpStream),
}

impl OpenConnection {
    /// Returns whether the server announced that it closes the connection. The next request then opens another
    /// connection, which is no failure.
    fn has_ended(&self) -> bool {
        matches!(self, Self::Http(connection) if connection.has_ended())
    }
}

impl Worker {
    /// Sends the requests of the schedule until `ended` is set, and reports the result of each.
    pub(super) fn run(
        mut self,
        clock: Clock,
        report: &mpsc::Sender<FinishedRequest>,
        ended: &AtomicBool,
    ) {
        let mut open = None;
        loop {
            let next = self.schedule.next_request(clock.now());
            thread::sleep(next.due.saturating_sub(clock.now()));
            if ended.load(Ordering::Relaxed) {
                return;
            }
            let opening = open.is_none();
            let outcome = self.request(&mut open, next.due);
            let has_ended = open.as_ref().is_some_and(OpenConnection::has_ended);
            if outcome.is_err() || has_ended || self.mode == ConnectionMode::New {
                open = None;
            }
            let finished = FinishedRequest {
                mode: self.mode,
                worker: self.number,
                due: next.due,
                finished_at: clock.now(),
                skipped: next.skipped,
                interval: self.schedule.interval(),
                is_first_on_connection: opening,
                failure: outcome.err().map(|error| Failure {
                    kind: FailureKind::from(&error),
                    text: error.to_string(),
                }),
            };
            if report.send(finished).is_err() {
                return;
            }
        }
    }

    fn request(&self, open: &mut Option<OpenConnection>, due: Duration) -> io::Result<()> {
        let connection = match open {
            Some(connection) => connection,
            None => open.insert(self.open()?),
        };
        match (connection, &self.task) {
            (OpenConnection::Http(connection), WorkerTask::Get { url, expect }) => {
                let (status, body) = connection.get(url, self.mode == ConnectionMode::KeepAlive)?;
                if status != 200 || !body.contains(expect) {
                    return Err(wrong_response_error(format!(
                        "{status} {}",
                        body.trim_end()
                    )));
                }
            }
            (OpenConnection::Echo(stream), _) => {
                // A different text each time, so that an old response is not taken for a new one.
                let sent = u64::try_from(due.as_nanos())
                    .unwrap_or_default()
                    .to_be_bytes();
                let mut received = [0; 8];
                stream.write_all(&sent)?;
                stream.read_exact(&mut received)?;
                if received != sent {
                    return Err(wrong_response_error(format!(
                        "sent {sent:?}, received {received:?}"
                    )));
                }
            }
            (OpenConnection::Http(_), WorkerTask::Echo) => {}
        }
        Ok(())
    }

    fn open(&self) -> io::Result<OpenConnection> {
        match self.task {
            WorkerTask::Get { .. } => {
                Connection::open(self.address, self.timeout).map(OpenConnection::Http)
            }
            WorkerTask::Echo => connect(self.address, self.timeout).map(OpenConnection::Echo),
        }
    }
}

fn wrong_response_error(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, sync::Arc};

    use super::*;

    /// Runs a worker against a server that handles each connection by `serve`, and returns its first results.
    fn first_results(
        mode: ConnectionMode,
        task: WorkerTask,
        reports: usize,
        serve: impl Fn(usize, TcpStream) + Send + 'static,
    ) -> Vec<(bool, Option<FailureKind>)> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                serve(number, stream);
            }
        });
        let worker = Worker {
            mode,
            number: 0,
            schedule: Schedule::with_interval(Duration::from_millis(5), Duration::ZERO),
            address,
            timeout: Duration::from_millis(200),
            task,
        };
        let clock = Clock {
            start: Instant::now(),
            unix: Duration::ZERO,
        };
        let (report, finished) = mpsc::channel();
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let thread = thread::spawn(move || worker.run(clock, &report, &end));
        let outcomes = finished
            .iter()
            .take(reports)
            .map(|finished| {
                (
                    finished.is_first_on_connection,
                    finished.failure.map(|failure| failure.kind),
                )
            })
            .collect();
        ended.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        outcomes
    }

    fn get_task(expect: &str) -> WorkerTask {
        WorkerTask::Get {
            url: Url::parse("http://server/").unwrap(),
            expect: expect.into(),
        }
    }

    fn answer_once(mut stream: &TcpStream, body: &str) {
        let mut head = [0; 1024];
        // A request is one small segment here, whatever its exact size.
        assert_ne!(stream.read(&mut head).unwrap(), 0);
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
    }

    #[test]
    fn broken_connections_and_failed_opens_are_distinguished() {
        let serve = |number, stream: TcpStream| {
            if number == 0 {
                answer_once(&stream, "hi");
                answer_once(&stream, "hi");
            }
            // The server closes after the first response, and immediately on the second connection.
        };
        assert_eq!(
            first_results(ConnectionMode::KeepAlive, get_task("hi"), 3, serve)[..2],
            [(true, None), (false, None)]
        );
        let later = &first_results(ConnectionMode::KeepAlive, get_task("hi"), 4, serve)[2..];
        assert!(!later[0].0);
        assert!(later[0].1.is_some());
        assert!(later[1].0);
        assert!(later[1].1.is_some());
    }

    #[test]
    fn announced_end_of_a_connection_fails_no_request() {
        let serve = |_, mut stream: TcpStream| {
            answer_once(&stream, "hi");
            let mut head = [0; 1024];
            assert_ne!(stream.read(&mut head).unwrap(), 0);
            let last = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
            stream.write_all(last.as_bytes()).unwrap();
        };
        let outcomes = first_results(ConnectionMode::KeepAlive, get_task("hi"), 4, serve);
        let expected = [(true, None), (false, None), (true, None), (false, None)];
        assert_eq!(outcomes, expected);
    }

    #[test]
    fn every_new_connection_is_opened() {
        let outcomes = first_results(ConnectionMode::New, get_task("hi"), 3, |_, stream| {
            answer_once(&stream, "hi")
        });
        assert_eq!(outcomes, [(true, None); 3]);
    }

    #[test]
    fn response_of_another_server_is_wrong() {
        let serve = |_, stream: TcpStream| answer_once(&stream, "called by 10.0.0.2");
        let outcomes = first_results(
            ConnectionMode::New,
            get_task("called by 10.0.0.1"),
            1,
            serve,
        );
        assert_eq!(outcomes, [(true, Some(FailureKind::WrongAnswer))]);
    }

    #[test]
    fn a_silent_echo_is_a_timeout_and_an_echo_no_failure() {
        let silent = |_, stream: TcpStream| std::mem::forget(stream);
        assert_eq!(
            first_results(ConnectionMode::Long, WorkerTask::Echo, 1, silent),
            [(true, Some(FailureKind::Timeout))]
        );
        let echo = |_, mut stream: TcpStream| {
            thread::spawn(move || io::copy(&mut stream.try_clone().unwrap(), &mut stream).is_ok());
        };
        assert_eq!(
            first_results(ConnectionMode::Long, WorkerTask::Echo, 2, echo),
            [(true, None), (false, None)]
        );
    }
}
