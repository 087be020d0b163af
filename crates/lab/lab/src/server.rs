//! Server of a lab's control socket: a thread for each client, since most requests wait for a process.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
        unix::process::CommandExt as _,
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal};
use tokio::sync::mpsc;

use crate::{
    LabNetns, LogSource,
    containers::{self, exit_code},
    lab_state::{LabState, ReplaceCommand},
    pod_socket,
    protocol::{self, Replacement, Reply, Request},
};

/// Suffix after a daemon's name that selects its worker process.
const WORKER_SUFFIX: &str = "-worker";
/// Timeout until a killed process has ended.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for a TCP connection that is opened for a client.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a followed log is read for new bytes.
const LOG_FOLLOW_INTERVAL: Duration = Duration::from_millis(100);

/// Starts to serve the control socket; `down` gets a message when a client shuts the lab down.
pub(crate) fn serve(board: Arc<LabState>, down: mpsc::Sender<()>) -> io::Result<()> {
    let path = board.layout.socket();
    let listener = UnixListener::bind(&path)?;
    let accept = move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let (board, down) = (board.clone(), down.clone());
            let serve = move || {
                if let Err(error) = handle_connection(&board, &down, &stream) {
                    tracing::debug!(%error, "a client of the control socket went away");
                }
            };
            let spawned = thread::Builder::new().name("client".into()).spawn(serve);
            if let Err(error) = spawned {
                tracing::error!(%error, "cannot serve a client of the control socket");
            }
        }
    };
    thread::Builder::new()
        .name("control socket".into())
        .spawn(accept)
        .map(drop)
}

fn handle_connection(
    board: &Arc<LabState>,
    down: &mpsc::Sender<()>,
    stream: &UnixStream,
) -> io::Result<()> {
    let Some((request, fds)) = protocol::receive::<Request>(stream)? else {
        return Ok(());
    };
    let error = |text: String| protocol::send(stream, &Reply::Error(text), &[]);
    match request {
        Request::Status => protocol::send(stream, &Reply::Status(Box::new(board.status())), &[]),
        Request::Objects => protocol::send(stream, &Reply::Objects(board.objects()), &[]),
        Request::Exec {
            pod,
            container,
            command,
        } => match exec(board, &pod, container.as_deref(), command, fds) {
            Ok(child) => {
                let code = wait_for_child(child, stream)?;
                protocol::send(stream, &Reply::Exited(code), &[])
            }
            Err(text) => error(text),
        },
        Request::Logs { source, follow } => match logs(board, &source, follow, fds, stream) {
            Ok(()) => protocol::send(stream, &Reply::Done, &[]),
            Err(text) => error(text),
        },
        Request::Dial { place, address } => match dial(board, &place, address) {
            Ok(connection) => protocol::send(stream, &Reply::Done, &[connection.as_fd()]),
            Err(why) => error(format!("cannot connect to {address} from there: {why}")),
        },
        Request::Listen { place, address } => match listen(board, &place, address) {
            Ok(listener) => protocol::send(stream, &Reply::Done, &[listener.as_fd()]),
            Err(why) => error(format!("cannot listen at {address} there: {why}")),
        },
        Request::Bind { place, address } => {
            match in_netns(board, &place, || UdpSocket::bind(address)) {
                Ok(socket) => protocol::send(stream, &Reply::Done, &[socket.as_fd()]),
                Err(why) => error(format!("cannot have {address} for UDP there: {why}")),
            }
        }
        Request::Capture { place } => match in_netns(board, &place, packet_socket) {
            Ok(socket) => protocol::send(stream, &Reply::Done, &[socket.as_fd()]),
            Err(why) => error(format!("cannot open a packet socket: {why}")),
        },
        Request::Kill { name, node } => match kill(board, &name, node.as_deref()) {
            Ok(()) => protocol::send(stream, &Reply::Done, &[]),
            Err(text) => error(text),
        },
        Request::Hang { name, node, hangs } => {
            match set_suspended(board, &name, node.as_deref(), hangs) {
                Ok(()) => protocol::send(stream, &Reply::Done, &[]),
                Err(text) => error(text),
            }
        }
        Request::Replace { name, node, how } => match replace(board, &name, node.as_deref(), how) {
            Ok(()) => protocol::send(stream, &Reply::Done, &[]),
            Err(text) => error(text),
        },
        Request::Down => {
            protocol::send(stream, &Reply::Done, &[])?;
            let _it_goes_already = down.blocking_send(());
            Ok(())
        }
    }
}

