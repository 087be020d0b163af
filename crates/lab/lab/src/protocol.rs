//! Protocol of a lab's control socket: one request per connection, as a line of JSON with attached file descriptors,
//! and responses as lines of JSON.

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

/// Maximum length of a line in bytes, enough for any command line of the kernel.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Maximum number of file descriptors attached to a line: standard input, output and error.
const MAX_FDS: usize = 3;
/// Flags of `sendmsg`: a disconnected client is an error for the caller, and never a signal.
#[cfg(target_os = "linux")]
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL;
/// Flags of `recvmsg`: received descriptors are not inherited by started programs.
#[cfg(target_os = "linux")]
const RECEIVE_FLAGS: RecvFlags = RecvFlags::CMSG_CLOEXEC;
// Other systems do not have these flags, nor labs that answer.
#[cfg(not(target_os = "linux"))]
const SEND_FLAGS: SendFlags = SendFlags::empty();
#[cfg(not(target_os = "linux"))]
const RECEIVE_FLAGS: RecvFlags = RecvFlags::empty();

/// Network namespace of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LabNetns {
    /// Namespace of the lab itself, with the bridge between the nodes.
    Fabric,
    /// Namespace of the control plane.
    Control,
    /// Namespace of a node.
    Node(String),
    /// Namespace of a pod, by any name that `exec` accepts.
    Pod(String),
}

/// Container or process whose log a client requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LogSource {
    /// Log of a pod's container.
    Pod {
        /// Name of the pod, in any form that `exec` accepts.
        pod: String,
        /// Name of the container; may be omitted if the pod has only one.
        container: Option<String>,
    },
    /// Log of a process of the mesh.
    Daemon {
        /// Process of the mesh: `agent`, `proxy` or `control`.
        name: String,
        /// Name of the node; `None` for the logs of all nodes.
        node: Option<String>,
    },
    /// Log of the supervisor.
    Lab,
}

/// Order in which a daemon's old process ends and its new one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Replacement {
    /// Rollout with a surge: the old process is terminated once the new one is ready.
    NewFirst,
    /// Recreation: the old process is terminated first, and then the new one starts.
    OldFirst,
}

/// Request of a client on the control socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Request {
    /// Return the status of the lab.
    Status,
    /// Return the objects that determine to which workloads policies apply.
    Objects,
    /// Run a command in a container's namespaces, with the three attached descriptors as standard streams.
    Exec {
        pod: String,
        container: Option<String>,
        command: Vec<String>,
    },
    /// Copy a log into the attached descriptor.
    Logs { source: LogSource, follow: bool },
    /// Open a TCP connection from inside a namespace; the reply carries its descriptor.
    Dial {
        place: LabNetns,
        address: SocketAddr,
    },
    /// Open a TCP listener inside a namespace; the reply carries its descriptor.
    Listen {
        place: LabNetns,
        address: SocketAddr,
    },
    /// Bind a UDP socket inside a namespace; the reply carries its descriptor.
    Bind {
        place: LabNetns,
        address: SocketAddr,
    },
    /// Open a packet socket for all frames of a namespace; the reply carries its descriptor.
    Capture { place: LabNetns },
    /// Kill a process of the mesh, which is then restarted; for tests of faults.
    Kill { name: String, node: Option<String> },
    /// Stop the processes of a daemon (SIGSTOP), or continue them; for tests of faults.
    Hang {
        name: String,
        node: Option<String>,
        hangs: bool,
    },
    /// Replace a daemon's process by a second one.
    Replace {
        name: String,
        node: Option<String>,
        how: Replacement,
    },
    /// Shut the lab down.
    Down,
}

/// Reply of the supervisor to a client's request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Reply {
    Status(Box<Status>),
    Objects(Vec<serde_json::Value>),
    Exited(i32),
    Done,
    Error(String),
}

/// Status of a lab: its nodes, pods, processes and problems.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Name of the lab.
    pub name: String,
    /// Directory of the lab's manifests.
    pub manifests: String,
    /// Whether the lab runs the mesh, or only pods.
    pub mesh: bool,
    /// State of the nodes.
    pub nodes: Vec<NodeStatus>,
    /// State of the pods.
    pub pods: Vec<PodStatus>,
    /// State of agents, node proxies and control plane.
    pub daemons: Vec<DaemonStatus>,
    /// Problems of manifests, of pods that cannot be scheduled, and of Gateways.
    pub problems: Vec<String>,
    /// Gateways of the manifests with their status.
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
    /// Kubernetes phase: Pending, Running, Succeeded or Failed; Terminating during deletion.
    pub phase: String,
    /// Whether all containers are ready.
    pub ready: bool,
    /// Whether the node agent reports the pod as captured.
    pub captured: bool,
    /// Containers of the pod.
    pub containers: Vec<ContainerStatus>,
    /// Reason why the pod is not running; `None` if it is.
    pub message: Option<String>,
}

/// State of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Name of the container.
    pub name: String,
    /// `running`, or the reason why the container is not running.
    pub state: String,
    /// Whether the readiness probe passes.
    pub ready: bool,
    /// Number of restarts.
    pub restarts: u32,
}

/// State of one process of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DaemonStatus {
    /// Process of the mesh: `agent`, `proxy` or `control`.
    pub name: String,
    /// Node on which the process runs; `None` for the control plane.
    pub node: Option<String>,
    /// Process id in the lab's PID namespace; `None` while the process does not run.
    pub pid: Option<u32>,
    /// Number of restarts.
    pub restarts: u32,
    /// Reason why the process last ended or could not be started.
    pub message: Option<String>,
}

/// Sends one value as a line of JSON, with file descriptors attached.
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

/// Receives one value and the file descriptors attached to its line; `None` at the end of the stream.
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
        if line.len() > MAX_LINE_BYTES {
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
