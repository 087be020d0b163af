//! Serves DNS queries in UDP datagrams.

mod ports;

use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use ambit_rt::{DrainMode, DrainWatcher};
use ambit_sys::conntrack::{self, Sockets};
use tokio::{net::UdpSocket, sync::Semaphore, time::timeout};

use crate::{
    question::{Question, Unanswerable},
    server::{Host, Pending, Server, Step},
    transport::Transport,
};
use ports::Ports;

/// Maximum length of a query in bytes; longer datagrams are truncated, and thus refused.
const MAX_QUERY_BYTES: usize = 4096;
/// Pause after a socket error that no client caused.
const ERROR_PAUSE: Duration = Duration::from_millis(20);

/// Permit for removing conntrack entries, for one removed pod at a time.
static CONNTRACK_CLEANUP: Semaphore = Semaphore::const_new(1);

/// Serves datagrams until the drain begins, and then until no more arrive. The kernel keeps redirecting source ports
/// of the pod that were redirected before, even after the rules are removed. Conntrack entries of ports without a
/// socket are removed when the drain begins, the others at its end.
pub async fn serve_datagrams<H: Host>(
    socket: UdpSocket,
    server: Arc<Server<H>>,
    mut drain: DrainWatcher,
) {
    let socket = Arc::new(socket);
    let mut ports = Ports::default();
    loop {
        let mode = tokio::select! {
            biased;
            mode = drain.started() => Some(mode),
            ready = socket.readable() => {
                follow_up(ready).await;
                None
            }
        };
        match mode {
            None if server.host.has_turn() => take_all(&socket, &server, &mut ports).await,
            None => {
                tokio::select! {
                    _mode = drain.started() => {}
                    () = server.host.turn() => {}
                }
            }
            Some(DrainMode::Immediate) => return,
            // Another process shares the socket and continues to serve it.
            Some(DrainMode::Graceful { .. }) if !server.host.has_turn() => return,
            Some(DrainMode::Graceful { .. }) => {
                // Boxed, since every pod has this task all the time but needs this part only once.
                let run_out = Box::pin(run_out(&socket, &server, &mut ports));
                let cut = Box::pin(drain.cut());
                return tokio::select! {
                    () = run_out => {}
                    () = cut => {}
                };
            }
        }
    }
}

async fn follow_up(ready: io::Result<()>) {
    if let Err(error) = ready {
        tracing::warn!(%error, "cannot wait for DNS questions");
        tokio::time::sleep(ERROR_PAUSE).await;
    }
}

async fn run_out<H: Host>(socket: &Arc<UdpSocket>, server: &Arc<Server<H>>, ports: &mut Ports) {
    let closed = forget(socket, server, ports.list(), Sockets::Closed);
    take_meanwhile(socket, server, ports, closed).await;
    while let Ok(ready) = timeout(server.limits.quiet, socket.readable()).await {
        follow_up(ready).await;
        take_all(socket, server, ports).await;
    }
    let all = forget(socket, server, ports.list(), Sockets::All);
    take_meanwhile(socket, server, ports, all).await;
}

/// Serves datagrams until the future `work` completes.
async fn take_meanwhile<H: Host>(
    socket: &Arc<UdpSocket>,
    server: &Arc<Server<H>>,
    ports: &mut Ports,
    work: impl Future<Output = ()>,
) {
    let mut work = pin!(work);
    loop {
        let ready = tokio::select! {
            biased;
            () = &mut work => return,
            ready = socket.readable() => ready,
        };
        follow_up(ready).await;
        take_all(socket, server, ports).await;
    }
}

/// Removes the conntrack entries of datagrams from these source ports.
fn forget<H>(
    socket: &UdpSocket,
    server: &Server<H>,
    ports: Vec<u16>,
    sockets: Sockets,
) -> impl Future<Output = ()> + use<H> {
    let (at, netns) = (socket.local_addr(), server.egress.netns.clone());
    async move {
        let (Ok(at), Some(netns)) = (at, netns) else {
            return;
        };
        // Whole namespaces may be removed at once: pods are handled one at a time, and not on the
        // threads that relay connections.
        let Ok(_turn) = CONNTRACK_CLEANUP.acquire().await else {
            return;
        };
        let forget = move || conntrack::forget_redirected(&netns, at, &ports, sockets);
        let forgotten = ambit_rt::spawn_blocking("forget redirected questions", forget).await;
        if let Ok(Err(error)) = forgotten {
            tracing::debug!(%error, "ports of the pod are redirected until the kernel forgets");
        }
    }
}

/// Handles all queued datagrams, without starving other tasks of the thread.
async fn take_all<H: Host>(socket: &Arc<UdpSocket>, server: &Arc<Server<H>>, ports: &mut Ports) {
    loop {
        match receive(socket) {
            Ok((bytes, client)) => {
                ports.insert(client.port());
                take(socket, server, &bytes, client);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // A client that did not wait for its answer; the socket is still usable.
            Err(error) => tracing::debug!(%error, "a DNS client has gone"),
        }
        tokio::task::consume_budget().await;
    }
}

fn receive(socket: &UdpSocket) -> io::Result<(Vec<u8>, SocketAddr)> {
    let mut buffer = [0; MAX_QUERY_BYTES];
    let (len, client) = socket.try_recv_from(&mut buffer)?;
    Ok((buffer.get(..len).unwrap_or_default().to_vec(), client))
}

fn take<H: Host>(
    socket: &Arc<UdpSocket>,
    server: &Arc<Server<H>>,
    bytes: &[u8],
    client: SocketAddr,
) {
    let question = match Question::parse(bytes) {
        Ok(question) => question,
        Err(Unanswerable::Refused(refusal, _)) => return send(socket, &refusal, client),
        Err(Unanswerable::Noise) => return,
    };
    match server.begin(&question, Transport::Udp) {
        Step::Answer(answer) => send(socket, &answer, client),
        Step::Pending(later) => {
            let (socket, server) = (socket.clone(), server.clone());
            ambit_rt::spawn("dns question", async move {
                finish(&socket, &server, &question, later, client).await;
            });
        }
    }
}

async fn finish<H: Host>(
    socket: &UdpSocket,
    server: &Server<H>,
    question: &Question,
    later: Pending,
    client: SocketAddr,
) {
    let answer = match server.room() {
        None => server.refuse(question, Transport::Udp),
        Some(_room) => {
            let resolver = original_server(socket, server, client);
            server
                .finish(question, Transport::Udp, later, resolver)
                .await
        }
    };
    send(socket, &answer, client);
}

/// Returns the original destination of a client's query: the DNS server that the client addressed.
fn original_server<H>(
    socket: &UdpSocket,
    server: &Server<H>,
    client: SocketAddr,
) -> Option<SocketAddr> {
    let at = socket.local_addr().ok()?;
    let netns = server.egress.netns.as_ref();
    match conntrack::original_destination(netns, client, at) {
        Ok(resolver) => resolver,
        Err(error) => {
            tracing::debug!(%error, "cannot determine the DNS server of a query");
            None
        }
    }
}

fn send(socket: &UdpSocket, answer: &[u8], client: SocketAddr) {
    // The send queue is full or the client is gone: the client may retry.
    if let Err(error) = socket.try_send_to(answer, client) {
        tracing::debug!(%error, "a DNS answer was not sent");
    }
}

#[cfg(test)]
mod tests;
