//! `SOCK_SEQPACKET` over Unix sockets, with at most one descriptor a record.
//!
//! [`SeqPacket`] and [`SeqPacketListener`] are for async tasks; [`plain`] is for a process without an async runtime.
//! This module does not interpret records. A record that is too long or carries more than one descriptor is an error,
//! and no received descriptor is ever leaked.
//!
//! Does not interpret records. What a peer sends beyond the contract (longer records, more
//! descriptors) is an error of that record, and no descriptor is ever leaked.

use std::{
    fs, io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
        SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
    },
};
use tokio::io::{Interest, unix::AsyncFd};

/// Maximum descriptors that one receive call accepts: more than the protocol allows, so that surplus ones are noticed
/// and closed.
const MAX_RECEIVED_FDS: usize = 4;

const SOCKET_FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Length of the listening socket's accept queue.
const LISTEN_BACKLOG: i32 = 64;

/// Length and descriptor of a received record.
#[derive(Debug)]
pub struct ReceivedRecord {
    /// Length of the record in bytes; zero if the peer closed the socket.
    pub len: usize,
    /// Descriptor attached to the record.
    pub fd: Option<OwnedFd>,
}

/// File of a listening socket. Dropping it removes the file, unless a successor has replaced it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

/// Socket that listens at a path. Dropping it removes the file, unless a successor has replaced it.
#[derive(Debug)]
pub struct SeqPacketListener {
    socket: AsyncFd<OwnedFd>,
    _file: SocketFile,
}

impl SeqPacketListener {
    /// Listens at `path`, and replaces the file of an earlier process.
    ///
    /// # Errors
    /// When the path cannot be bound, or is too long for a socket address.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        let (socket, file) = listen_at(path.as_ref(), None)?;
        Ok(Self {
            socket: into_async_fd(socket)?,
            _file: file,
        })
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// When accepting fails, for instance for lack of descriptors.
    pub async fn accept(&self) -> io::Result<SeqPacket> {
        let accepted = self
            .socket
            .async_io(Interest::READABLE, |socket| {
                Ok(accept_with(socket, SOCKET_FLAGS)?)
            })
            .await?;
        SeqPacket::new(accepted)
    }
}

/// Creates a listening socket. It listens before its file replaces an existing one, so that clients find a listening
/// socket at every moment. `mode` sets the file's permissions before any client can connect.
fn listen_at(path: &Path, mode: Option<u32>) -> io::Result<(OwnedFd, SocketFile)> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = new_socket()?;
    bind(&socket, &SocketAddrUnix::new(&new)?)?;
    if let Some(mode) = mode {
        fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    }
    listen(&socket, LISTEN_BACKLOG)?;
    let inode = fs::metadata(&new)?.ino();
    let path = path.to_owned();
    fs::rename(&new, &path)?;
    Ok((socket, SocketFile { path, inode }))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a socket's file");
        }
    }
}

/// SEQPACKET connection for tasks, which may send and receive concurrently.
#[derive(Debug)]
pub struct SeqPacket {
    socket: AsyncFd<OwnedFd>,
}