fn dial(board: &Arc<LabState>, place: &LabNetns, address: SocketAddr) -> Result<TcpStream, String> {
    match pod_socket::create(board, place, address)? {
        Some(socket) => pod_socket::connect_within(socket, address, DIAL_TIMEOUT)
            .map_err(|error| error.to_string()),
        None => in_netns(board, place, || {
            TcpStream::connect_timeout(&address, DIAL_TIMEOUT)
        }),
    }
}

fn listen(
    board: &Arc<LabState>,
    place: &LabNetns,
    address: SocketAddr,
) -> Result<TcpListener, String> {
    match pod_socket::create(board, place, address)? {
        Some(socket) => pod_socket::listen_at(socket, address).map_err(|error| error.to_string()),
        None => in_netns(board, place, || TcpListener::bind(address)),
    }
}

/// Runs `make`, which creates a socket, in a network namespace of the lab.
fn in_netns<T>(
    board: &LabState,
    place: &LabNetns,
    make: impl FnOnce() -> io::Result<T> + Send,
) -> Result<T, String>
where
    T: Send,
{
    let netns = board.netns(place)?;
    let made = netns.run(make).and_then(|made| made);
    made.map_err(|error| error.to_string())
}

fn exec(
    board: &Arc<LabState>,
    pod: &str,
    container: Option<&str>,
    argv: Vec<String>,
    fds: Vec<OwnedFd>,
) -> Result<Child, String> {
    let (context, container) = containers::PodContext::find(board, pod, container)?;
    let container = context
        .plan
        .containers()
        .iter()
        .find(|known| known.name == container);
    let env = context.environment(container);
    let working_dir = container.and_then(|container| container.working_dir.as_deref());
    let mut command: Command = context
        .pod_command(argv, working_dir, &env)
        .map_err(|error| error.to_string())?;
    let mut fds = fds.into_iter();
    let mut next = || fds.next().map_or_else(Stdio::null, Stdio::from);
    command
        .stdin(next())
        .stdout(next())
        .stderr(next())
        .process_group(0);
    let spawned = context
        .netns
        .run(|| command.spawn())
        .and_then(|spawned| spawned);
    spawned.map_err(|error| format!("cannot run the command: {error}"))
}

/// Waits for a process, and returns its exit code; if the client disconnects first, kills the process.
fn wait_for_child(mut child: Child, stream: &UnixStream) -> io::Result<i32> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let watched = stream.try_clone()?;
    let watch = move || {
        let mut byte = [0];
        // Clients send nothing more: any event on the stream is its end.
        let _end = (&watched).read(&mut byte);
        if let Some(group) = group {
            let _it_is_gone = rustix::process::kill_process_group(group, Signal::KILL);
        }
    };
    let watcher = thread::Builder::new()
        .name("client gone?".into())
        .spawn(watch);
    let status = child.wait()?;
    // The watcher must not signal a group that by then is another's: its read ends here and now, and
    // the process is reaped only above, so at worst nothing is left to signal.
    let _already_closed = stream.shutdown(std::net::Shutdown::Read);
    drop(watcher);
    Ok(exit_code(&status))
}

fn replace(
    board: &LabState,
    name: &str,
    node: Option<&str>,
    how: Replacement,
) -> Result<(), String> {
    let ask = board
        .replacement_channel(name, node)
        .ok_or_else(|| format!("{name} cannot be replaced"))?;
    let (done, outcome) = tokio::sync::oneshot::channel();
    let gone = |_| format!("{name} is no longer supervised");
    ask.blocking_send(ReplaceCommand {
        order: how,
        result: done,
    })
    .map_err(|_closed| format!("{name} is no longer supervised"))?;
    outcome.blocking_recv().map_err(gone)?
}

/// Returns the child processes of a process; that of a node proxy is the worker that carries its connections.
fn children_of(pid: Pid) -> Result<Vec<Pid>, String> {
    let pid = pid.as_raw_nonzero();
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let children = children.split_whitespace();
    Ok(children
        .filter_map(|child| child.parse().ok())
        .filter_map(Pid::from_raw)
        .collect())
}

/// Returns the id of the process that the lab started for a daemon.
fn daemon_pid(board: &LabState, name: &str, node: Option<&str>) -> Result<Pid, String> {
    let all = board.daemons();
    let found = all
        .iter()
        .find(|daemon| daemon.name == name && daemon.node.as_deref() == node);
    let daemon = found.ok_or_else(|| format!("there is no {name}"))?;
    daemon
        .pid
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw)
        .ok_or_else(|| format!("{name} does not run"))
}

