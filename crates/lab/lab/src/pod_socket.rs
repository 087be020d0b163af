//! TCP sockets that belong to a pod's cgroup, which decides whether BPF programs capture them. Sockets that the lab itself
//! creates in the pod's network namespace belong to the lab's cgroup.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        bind, connect, listen,
        sockopt::{Timeout, set_socket_reuseaddr, set_socket_timeout},
    },
};

use crate::{
    LabNetns,
    containers::PodContext,
    lab_state::LabState,
    protocol::{self, Reply},
    shim::{Shim, SocketOrder},
};

/// Length of the queue of accepted connections.
const BACKLOG: i32 = 4096;

/// Creates a TCP socket of `address`'s family as a process of the pod does; `None` where that makes no difference: for
/// other namespaces, and pods without a cgroup of their own.
pub(crate) fn create(
    board: &Arc<LabState>,
    place: &LabNetns,
    address: SocketAddr,
) -> Result<Option<OwnedFd>, String> {
    let LabNetns::Pod(name) = place else {
        return Ok(None);
    };
    let (context, _) = PodContext::find(board, name, None)?;
    let mut shim = board.pod_shim(&context.plan);
    if shim.cgroup.is_none() {
        return Ok(None);
    }
    shim.socket = Some(SocketOrder {
        is_ipv6: address.is_ipv6(),
    });
    let socket = request(board, &context, &shim).map_err(|error| error.to_string())?;
    match socket {
        Some(socket) => Ok(Some(socket)),
        None => Err(format!("no process of {name} could create a socket")),
    }
}

/// Runs the shim, and receives the socket that it creates.
fn request(board: &LabState, context: &PodContext, shim: &Shim) -> io::Result<Option<OwnedFd>> {
    let (here, there) = UnixStream::pair()?;
    let mut command = shim.command(&board.options.ambit)?;
    command.stdin(Stdio::from(OwnedFd::from(there)));
    command.stdout(Stdio::null());
    let mut child = context.netns.run(|| command.spawn())??;
    // Once the shim has ended, no process has the other end.
    drop(command);
    let received = protocol::receive::<Reply>(&here);
    child.wait()?;
    Ok(received?.and_then(|(_, mut sockets)| sockets.pop()))
}

/// Connects a socket, at most for `timeout`.
pub(crate) fn connect_within(
    socket: OwnedFd,
    to: SocketAddr,
    timeout: Duration,
) -> io::Result<TcpStream> {
    // The kernel applies the timeout of sending to connecting too.
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    connect(&socket, &to).map_err(|error| match error {
        Errno::INPROGRESS => io::ErrorKind::TimedOut.into(),
        error => io::Error::from(error),
    })?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(TcpStream::from(socket))
}

/// Binds a socket and listens.
pub(crate) fn listen_at(socket: OwnedFd, at: SocketAddr) -> io::Result<TcpListener> {
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &at)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}