impl SeqPacket {
    fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            socket: into_async_fd(socket)?,
        })
    }

    /// Connects to the listener at `path`.
    ///
    /// # Errors
    /// When there is no listener; `WouldBlock` when its queue is full.
    pub fn connect(path: impl AsRef<Path>) -> impl Future<Output = io::Result<Self>> {
        // A Unix connect never blocks, but callers may rely on a future.
        std::future::ready(Self::connect_now(path.as_ref()))
    }

    fn connect_now(path: &Path) -> io::Result<Self> {
        Self::new(plain::connect_to(path)?)
    }

    /// Converts the descriptor of a connected socket, for instance an inherited one.
    ///
    /// # Errors
    /// When the descriptor is not such a connection.
    pub fn from_fd(socket: OwnedFd) -> io::Result<Self> {
        if rustix::net::sockopt::socket_type(&socket)? != SocketType::SEQPACKET {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the descriptor is not a SOCK_SEQPACKET connection",
            ));
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        Self::new(socket)
    }

    /// Creates a pair of connected sockets.
    ///
    /// # Errors
    /// When the kernel cannot make a socket.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SOCKET_FLAGS,
            None,
        )?;
        Ok((Self::new(one)?, Self::new(other)?))
    }

    /// Sends one record, with at most one descriptor.
    ///
    /// # Errors
    /// `BrokenPipe` when the peer has closed; otherwise the kernel's error.
    pub async fn send(&self, record: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let sent = self
            .socket
            .async_io(Interest::WRITABLE, |socket| {
                Ok(try_send(socket, record, fd)?)
            })
            .await?;
        if sent == record.len() {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::WriteZero,
                "the record was sent in part",
            ))
        }
    }

    /// Sends one record, blocking the thread while the peer's queue is full. For peers that always read.
    ///
    /// # Errors
    /// As [`Self::send`]; `TimedOut` when the peer does not read.
    pub fn send_blocking(&self, record: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        plain::send_with_timeout(self.socket.get_ref(), record, fd)
    }

    /// Receives one record into `buffer`.
    ///
    /// # Errors
    /// `InvalidData` when the record was longer than `buffer` or carried more than one descriptor
    /// (all are closed then); otherwise the kernel's error.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<ReceivedRecord> {
        self.socket
            .async_io(Interest::READABLE, |socket| {
                try_recv(socket.as_fd(), buffer)
            })
            .await
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SOCKET_FLAGS,
        None,
    )
}

#[expect(
    deprecated,
    reason = "`register` asks for `unsafe`; an `OwnedFd` always names its one open descriptor"
)]
fn into_async_fd(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(socket)
}

fn try_send(socket: &OwnedFd, record: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    sendmsg(
        socket,
        &[io::IoSlice::new(record)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
}

fn try_recv(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<ReceivedRecord> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RECEIVED_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(
        socket,
        &mut [io::IoSliceMut::new(buffer)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    // Collecting takes ownership, so every descriptor is closed on the early returns below.
    let mut fds: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a record was too long",
        ));
    }
    if message.flags.contains(ReturnFlags::CTRUNC) || fds.len() > 1 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a record came with more than one descriptor",
        ));
    }
    Ok(ReceivedRecord {
        len: message.bytes,
        fd: fds.pop(),
    })
}

/// Variant without async runtime: calls return at once (`EAGAIN`), and the caller polls the descriptors.
pub mod plain {
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// Timeout of [`SeqPacket::send_blocking`].
    const SEND_TIMEOUT: Duration = Duration::from_secs(5);

    /// Nonblocking listening socket; see [`SeqPacketListener`].
    #[derive(Debug)]
    pub struct Listener {
        socket: OwnedFd,
        _file: SocketFile,
    }

    impl Listener {
        /// Listens at `path`, and replaces the file of an earlier process. Only the same user may connect.
        ///
        /// # Errors
        /// When the path cannot be bound.
        pub fn bind(path: &Path) -> io::Result<Self> {
            let (socket, file) = listen_at(path, Some(0o600))?;
            Ok(Self {
                socket,
                _file: file,
            })
        }

        /// Accepts the next connection, if one is waiting.
        ///
        /// # Errors
        /// `WouldBlock` when none is waiting.
        pub fn accept(&self) -> io::Result<OwnedFd> {
            Ok(accept_with(&self.socket, SOCKET_FLAGS)?)
        }
    }

