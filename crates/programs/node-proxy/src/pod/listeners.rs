//! Listeners of a pod: opened inside its namespace, or taken over from the previous process.

use std::{
    collections::HashSet,
    io,
    net::TcpListener,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use ambit_model::{HBONE_PORT, INBOUND_PLAINTEXT_PORT, OUTBOUND_PORT};
use ambit_sys::{
    netns::Netns,
    socket::{self, BoundListener, ListenSpec, SocketError, SocketKind, Transparent, Tuning},
};

use super::DnsSockets;
use crate::config::Config;

/// Listeners of one pod on one worker.
#[derive(Debug)]
pub struct PodListeners {
    /// Listeners on 15001 and 15006, if the pod is captured.
    pub captured: Option<CaptureListeners>,
    /// HBONE listener on port 15008.
    pub hbone: TcpListener,
    /// DNS sockets on port 15053; only one worker of a pod has them.
    pub(crate) dns: Option<DnsSockets>,
}

/// Listeners that captured connections are redirected to.
#[derive(Debug)]
pub struct CaptureListeners {
    /// Outbound listener on port 15001.
    pub outbound: TcpListener,
    /// Plaintext inbound listener on port 15006.
    pub plaintext: TcpListener,
}

impl CaptureListeners {
    /// Returns listeners that share these sockets.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            outbound: self.outbound.try_clone()?,
            plaintext: self.plaintext.try_clone()?,
        })
    }
}

impl PodListeners {
    /// Returns the file descriptors of all sockets.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let captured = self.captured.iter();
        captured
            .flat_map(|captured| [&captured.outbound, &captured.plaintext])
            .chain([&self.hbone])
            .map(AsFd::as_fd)
            .chain(self.dns.iter().flat_map(DnsSockets::descriptors))
    }
}

/// Listeners of a pod taken over from the previous process, with their ports.
#[derive(Debug, Default)]
struct InheritedListeners(Vec<(u16, TcpListener)>);

impl InheritedListeners {
    fn from_sockets(sockets: Vec<OwnedFd>) -> Self {
        let listener = |socket: OwnedFd| match socket::socket_kind(&socket) {
            Ok(SocketKind::Listener(at)) => Some((at.port(), TcpListener::from(socket))),
            Ok(SocketKind::Datagram(_)) => None,
            Err(error) => {
                tracing::warn!(%error, "a socket that was handed over cannot be used");
                None
            }
        };
        Self(sockets.into_iter().filter_map(listener).collect())
    }

    fn take_port(&mut self, port: u16) -> Option<TcpListener> {
        let index = self.0.iter().position(|(of, _)| *of == port)?;
        Some(self.0.swap_remove(index).1)
    }

    /// Returns the number of listener sets that are needed to use all inherited listeners.
    fn complete_set_count(&self) -> usize {
        let of = |port| self.0.iter().filter(|(at, _)| *at == port).count();
        [OUTBOUND_PORT, INBOUND_PLAINTEXT_PORT, HBONE_PORT]
            .map(of)
            .into_iter()
            .max()
            .unwrap_or(0)
    }
}

/// Opens the listeners of a captured pod, one set for each worker, and returns whether connections to its application
/// may have the client's address as their source. Listeners among `inherited` are used unchanged, also surplus ones:
/// connections may wait in any of them.
///
/// # Errors
///
/// When a listener cannot be opened; then none stays open.
pub(super) fn open_captured(
    config: &Config,
    netns: &Netns,
    mut inherited: Vec<OwnedFd>,
    workers: usize,
) -> Result<(Vec<PodListeners>, bool), SocketError> {
    let dns = DnsSockets::open(config, netns, &mut inherited)?;
    let mut preserves_client_address = true;
    let tuning_of = |port| Tuning {
        is_local: port == OUTBOUND_PORT,
        // Count of the two ports that applications' connections arrive on.
        resets: port != HBONE_PORT,
        ..config.tuning
    };
    let spec_of = |port| ListenSpec {
        ipv6: config.ipv6_enabled,
        reuse_port: config.inpod_port_reuse || workers > 1,
        transparent: config.original_source,
        tuning: tuning_of(port),
        ..ListenSpec::for_pod(port, config.packet_mark)
    };
    let mut inherited = InheritedListeners::from_sockets(inherited);
    let sets = inherited.complete_set_count().max(workers.max(1));
    let mut open = |port| {
        let BoundListener {
            listener,
            transparent,
        } = if let Some(listener) = inherited.take_port(port) {
            socket::adopt_listener(listener, &tuning_of(port))?
        } else {
            socket::listen(Some(netns), &spec_of(port))?
        };
        preserves_client_address &= transparent;
        Ok(listener)
    };
    let mut listeners = (0..sets)
        .map(|_| {
            Ok(PodListeners {
                captured: Some(CaptureListeners {
                    outbound: open(OUTBOUND_PORT)?,
                    plaintext: open(INBOUND_PLAINTEXT_PORT)?,
                }),
                hbone: open(HBONE_PORT)?,
                dns: None,
            })
        })
        .collect::<Result<Vec<_>, SocketError>>()?;
    // Pods differ in which worker serves their DNS.
    let turn = usize::try_from(netns.id().ino).unwrap_or_default() % sets;
    if let Some(set) = listeners.get_mut(turn) {
        set.dns = Some(dns);
    }
    Ok((listeners, preserves_client_address))
}

/// Opens the HBONE listeners of the proxy's own pod, one for each worker.
///
/// # Errors
/// When a listener cannot be opened.
pub(super) fn open_own(
    config: &Config,
    netns: &Netns,
    workers: usize,
) -> Result<Vec<PodListeners>, SocketError> {
    let spec = ListenSpec {
        ipv6: config.ipv6_enabled,
        transparent: Transparent::Off,
        tuning: config.tuning,
        ..ListenSpec::for_pod(HBONE_PORT, config.packet_mark)
    };
    let open = |_| {
        Ok(PodListeners {
            captured: None,
            hbone: socket::listen(Some(netns), &spec)?.listener,
            dns: None,
        })
    };
    (0..workers.max(1)).map(open).collect()
}

/// Returns the inode numbers of the listeners' sockets, which are the same in every process.
pub(super) fn listener_inodes(listeners: &[PodListeners]) -> HashSet<u64> {
    let inode = |socket: BorrowedFd<'_>| rustix::fs::fstat(socket).map(|stat| stat.st_ino);
    listeners
        .iter()
        .flat_map(PodListeners::descriptors)
        .filter_map(|socket| inode(socket).ok())
        .collect()
}
