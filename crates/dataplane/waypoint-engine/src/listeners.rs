//! Listening sockets for HBONE connections, one per worker thread. The supervisor process keeps them open, so that
//! connections wait in the accept queues between the death of a worker process and the start of the next one.

use std::{
    net::TcpListener,
    os::fd::{AsFd, OwnedFd},
};

use ambit_handover::{Handover, Supervisor};
use ambit_model::HBONE_PORT;
use ambit_sys::socket::{self, BoundListener, ListenSpec, SocketError, Transparent};

use crate::config::Config;

/// Name under which the supervisor stores the listeners.
const HANDOVER_NAME: &str = "tunnels";

/// Takes over all listeners of the previous process, since connections may wait in any of their accept queues, or binds
/// the port; then stores the listeners at the supervisor.
///
/// # Errors
/// When the port cannot be bound.
pub fn open(
    config: &Config,
    supervisor: &Supervisor,
    handover: Handover<OwnedFd>,
) -> Result<Vec<TcpListener>, SocketError> {
    let items = handover
        .into_items()
        .filter(|(name, _)| &**name == HANDOVER_NAME);
    let inherited = items.flat_map(|(_, item)| item.descriptors);
    let inherited = inherited.map(|socket| socket::adopt_listener(socket.into(), &config.tuning));
    let mut listening = inherited.collect::<Result<Vec<_>, _>>()?;
    let spec = ListenSpec {
        ipv6: config.ipv6,
        reuse_port: true,
        transparent: Transparent::Off,
        tuning: config.tuning,
        ..ListenSpec::for_pod(HBONE_PORT, None)
    };
    while listening.len() < config.workers.max(1) {
        listening.push(socket::listen(None, &spec)?);
    }
    let listeners = listening
        .into_iter()
        .map(|BoundListener { listener, .. }| listener);
    let listeners: Vec<_> = listeners.collect();
    let descriptors: Vec<_> = listeners.iter().map(AsFd::as_fd).collect();
    supervisor.store_item(HANDOVER_NAME, &[], &descriptors);
    Ok(listeners)
}

/// Removes the listeners from the supervisor when no further process will accept from them, so that clients are
/// rejected instead of waiting.
pub fn release(supervisor: &Supervisor) {
    supervisor.release_item(HANDOVER_NAME);
}