    impl AsFd for Listener {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }
    }

    /// Connects to the listener at `path`.
    ///
    /// # Errors
    /// When there is no listener.
    pub fn connect_to(path: &Path) -> io::Result<OwnedFd> {
        let socket = new_socket()?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    /// Creates a pair of connected nonblocking sockets.
    ///
    /// # Errors
    /// When the kernel cannot make a socket.
    pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        Ok(rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SOCKET_FLAGS,
            None,
        )?)
    }

    /// Sends one record, with at most one descriptor.
    ///
    /// # Errors
    /// `WouldBlock` when the peer's queue is full (of records, or of descriptors); `BrokenPipe` when
    /// it has closed.
    pub fn send(socket: &OwnedFd, record: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        match try_send(socket, record, fd) {
            Ok(_) => Ok(()),
            Err(Errno::TOOMANYREFS) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives one record into `buffer`.
    ///
    /// # Errors
    /// `WouldBlock` when there is none; otherwise as [`SeqPacket::recv`].
    pub fn recv(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<ReceivedRecord> {
        try_recv(socket.as_fd(), buffer)
    }

    pub(super) fn send_with_timeout(
        socket: &OwnedFd,
        record: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let began = std::time::Instant::now();
        loop {
            match send(socket, record, fd) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if began.elapsed() > SEND_TIMEOUT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut fds = [PollFd::new(socket, PollFlags::OUT)];
            let pause = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 100_000_000,
            };
            poll(&mut fds, Some(&pause))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[tokio::test]
    async fn records_and_descriptors_arrive_as_sent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zds.sock");
        let listener = SeqPacketListener::bind(&path).unwrap();
        let client = SeqPacket::connect(&path).await.unwrap();
        let server = listener.accept().await.unwrap();
        let file = fs::File::open("/proc/self/ns/net").unwrap();
        server.send(b"one", Some(file.as_fd())).await.unwrap();
        server.send(b"two", None).await.unwrap();
        let mut buffer = [0; 16];
        let first = client.recv(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..first.len], b"one");
        let fd = first.fd.unwrap();
        assert_ne!(fd.as_raw_fd(), file.as_raw_fd());
        assert_eq!(
            rustix::fs::fstat(&fd).unwrap().st_ino,
            rustix::fs::fstat(&file).unwrap().st_ino
        );
        assert!(
            rustix::io::fcntl_getfd(&fd)
                .unwrap()
                .contains(rustix::io::FdFlags::CLOEXEC)
        );
        let second = client.recv(&mut buffer).await.unwrap();
        assert_eq!(
            (&buffer[..second.len], second.fd.is_none()),
            (&b"two"[..], true)
        );
        drop(server);
        assert_eq!(client.recv(&mut buffer).await.unwrap().len, 0);
        assert_eq!(
            client.send(b"x", None).await.unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn oversized_record_is_an_error_and_the_next_one_is_intact() {
        let (a, b) = SeqPacket::pair().unwrap();
        let file = fs::File::open("/proc/self/status").unwrap();
        a.send(&[7; 100], Some(file.as_fd())).await.unwrap();
        a.send(b"ok", None).await.unwrap();
        let mut buffer = [0; 10];
        let error = b.recv(&mut buffer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(b.recv(&mut buffer).await.unwrap().len, 2);
    }

    #[tokio::test]
    async fn more_than_one_descriptor_is_an_error() {
        let (a, b) = SeqPacket::pair().unwrap();
        for count in [2, 9] {
            let files: Vec<_> = (0..count)
                .map(|_| fs::File::open("/proc/self/status").unwrap())
                .collect();
            let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let payload = [io::IoSlice::new(b"x")];
            sendmsg(
                a.socket.get_ref(),
                &payload,
                &mut control,
                SendFlags::empty(),
            )
            .unwrap();
            let error = b.recv(&mut [0; 10]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[tokio::test]
    async fn stale_socket_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zds.sock");
        let old = SeqPacketListener::bind(&path).unwrap();
        let new = SeqPacketListener::bind(&path).unwrap();
        let _client = SeqPacket::connect(&path).await.unwrap();
        new.accept().await.unwrap();
        drop(old);
        assert!(path.exists(), "the successor's file stays");
    }
}
