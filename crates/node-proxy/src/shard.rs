//! One pod's proxy on one worker thread: its listeners' connections and its pool.

use std::{future::poll_fn, io, net::SocketAddr, sync::Arc, task::Poll, time::Duration};

use ambit_hbone::Pool;
use ambit_rt::{DrainWatcher, OpenWork};
use tokio::net::{TcpListener, TcpStream};

use crate::pod::{Pod, PodListeners};

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

/// Takes connections of a pod while the gate is open, until its drain begins. To be run on a worker.
pub(crate) fn serve(pod: &Arc<Pod>, listeners: PodListeners) -> io::Result<()> {
    let pool = Pool::new(Arc::new(pod.proxy.config.http2.clone()));
    let shard = Arc::new(Shard {
        pod: pod.clone(),
        pool,
    });
    let PodListeners {
        outbound,
        plaintext,
        hbone,
        dns,
    } = listeners;
    let outbound = TcpListener::from_std(outbound)?;
    let plaintext = TcpListener::from_std(plaintext)?;
    let hbone = TcpListener::from_std(hbone)?;
    let drain = pod.drain_watcher();
    ambit_rt::spawn(
        "outbound",
        accept(shard.clone(), outbound, drain.clone(), |accepted| {
            ambit_rt::spawn("outbound connection", crate::outbound::handle(accepted));
        }),
    );
    ambit_rt::spawn(
        "inbound plaintext",
        accept(shard.clone(), plaintext, drain.clone(), |accepted| {
            ambit_rt::spawn("inbound connection", crate::plaintext::handle(accepted));
        }),
    );
    ambit_rt::spawn(
        "inbound",
        accept(shard.clone(), hbone, drain.clone(), |accepted| {
            ambit_rt::spawn("hbone server", crate::inbound::handle(accepted));
        }),
    );
    if let Some(dns) = dns {
        dns.serve(&shard, |listener, server| {
            accept(shard.clone(), listener, drain.clone(), move |accepted| {
                let connection = crate::dns_capture::connection(accepted, server.clone());
                ambit_rt::spawn("dns connection", connection);
            })
        })?;
    }
    Ok(())
}

async fn accept(
    shard: Arc<Shard>,
    listener: TcpListener,
    mut drain: DrainWatcher,
    handle: impl Fn(Accepted),
) {
    let mut gate = shard.pod.proxy.gate.clone();
    let mut last = false;
    loop {
        let accepted = if last {
            // Who waits in the queue when it closes would be told that nobody listens.
            match waiting(&listener).await {
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
                accepted = gate.pass(&listener) => accepted,
            }
        };
        match accepted {
            Ok((stream, peer)) => {
                handle(Accepted {
                    peer: ambit_model::canonical_socket(peer),
                    stream,
                    _open: drain.open_work(),
                    shard: shard.clone(),
                });
            }
            Err(_) if last => return,
            Err(error) => {
                tracing::warn!(pod = %shard.pod.name, %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The next connection that is in the queue already.
async fn waiting(listener: &TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    let next = poll_fn(|context| match listener.poll_accept(context) {
        Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
        Poll::Pending => Poll::Ready(None),
    });
    tokio::task::unconstrained(next).await
}
