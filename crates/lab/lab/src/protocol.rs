//! Protocol of the control socket: one request a connection, a line of JSON with attached descriptors, and responses as
//! lines of JSON.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::SocketAddr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Maximum length of a line, enough for any command line of the kernel.
const MAX_LINE: usize = 1 << 20;
/// Descriptors attached to a line at most: standard input, output and error.
const MAX_FDS: usize = 3;
/// Flags by which a disconnected client is an error to the caller, never a signal.
#[cfg(target_os = "linux")]
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL;
/// Flags by which received descriptors do not leak into started programs.
#[cfg(target_os = "linux")]
const RECEIVE_FLAGS: RecvFlags = RecvFlags::CMSG_CLOEXEC;
// Other systems do not have these flags, nor labs that answer.
#[cfg(not(target_os = "linux"))]
const SEND_FLAGS: SendFlags = SendFlags::empty();
#[cfg(not(target_os = "linux"))]
const RECEIVE_FLAGS: RecvFlags = RecvFlags::empty();

/// A namespace of the lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LabNetns {
    /// Namespace of the network between the nodes.
    Fabric,
    /// Namespace of the control plane.
    Control,
    /// Namespace of a node.
    Node(String),
    /// Namespace of a pod, in any form that `exec` accepts.
    Pod(String),
}

/// The source of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LogSource {
    /// Log of a container; of the only one if unnamed.
    Pod {
        /// Pod in any form that `exec` accepts.
        pod: String,
        /// Name of the container.
        container: Option<String>,
    },
    /// `agent`, `proxy` or `control`; of one node or of all.
    Daemon {
        /// Name of the daemon.
        name: String,
        /// Name of the node.
        node: Option<String>,
    },
    /// Log of the supervisor.
    Lab,
}

/// The order in which a daemon's old process ends and its new one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Replacement {
    /// Rollout with a surge: the old process stops once the new one is ready.
    NewFirst,
    /// Recreation: the new process starts after the old one has stopped.
    OldFirst,
}

/// A client's request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Request {
    /// Complete status of the lab.
    Status,
    /// Return the objects that decide the scopes of policies.
    Objects,
    /// Run a command in a container's namespaces with the three descriptors attached.
    Exec {
        pod: String,
        container: Option<String>,
        command: Vec<String>,
    },
    /// Copy a log into the descriptor attached.
    Logs { source: LogSource, follow: bool },
    /// Connect from inside a namespace; the reply carries the connection.
    Dial {
        place: LabNetns,
        address: SocketAddr,
    },
    /// Listen inside a namespace; the reply carries the listener.
    Listen {
        place: LabNetns,
        address: SocketAddr,
    },
    /// Receive datagrams inside a namespace; the reply carries the socket.
    Bind {
        place: LabNetns,
        address: SocketAddr,
    },
    /// Open a packet socket for the frames of a namespace; the reply carries it.
    Capture { place: LabNetns },
    /// Kill a daemon's process, which is then restarted: for tests of faults.
    Kill { name: String, node: Option<String> },
    /// Stop a daemon's processes, or continue them: for tests of faults.
    Hang {
        name: String,
        node: Option<String>,
        hangs: bool,
    },
    /// Replace a daemon by a second process of itself.
    Replace {
        name: String,
        node: Option<String>,
        how: Replacement,
    },
    /// End the lab.
    Down,
}

/// Response of the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Reply {
    Status(Box<Status>),
    Objects(Vec<serde_json::Value>),
    Exited(i32),
    Done,
    Error(String),
}

/// The state of a lab.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Name of the lab.
    pub name: String,
    /// Directory of the manifests.
    pub manifests: String,
    /// Whether the lab runs the mesh, or only pods.
    pub mesh: bool,
    /// State of the nodes.
    pub nodes: Vec<NodeStatus>,
    /// State of the pods.
    pub pods: Vec<PodStatus>,
    /// Agents, proxies and control plane.
    pub daemons: Vec<DaemonStatus>,
    /// Manifests that cannot be used, and why.
    pub problems: Vec<String>,
    /// Gateways of waypoints with their status.
    pub gateways: Vec<serde_json::Value>,
}

/// State of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Name of the node.
    pub name: String,
    /// Addresses of the node.
    pub ips: Vec<std::net::IpAddr>,
}

/// State of one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Node of the pod.
    pub node: String,
    /// Service account of the pod.
    pub service_account: String,
    /// Addresses of the pod.
    pub ips: Vec<std::net::IpAddr>,
    /// Kubernetes phase: Pending, Running, Succeeded, Failed; Terminating during deletion.
    pub phase: String,
    /// Whether all containers are ready.
    pub ready: bool,
    /// Whether the node agent reports it as captured.
    pub captured: bool,
    /// Containers of the pod.
    pub containers: Vec<ContainerStatus>,
    /// Reason why the pod is not running.
    pub message: Option<String>,
}

/// State of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Name of the container.
    pub name: String,
    /// `running`, or the reason why the container is not.
    pub state: String,
    /// Whether the readiness probe passes.
    pub ready: bool,
    /// Number of restarts.
    pub restarts: u32,
}

/// One process of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DaemonStatus {
    /// `agent`, `proxy` or `control`.
    pub name: String,
    /// Node of the daemon; none for the control plane.
    pub node: Option<String>,
    /// Process id inside the lab while the container runs.
    pub pid: Option<u32>,
    /// Number of restarts.
    pub restarts: u32,
    /// Reason why the daemon is not running.
    pub message: Option<String>,
}

/// Sends one value as a line, with descriptors.
pub(crate) fn send<T: Serialize>(
    stream: &UnixStream,
    value: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    let mut rest = line.as_slice();
    let mut fds = fds;
    while !rest.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("too many descriptors"));
        }
        let flags = SEND_FLAGS;
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(stream, &[IoSlice::new(rest)], &mut ancillary, flags)
        })?;
        rest = rest.get(sent..).unwrap_or_default();
        fds = &[];
    }
    Ok(())
}

/// Receives one value and the descriptors that came with it. `None` at the end of the stream.
pub(crate) fn receive<T: DeserializeOwned>(
    stream: &UnixStream,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut line = Vec::new();
    let mut fds = Vec::new();
    loop {
        let mut buffer = [0_u8; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RECEIVE_FLAGS;
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(
                stream.as_fd(),
                &mut [IoSliceMut::new(&mut buffer)],
                &mut ancillary,
                flags,
            )
        })?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        if received.bytes == 0 {
            return match line.is_empty() {
                true => Ok(None),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        line.extend_from_slice(buffer.get(..received.bytes).unwrap_or_default());
        if line.last() == Some(&b'\n') {
            return Ok(Some((serde_json::from_slice(&line)?, fds)));
        }
        if line.len() > MAX_LINE {
            return Err(io::Error::other("the message is too long"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_request_arrives_with_its_descriptors() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let request = Request::Exec {
            pod: "shop/a".into(),
            container: None,
            command: vec!["x".repeat(10_000)],
        };
        send(&here, &request, &[writer.as_fd()]).unwrap();
        drop(writer);
        let (request, mut fds) = receive::<Request>(&there).unwrap().unwrap();
        assert!(matches!(request, Request::Exec { command, .. } if command[0].len() == 10_000));
        let mut passed = std::fs::File::from(fds.pop().unwrap());
        passed.write_all(b"hello").unwrap();
        drop(passed);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        drop(here);
        assert!(receive::<Request>(&there).unwrap().is_none());
    }
}
