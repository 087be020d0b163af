//! Serves DNS queries in UDP datagrams.

mod ports;

use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use ambit_rt::{DrainMode, DrainWatcher};
use ambit_sys::conntrack::{self, UdpSocketSelection};
use tokio::{net::UdpSocket, sync::Semaphore, time::timeout};

use crate::{
    question::{DnsQuery, QueryRejection},
    server::{DnsHost, PendingReason, QueryStep, Server},
    transport::Transport,
};
use ports::PortSet;

/// Maximum length of a query in bytes; longer datagrams are truncated and then rejected.
const MAX_QUERY_BYTES: usize = 4096;
/// Pause after a socket error that is not due to a client.
const ERROR_PAUSE: Duration = Duration::from_millis(20);

/// Semaphore that limits the removal of conntrack entries to one pod at a time.
static CONNTRACK_CLEANUP: Semaphore = Semaphore::const_new(1);

/// Serves datagrams until the drain begins and then no more arrive. Even after the redirection rules are removed, the
/// kernel continues to redirect source ports that it redirected before. So the conntrack entries of closed ports are
/// removed when the drain begins, all others at its end.
pub async fn serve_datagrams<H: DnsHost>(
    socket: UdpSocket,
    server: Arc<Server<H>>,
    mut drain: DrainWatcher,
) {
    let socket = Arc::new(socket);
    let mut ports = PortSet::default();
    loop {
        let mode = tokio::select! {
            biased;
            mode = drain.wait_until_started() => Some(mode),
            ready = socket.readable() => {
                pause_on_error(ready).await;
                None
            }
        };
        match mode {
            None if server.host.is_serving() => {
                handle_queued_datagrams(&socket, &server, &mut ports).await
            }
            None => {
                tokio::select! {
                    _mode = drain.wait_until_started() => {}
                    () = server.host.wait_until_serving() => {}
                }
            }
            Some(DrainMode::Immediate) => return,
            // Another process shares the socket and continues to serve it.
            Some(DrainMode::Graceful { .. }) if !server.host.is_serving() => return,
            Some(DrainMode::Graceful { .. }) => {
                // Boxed, since every pod has this task all the time but needs this part only once.
                let run_out = Box::pin(serve_during_drain(&socket, &server, &mut ports));
                let cut = Box::pin(drain.wait_until_deadline());
                return tokio::select! {
                    () = run_out => {}
                    () = cut => {}
                };
            }
        }
    }
}

async fn pause_on_error(ready: io::Result<()>) {
    if let Err(error) = ready {
        tracing::warn!(%error, "cannot wait for DNS questions");
        tokio::time::sleep(ERROR_PAUSE).await;
    }
}

async fn serve_during_drain<H: DnsHost>(
    socket: &Arc<UdpSocket>,
    server: &Arc<Server<H>>,
    ports: &mut PortSet,
) {
    let closed = remove_conntrack_entries(socket, server, ports.list(), UdpSocketSelection::Closed);
    serve_while_running(socket, server, ports, closed).await;
    while let Ok(ready) = timeout(server.limits.retransmit_interval, socket.readable()).await {
        pause_on_error(ready).await;
        handle_queued_datagrams(socket, server, ports).await;
    }
    let all = remove_conntrack_entries(socket, server, ports.list(), UdpSocketSelection::All);
    serve_while_running(socket, server, ports, all).await;
}

/// Serves datagrams while the future `work` runs.
async fn serve_while_running<H: DnsHost>(
    socket: &Arc<UdpSocket>,
    server: &Arc<Server<H>>,
    ports: &mut PortSet,
    work: impl Future<Output = ()>,
) {
    let mut work = pin!(work);
    loop {
        let ready = tokio::select! {
            biased;
            () = &mut work => return,
            ready = socket.readable() => ready,
        };
        pause_on_error(ready).await;
        handle_queued_datagrams(socket, server, ports).await;
    }
}

/// Removes the conntrack entries that redirect datagrams from these source ports of the pod.
fn remove_conntrack_entries<H>(
    socket: &UdpSocket,
    server: &Server<H>,
    ports: Vec<u16>,
    sockets: UdpSocketSelection,
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
        let forget = move || conntrack::delete_redirected_entries(&netns, at, &ports, sockets);
        let forgotten = ambit_rt::spawn_blocking("forget redirected questions", forget).await;
        if let Ok(Err(error)) = forgotten {
            tracing::debug!(%error, "ports of the pod are redirected until the kernel forgets");
        }
    }
}

/// Handles all datagrams in the socket's queue, yielding to other tasks of the thread.
async fn handle_queued_datagrams<H: DnsHost>(
    socket: &Arc<UdpSocket>,
    server: &Arc<Server<H>>,
    ports: &mut PortSet,
) {
    loop {
        match receive(socket) {
            Ok((bytes, client)) => {
                ports.insert(client.port());
                handle_datagram(socket, server, &bytes, client);
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

fn handle_datagram<H: DnsHost>(
    socket: &Arc<UdpSocket>,
    server: &Arc<Server<H>>,
    bytes: &[u8],
    client: SocketAddr,
) {
    let question = match DnsQuery::parse(bytes) {
        Ok(question) => question,
        Err(QueryRejection::ErrorResponse(refusal, _)) => return send(socket, &refusal, client),
        Err(QueryRejection::Ignored) => return,
    };
    match server.start_query(&question, Transport::Udp) {
        QueryStep::Answer(answer) => send(socket, &answer, client),
        QueryStep::Pending(later) => {
            let (socket, server) = (socket.clone(), server.clone());
            ambit_rt::spawn("dns question", async move {
                complete_query(&socket, &server, &question, later, client).await;
            });
        }
    }
}

async fn complete_query<H: DnsHost>(
    socket: &UdpSocket,
    server: &Server<H>,
    question: &DnsQuery,
    reason: PendingReason,
    client: SocketAddr,
) {
    let answer = match server.try_acquire_query_permit() {
        None => server.refuse_query(question, Transport::Udp),
        Some(_room) => {
            let resolver = original_dns_server(socket, server, client);
            server
                .complete_query(question, Transport::Udp, reason, resolver)
                .await
        }
    };
    send(socket, &answer, client);
}

/// Returns the original destination of a client's query: the DNS server that the client addressed.
fn original_dns_server<H>(
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
