//! Accept loops of a pod's listeners on the workers, which start a task for each connection.

use std::{io, sync::Arc};

use ambit_hbone::Pool;
use ambit_proxy::{
    Accepted, Listeners, Workers,
    recheck::{Graces, Recheck},
};
use tokio::net::TcpListener;

use crate::{
    config::Config,
    dns_capture::PodDns,
    pod::{Captured, Pod, PodListeners},
    shard::Shard,
};

/// Kind of a listener, which determines how its connections are handled.
#[derive(Clone, Debug)]
enum Port {
    Outbound,
    Plaintext,
    Hbone,
    Dns(Arc<PodDns>),
}

impl Pod {
    /// Serves the pod: distributes the sets of listeners over the workers, and re-evaluates open connections when
    /// policies change. Must be called on a runtime that outlives the pod.
    pub fn serve(self: &Arc<Self>, workers: &Workers, listeners: Vec<PodListeners>) {
        let Config {
            missing_policy_grace,
            waypoint_grace,
            ..
        } = *self.config;
        let graces = Graces::new(missing_policy_grace, waypoint_grace);
        let recheck = Recheck::new(&self.local, self.connections(), graces);
        if let Some(first) = listeners.first() {
            workers.steer(&first.hbone);
        }
        workers.assign(listeners.into_iter().map(|listeners| {
            let pod = self.clone();
            move || {
                let name = pod.name().clone();
                if let Err(error) = serve(pod, listeners) {
                    tracing::error!(pod = %name, %error, "cannot serve the pod");
                }
            }
        }));
        // The first connection needs the certificate; requesting it need not wait for xDS.
        self.dialer.certificates.prefetch(self.identity());
        ambit_rt::spawn_essential("policy changes", recheck.run(self.gone()));
    }
}

/// Accepts connections of a pod on the current worker while the gate is open, until the pod drains.
fn serve(pod: Arc<Pod>, listeners: PodListeners) -> io::Result<()> {
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
        let (server, listeners) = dns.serve(&pod)?;
        for listener in listeners {
            all.push((listener, Port::Dns(server.clone())));
        }
    }
    let pool = Pool::new(pod.config.http2.clone());
    pod.state.follow_pool(&pool);
    let shard = Arc::new(Shard { pod, pool });
    ambit_rt::spawn_essential("listeners", accept(shard, Listeners::new(all)));
    Ok(())
}

async fn accept(shard: Arc<Shard>, mut listeners: Listeners<Port>) {
    let pod = &shard.pod;
    let (mut gate, mut drain) = (pod.gate.clone(), pod.drain_watcher());
    listeners
        .accept(
            pod.name(),
            &mut gate,
            &mut drain,
            || pod.serves_backlog(),
            |accepted, port| handle(shard.clone(), accepted, port),
        )
        .await;
}

fn handle(shard: Arc<Shard>, accepted: Accepted, port: Port) {
    // Each kind of connection has a task type of its own, of the size that it needs.
    match port {
        Port::Outbound => {
            ambit_rt::spawn(
                "outbound connection",
                crate::outbound::handle(shard, accepted),
            );
        }
        Port::Plaintext => {
            ambit_rt::spawn(
                "inbound connection",
                crate::plaintext::handle(shard, accepted),
            );
        }
        Port::Hbone => {
            ambit_rt::spawn("hbone server", crate::inbound::handle(shard, accepted));
        }
        Port::Dns(server) => {
            let connection = crate::dns_capture::connection(shard, accepted, server);
            ambit_rt::spawn("dns connection", connection);
        }
    }
}
