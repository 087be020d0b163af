//! Blocking client of a running lab's control socket, for commands and tests.

use std::{
    fs, io,
    io::Read,
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

use crate::{
    Capture, LabNetns, LogSource, StateDir, StateError, Status,
    protocol::{self, Replacement, Reply, Request},
};

/// Timeout for a lab to shut down, after which its init process is killed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Error of a request to a lab.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No lab of this name exists.
    #[error(transparent)]
    State(#[from] StateError),
    /// The lab rejected the request.
    #[error("{0}")]
    Refused(String),
    /// The lab has no control socket yet, or no longer.
    #[error("the lab is starting or ending; try again in a moment")]
    NotReady,
    /// The lab does not respond.
    #[error("the lab does not answer")]
    Io(#[from] io::Error),
}

/// Exit code and output of a command that ran in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOutput {
    /// Exit code; 128 plus the signal's number if a signal ended the command.
    pub code: i32,
    /// Standard output of the command.
    pub stdout: String,
    /// Standard error of the command.
    pub stderr: String,
}

/// Polls a condition until it holds, for at most [`REQUEST_TIMEOUT`].
fn wait_for_condition(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    while !condition() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Client of a running lab's control socket.
#[derive(Clone, Debug)]
pub struct Client {
    state: StateDir,
}

impl Client {
    /// Finds the running lab `name`, and creates a client for it.
    ///
    /// # Errors
    /// When no such lab is running.
    pub fn find(base: &Path, name: &str) -> Result<Self, ClientError> {
        Ok(Self::new(StateDir::find(base, name)?))
    }

    /// Creates a client for the lab with this directory.
    pub fn new(state: StateDir) -> Self {
        Self { state }
    }

    /// Returns the status of the lab.
    ///
    /// # Errors
    /// When the lab does not answer.
    pub fn status(&self) -> Result<Status, ClientError> {
        match self.send_request(&Request::Status, &[])?.0 {
            Reply::Status(status) => Ok(*status),
            _ => Err(unexpected_reply()),
        }
    }

    /// Returns the objects that determine to which workloads policies apply, as the control plane reads them: pods with
    /// their addresses, services, Gateways, policies.
    ///
    /// # Errors
    /// When the lab does not answer.
    pub fn objects(&self) -> Result<Vec<serde_json::Value>, ClientError> {
        match self.send_request(&Request::Objects, &[])?.0 {
            Reply::Objects(objects) => Ok(objects),
            _ => Err(unexpected_reply()),
        }
    }

    /// Polls the lab's status until `enough` returns true; on timeout returns the last status as the inner error.
    ///
    /// # Errors
    /// When the lab does not answer.
    pub fn wait_until(
        &self,
        timeout: Duration,
        mut enough: impl FnMut(&Status) -> bool,
    ) -> Result<Result<Status, Status>, ClientError> {
        let deadline = Instant::now() + timeout;
        loop {
            let status = self.status()?;
            if enough(&status) {
                return Ok(Ok(status));
            }
            if Instant::now() > deadline {
                return Ok(Err(status));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs a command in a container with the given standard streams, and returns its exit code.
    ///
    /// # Errors
    /// When the pod does not exist, or the command cannot be started.
    pub fn exec(
        &self,
        pod: &str,
        container: Option<&str>,
        command: &[String],
        streams: [BorrowedFd<'_>; 3],
    ) -> Result<i32, ClientError> {
        let request = Request::Exec {
            pod: pod.to_owned(),
            container: container.map(ToOwned::to_owned),
            command: command.to_vec(),
        };
        match self.send_request(&request, &streams)?.0 {
            Reply::Exited(code) => Ok(code),
            _ => Err(unexpected_reply()),
        }
    }

    /// Runs a command in a pod, and returns its output.
    ///
    /// # Errors
    /// As [`Client::exec`].
    pub fn output(&self, pod: &str, command: &[&str]) -> Result<ExecOutput, ClientError> {
        let command: Vec<_> = command.iter().map(|arg| (*arg).to_owned()).collect();
        let null = fs::File::open("/dev/null")?;
        let (out, out_end) = io::pipe()?;
        let (err, err_end) = io::pipe()?;
        let collect = |mut from: io::PipeReader| {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                let _what_came_counts = from.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            })
        };
        let (out, err) = (collect(out), collect(err));
        let code = self.exec(
            pod,
            None,
            &command,
            [null.as_fd(), out_end.as_fd(), err_end.as_fd()],
        );
        drop((out_end, err_end));
        let text = |thread: thread::JoinHandle<String>| thread.join().unwrap_or_default();
        let (stdout, stderr) = (text(out), text(err));
        Ok(ExecOutput {
            code: code?,
            stdout,
            stderr,
        })
    }

    /// Copies a log to `out`, and follows it if requested.
    ///
    /// # Errors
    /// When the log does not exist.
    pub fn logs(
        &self,
        source: LogSource,
        follow: bool,
        out: BorrowedFd<'_>,
    ) -> Result<(), ClientError> {
        self.send_request(&Request::Logs { source, follow }, &[out])
            .map(drop)
    }

    /// Returns the current text of a log.
    ///
    /// # Errors
    /// When the log does not exist.
    pub fn log_text(&self, source: LogSource) -> Result<String, ClientError> {
        let (mut reader, writer) = io::pipe()?;
        let reading = thread::spawn(move || {
            let mut bytes = Vec::new();
            let _what_came_counts = reader.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let done = self.logs(source, false, writer.as_fd());
        drop(writer);
        let text = reading.join().unwrap_or_default();
        done.map(|()| text)
    }

    /// Opens a TCP connection to `address` from a network namespace of the lab.
    ///
    /// # Errors
    /// When the connection cannot be opened.
    pub fn dial(&self, place: LabNetns, address: SocketAddr) -> Result<TcpStream, ClientError> {
        Ok(TcpStream::from(
            self.request_fd(&Request::Dial { place, address })?,
        ))
    }

    /// Opens a TCP listener at `address` in a network namespace of the lab.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn listen(&self, place: LabNetns, address: SocketAddr) -> Result<TcpListener, ClientError> {
        Ok(TcpListener::from(
            self.request_fd(&Request::Listen { place, address })?,
        ))
    }

    /// Binds a UDP socket to `address` in a network namespace of the lab.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn bind(&self, place: LabNetns, address: SocketAddr) -> Result<UdpSocket, ClientError> {
        Ok(UdpSocket::from(
            self.request_fd(&Request::Bind { place, address })?,
        ))
    }

    /// Starts a packet capture in a network namespace; in the fabric's namespace, it captures the traffic between the
    /// nodes.
    ///
    /// # Errors
    /// When the lab cannot open a packet socket.
    pub fn capture(&self, place: LabNetns, markers: Vec<Vec<u8>>) -> Result<Capture, ClientError> {
        let socket = self.request_fd(&Request::Capture { place })?;
        Ok(Capture::start(socket, markers)?)
    }

    /// Kills a daemon's process (SIGKILL), which the lab starts again. `proxy-worker` is the worker process that a node
    /// proxy starts itself.
    ///
    /// # Errors
    /// When no such process is running.
    pub fn kill(&self, name: &str, node: Option<&str>) -> Result<(), ClientError> {
        let (name, node) = (name.to_owned(), node.map(ToOwned::to_owned));
        self.send_request(&Request::Kill { name, node }, &[])
            .map(drop)
    }

    /// Stops a daemon's processes with all descendants (SIGSTOP), or continues them (SIGCONT).
    ///
    /// # Errors
    /// When no such process is running.
    pub fn set_suspended(
        &self,
        name: &str,
        node: Option<&str>,
        hangs: bool,
    ) -> Result<(), ClientError> {
        let (name, node) = (name.to_owned(), node.map(ToOwned::to_owned));
        self.send_request(&Request::Hang { name, node, hangs }, &[])
            .map(drop)
    }

    /// Replaces a daemon's process by a new process, as an upgrade does. The old process is terminated (SIGTERM) and
    /// may drain. Returns when the new process is ready and the old process has been signalled.
    ///
    /// # Errors
    /// When the daemon cannot be replaced, or the new process does not become ready.
    pub fn replace(
        &self,
        name: &str,
        node: Option<&str>,
        how: Replacement,
    ) -> Result<(), ClientError> {
        let (name, node) = (name.to_owned(), node.map(ToOwned::to_owned));
        self.send_request(&Request::Replace { name, node, how }, &[])
            .map(drop)
    }

    /// Shuts the lab down, and waits until its processes and its directory are gone.
    ///
    /// # Errors
    /// When the lab does not end.
    pub fn down(&self) -> Result<(), ClientError> {
        let sent = self.send_request(&Request::Down, &[]);
        if sent.is_ok() {
            wait_for_condition(|| !self.state.is_alive());
        }
        if self.state.is_alive() {
            self.kill_first_process()?;
        }
        Ok(self.state.remove()?)
    }

    fn kill_first_process(&self) -> Result<(), ClientError> {
        let path = self.state.layout().pid();
        // A lab that has only just been started has none yet.
        wait_for_condition(|| path.exists());
        let text = fs::read_to_string(path)?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| ClientError::Refused("its process id is not known".into()))?;
        rustix::process::kill_process(pid, Signal::KILL).map_err(io::Error::from)?;
        wait_for_condition(|| !self.state.is_alive());
        Ok(())
    }

    fn request_fd(&self, request: &Request) -> Result<OwnedFd, ClientError> {
        let (_, mut fds) = self.send_request(request, &[])?;
        fds.pop().ok_or_else(unexpected_reply)
    }

    fn send_request(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        let stream =
            UnixStream::connect(self.state.layout().socket()).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                        ClientError::NotReady
                    }
                    _ => error.into(),
                }
            })?;
        protocol::send(&stream, request, fds)?;
        match protocol::receive::<Reply>(&stream)? {
            Some((Reply::Error(text), _)) => Err(ClientError::Refused(text)),
            Some((reply, fds)) => Ok((reply, fds)),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

fn unexpected_reply() -> ClientError {
    ClientError::Io(io::Error::other("an answer to another question"))
}
