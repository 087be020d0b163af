//! One pod's proxy on one worker thread: its listeners' connections and its pool.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ambit_hbone::Pool;
use ambit_rt::OpenWork;
use tokio::net::{TcpListener, TcpStream};

use crate::{
    dns_capture::PodDns,
    pod::{Captured, Pod, PodListeners},
};

/// How long an accept that failed (for want of descriptors, mostly) waits before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) pod: Arc<Pod>,
    pub(crate) pool: Pool,
}

/// A connection just accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) shard: Arc<Shard>,
    pub(crate) stream: TcpStream,
    /// Canonical.
    pub(crate) peer: SocketAddr,
    /// Shutdown waits for it.
    pub(crate) _open: OpenWork,
}

/// What is connected to, and so what becomes of a connection.
#[derive(Clone, Debug)]
enum Port {
    Outbound,
    Plaintext,
    Hbone,
    Dns(Arc<PodDns>),
}

/// The listeners of a pod, polled by one task: with a task each, a node's idle pods would cost their
/// proxy half as much memory again.
struct Listeners {
    all: Vec<(TcpListener, Port)>,
    /// Who is asked first, in turn: none keeps the others waiting.
    first: usize,
}

impl Listeners {
    fn poll_accept(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<(io::Result<(TcpStream, SocketAddr)>, Port)> {
        let (before, from) = self.all.split_at(self.first.min(self.all.len()));
        for (after, (listener, port)) in from.iter().chain(before).enumerate() {
            if let Poll::Ready(accepted) = listener.poll_accept(context) {
                let port = port.clone();
                self.first = (self.first + after + 1) % self.all.len();
                return Poll::Ready((accepted, port));
            }
        }
        Poll::Pending
    }
}

/// Takes connections of a pod while the gate is open, until its drain begins. To be run on a worker.
pub(crate) fn serve(pod: &Arc<Pod>, listeners: PodListeners) -> io::Result<()> {
    let pool = Pool::new(Arc::new(pod.proxy.config.http2.clone()));
    let shard = Arc::new(Shard {
        pod: pod.clone(),
        pool,
    });
    let PodListeners {
        captured,
        hbone,
        dns,
    } = listeners;
    let mut all = vec![(TcpListener::from_std(hbone)?, Port::Hbone)];
    if let Some(Captured {
        outbound,
        plaintext,
    }) = captured
    {
        all.push((TcpListener::from_std(outbound)?, Port::Outbound));
        all.push((TcpListener::from_std(plaintext)?, Port::Plaintext));
    }
    if let Some(dns) = dns {
        let (server, listeners) = dns.serve(pod)?;
        for listener in listeners {
            all.push((listener, Port::Dns(server.clone())));
        }
    }
    ambit_rt::spawn_essential("listeners", accept(shard, Listeners { all, first: 0 }));
    Ok(())
}

fn handle(accepted: Accepted, port: Port) {
    // Each kind of connection is a task of its own size.
    match port {
        Port::Outbound => {
            ambit_rt::spawn("outbound connection", crate::outbound::handle(accepted));
        }
        Port::Plaintext => {
            ambit_rt::spawn("inbound connection", crate::plaintext::handle(accepted));
        }
        Port::Hbone => {
            ambit_rt::spawn("hbone server", crate::inbound::handle(accepted));
        }
        Port::Dns(server) => {
            let connection = crate::dns_capture::connection(accepted, server);
            ambit_rt::spawn("dns connection", connection);
        }
    }
}

async fn accept(shard: Arc<Shard>, mut listeners: Listeners) {
    let mut drain = shard.pod.drain_watcher();
    let mut gate = shard.pod.proxy.gate.clone();
    let mut last = false;
    loop {
        let (accepted, port) = if last {
            // Who waits in a queue when it closes would be told that nobody listens.
            match waiting(&mut listeners).await {
                Some(accepted) => accepted,
                None => return,
            }
        } else {
            tokio::select! {
                biased;
                _mode = drain.started() => {
                    if !shard.pod.empties_queues() {
                        return;
                    }
                    last = true;
                    continue;
                }
                accepted = gate.pass(|context| listeners.poll_accept(context)) => accepted,
            }
        };
        match accepted {
            Ok((stream, peer)) => {
                let accepted = Accepted {
                    peer: ambit_model::canonical_socket(peer),
                    stream,
                    _open: drain.open_work(),
                    shard: shard.clone(),
                };
                handle(accepted, port);
            }
            Err(_) if last => return,
            Err(error) => {
                tracing::warn!(pod = %shard.pod.name, %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The next connection that is in a queue already.
async fn waiting(listeners: &mut Listeners) -> Option<(io::Result<(TcpStream, SocketAddr)>, Port)> {
    let next = poll_fn(|context| match listeners.poll_accept(context) {
        Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
        Poll::Pending => Poll::Ready(None),
    });
    tokio::task::unconstrained(next).await
}
