//! Sockets on port 15053 that serve the captured DNS queries of one pod.

use std::{
    io,
    net::{TcpListener, UdpSocket},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use ambit_model::DNS_PORT;
use ambit_sys::{
    datagram,
    netns::Netns,
    socket::{self, ListenSpec, SocketError, SocketKind, Transparent},
};

use crate::config::Config;

/// UDP and TCP sockets that a pod's DNS queries are redirected to.
#[derive(Debug, Default)]
pub(crate) struct DnsSockets {
    pub(crate) udp: Vec<UdpSocket>,
    pub(crate) tcp: Vec<TcpListener>,
}

impl DnsSockets {
    /// Opens the sockets inside the pod's namespace for each address family, except for those found in `inherited`.
    /// They are needed even if DNS capture is disabled: the agent may redirect queries regardless, which are then all
    /// forwarded.
    ///
    /// # Errors
    ///
    /// When a socket cannot be opened.
    pub(crate) fn open(
        config: &Config,
        netns: &Netns,
        inherited: &mut Vec<OwnedFd>,
    ) -> Result<Self, SocketError> {
        let mut sockets = Self::take_inherited(inherited, config)?;
        sockets.open_missing(config, netns, false)?;
        if config.ipv6_enabled {
            sockets.open_missing(config, netns, true)?;
        }
        Ok(sockets)
    }

    fn take_inherited(inherited: &mut Vec<OwnedFd>, config: &Config) -> Result<Self, SocketError> {
        let mut sockets = Self::default();
        for socket in std::mem::take(inherited) {
            match socket::socket_kind(&socket) {
                Ok(SocketKind::Datagram(at)) if at.port() == DNS_PORT => {
                    sockets.udp.push(socket.into());
                }
                Ok(SocketKind::Listener(at)) if at.port() == DNS_PORT => {
                    let adopted = socket::adopt_listener(socket.into(), &config.tuning)?;
                    sockets.tcp.push(adopted.listener);
                }
                _ => inherited.push(socket),
            }
        }
        Ok(sockets)
    }

    fn open_missing(
        &mut self,
        config: &Config,
        netns: &Netns,
        ipv6: bool,
    ) -> Result<(), SocketError> {
        let (mark, reuse_port) = (config.packet_mark, config.inpod_port_reuse);
        let is = |at: io::Result<std::net::SocketAddr>| at.is_ok_and(|at| at.is_ipv6() == ipv6);
        if !self.udp.iter().any(|socket| is(socket.local_addr())) {
            let opened = datagram::listen(Some(netns), ipv6, DNS_PORT, mark, reuse_port)?;
            // A pod without the address family sends no queries over it.
            let Some(socket) = opened else { return Ok(()) };
            self.udp.push(socket);
        }
        if !self.tcp.iter().any(|listener| is(listener.local_addr())) {
            let spec = ListenSpec {
                ipv6,
                loopback: true,
                reuse_port,
                transparent: Transparent::Off,
                ..ListenSpec::for_pod(DNS_PORT, mark)
            };
            self.tcp.push(socket::listen(Some(netns), &spec)?.listener);
        }
        Ok(())
    }

    /// Returns the file descriptors of the sockets.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let udp = self.udp.iter().map(AsFd::as_fd);
        udp.chain(self.tcp.iter().map(AsFd::as_fd))
    }
}