/// Stops (SIGSTOP) or continues a daemon's process and its descendants, parents first, so that no stopped process can
/// start another one.
fn set_suspended(
    board: &LabState,
    name: &str,
    node: Option<&str>,
    hangs: bool,
) -> Result<(), String> {
    let signal = if hangs { Signal::STOP } else { Signal::CONT };
    let mut pids = vec![daemon_pid(board, name, node)?];
    while let Some(pid) = pids.pop() {
        rustix::process::kill_process(pid, signal).map_err(|error| error.to_string())?;
        pids.extend(children_of(pid)?);
    }
    Ok(())
}

fn kill(board: &LabState, name: &str, node: Option<&str>) -> Result<(), String> {
    let (name, worker) = match name.strip_suffix(WORKER_SUFFIX) {
        Some(name) => (name, true),
        None => (name, false),
    };
    let mut pid = daemon_pid(board, name, node)?;
    if worker {
        let children = children_of(pid)?.into_iter().next();
        pid = children.ok_or("it has no process of its own")?;
    }
    rustix::process::kill_process(pid, Signal::KILL).map_err(|error| error.to_string())?;
    // The requester wants to test the time without the process, not the time of its death.
    let killed = std::time::Instant::now();
    while rustix::process::test_kill_process(pid).is_ok() && killed.elapsed() < KILL_TIMEOUT {
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

fn logs(
    board: &LabState,
    source: &LogSource,
    follow: bool,
    fds: Vec<OwnedFd>,
    stream: &UnixStream,
) -> Result<(), String> {
    let out = fds
        .into_iter()
        .next()
        .ok_or("the client gave nothing to write to")?;
    let mut out = File::from(out);
    let files = log_files(board, source)?;
    let failed = |error: io::Error| error.to_string();
    let mut files: Vec<_> = files
        .into_iter()
        .map(|(label, path)| (label, path, 0_u64))
        .collect();
    let many = files.len() > 1;
    loop {
        for (label, path, position) in &mut files {
            let prefix = if many { Some(label.as_str()) } else { None };
            *position = copy_log_from(path, *position, prefix, &mut out).map_err(failed)?;
        }
        if !follow || is_disconnected(stream) {
            return Ok(());
        }
        thread::sleep(LOG_FOLLOW_INTERVAL);
    }
}

fn log_files(board: &LabState, source: &LogSource) -> Result<Vec<(String, PathBuf)>, String> {
    match source {
        LogSource::Pod { pod, container } => Ok(vec![(
            pod.clone(),
            board.container_log(pod, container.as_deref())?,
        )]),
        LogSource::Lab => Ok(vec![("lab".into(), board.layout.log())]),
        LogSource::Daemon { name, node } => {
            let files: Vec<_> = board
                .daemons()
                .into_iter()
                .filter(|daemon| daemon.name == *name)
                .filter(|daemon| node.is_none() || daemon.node == *node)
                .map(|daemon| {
                    let label = daemon.node.clone().unwrap_or_else(|| daemon.name.clone());
                    (
                        label,
                        board
                            .layout
                            .daemon_log(&daemon.name, daemon.node.as_deref()),
                    )
                })
                .collect();
            if files.is_empty() {
                Err(format!("there is no {name} here"))
            } else {
                Ok(files)
            }
        }
    }
}

/// Copies the bytes of a file from `position` on, with `prefix` before each line if it is set, and returns the new
/// position.
fn copy_log_from(
    path: &std::path::Path,
    position: u64,
    prefix: Option<&str>,
    out: &mut File,
) -> io::Result<u64> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    // A log that was cut is read from its new beginning.
    let position = if file.metadata()?.len() < position {
        0
    } else {
        position
    };
    file.seek(SeekFrom::Start(position))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let length = u64::try_from(text.len()).unwrap_or_default();
    match prefix {
        None => out.write_all(&text)?,
        Some(prefix) => {
            for line in text.split_inclusive(|byte| *byte == b'\n') {
                write!(out, "{prefix}: ")?;
                out.write_all(line)?;
            }
        }
    }
    Ok(position + length)
}

fn is_disconnected(stream: &UnixStream) -> bool {
    let mut byte = [0];
    let flags = rustix::net::RecvFlags::DONTWAIT | rustix::net::RecvFlags::PEEK;
    matches!(rustix::net::recv(stream, &mut byte, flags), Ok((0, _)))
}

/// Opens a packet socket that receives all frames of the calling thread's network namespace.
fn packet_socket() -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::PACKET,
        rustix::net::SocketType::RAW,
        rustix::net::SocketFlags::CLOEXEC,
        Some(rustix::net::eth::ALL),
    )?;
    // A burst between two reads must fit. The larger size needs a capability.
    let _smaller_buffer = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 1 << 24);
    let _not_permitted = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 1 << 24);
    Ok(socket)
}
