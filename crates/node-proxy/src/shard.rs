//! One pod's proxy on one worker thread: its listeners' connections and its pool.

use std::{net::SocketAddr, sync::Arc, time::Duration};

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

/// Takes connections of a pod until its drain begins. To be run on a worker.
pub(crate) fn serve(pod: &Arc<Pod>, listeners: PodListeners) -> std::io::Result<()> {
    let pool = Pool::new(Arc::new(pod.proxy.config.http2.clone()));
    let shard = Arc::new(Shard {
        pod: pod.clone(),
        pool,
    });
    let PodListeners {
        outbound,
        plaintext,
        hbone,
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
        accept(shard, hbone, drain, |accepted| {
            ambit_rt::spawn("hbone server", crate::inbound::handle(accepted));
        }),
    );
    Ok(())
}

async fn accept(
    shard: Arc<Shard>,
    listener: TcpListener,
    mut drain: DrainWatcher,
    handle: impl Fn(Accepted),
) {
    loop {
        let accepted = tokio::select! {
            biased;
            _mode = drain.started() => return,
            accepted = listener.accept() => accepted,
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
            Err(error) => {
                tracing::warn!(pod = %shard.pod.name, %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
