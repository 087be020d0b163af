//! Accept loops of a pod's listeners on the workers, which start a task for each connection.

use std::{io, sync::Arc};

use ambit_hbone::Pool;
use ambit_proxy::{
    AcceptedConnection, Listeners, Workers,
    connection::serve_connection,
    recheck::{ConnectionRecheck, GracePeriods},
};
use tokio::net::TcpListener;

use crate::{
    config::Config,
    dns_capture::PodDns,
    pod::{CaptureListeners, Pod, PodListeners},
    shard::Shard,
};

/// Kind of a listener, which determines how its connections are handled.
#[derive(Clone, Debug)]
enum PortKind {
    Outbound,
    Plaintext,
    Hbone,
    Dns(Arc<PodDns>),
}

impl Pod {
    /// Serves the pod: distributes the sets of listeners over the workers, and re-evaluates open connections when
    /// policies change. Must be called on a runtime that outlives the pod.
    pub fn serve(self: &Arc<Self>, workers: &Workers, listeners: Vec<PodListeners>) {
        self.enter_listeners();
        let Config {
            missing_policy_grace,
            waypoint_grace,
            ..
        } = *self.config;
        let graces = GracePeriods::new(missing_policy_grace, waypoint_grace);
        let recheck = ConnectionRecheck::new(&self.local_workload, self.connections(), graces);
        if let Some(first) = listeners.first() {
            workers.steer_local_tunnels(&first.hbone);
        }
        workers.assign_jobs(listeners.into_iter().map(|listeners| {
            let pod = self.clone();
            move || {
                let name = pod.name().clone();
                if let Err(error) = serve_on_worker(pod, listeners) {
                    tracing::error!(pod = %name, %error, "cannot serve the pod");
                }
            }
        }));
        // The first connection needs the certificate; requesting it need not wait for xDS.
        self.dialer.certificates.prefetch(self.identity());
        ambit_rt::spawn_essential("policy changes", recheck.run(self.terminated()));
    }
}

/// Accepts connections of a pod on the current worker while the gate is open, until the pod drains.
fn serve_on_worker(pod: Arc<Pod>, listeners: PodListeners) -> io::Result<()> {
    let PodListeners {
        captured,
        hbone,
        dns,
    } = listeners;
    let mut all = vec![(TcpListener::from_std(hbone)?, PortKind::Hbone)];
    if let Some(CaptureListeners {
        outbound,
        plaintext,
    }) = captured
    {
        all.push((TcpListener::from_std(outbound)?, PortKind::Outbound));
        all.push((TcpListener::from_std(plaintext)?, PortKind::Plaintext));
    }
    if let Some(dns) = dns {
        let (server, listeners) = dns.serve(&pod)?;
        for listener in listeners {
            all.push((listener, PortKind::Dns(server.clone())));
        }
    }
    let pool = Pool::new(pod.config.http2.clone());
    pod.state.close_departed_connections(&pool);
    let shard = Arc::new(Shard { pod, pool });
    ambit_rt::spawn_essential("listeners", accept_connections(shard, Listeners::new(all)));
    Ok(())
}

async fn accept_connections(shard: Arc<Shard>, mut listeners: Listeners<PortKind>) {
    let pod = &shard.pod;
    let (mut gate, mut drain) = (pod.gate.clone(), pod.drain_watcher());
    listeners
        .accept(
            pod.name(),
            &mut gate,
            &mut drain,
            || pod.serves_backlog(),
            |accepted, port| handle_accepted(shard.clone(), accepted, port),
        )
        .await;
}

fn handle_accepted(shard: Arc<Shard>, accepted: AcceptedConnection, port: PortKind) {
    // Each kind of connection has a task type of its own, of the size that it needs.
    match port {
        PortKind::Outbound => {
            let opened = crate::outbound::open_connection(shard, accepted);
            ambit_rt::spawn("outbound connection", serve_connection(opened));
        }
        PortKind::Plaintext => {
            let opened = crate::plaintext::open_connection(shard, accepted);
            ambit_rt::spawn("inbound connection", serve_connection(opened));
        }
        PortKind::Hbone => {
            ambit_rt::spawn(
                "hbone server",
                crate::inbound::handle_connection(shard, accepted),
            );
        }
        PortKind::Dns(server) => {
            let connection = crate::dns_capture::serve_connection(shard, accepted, server);
            ambit_rt::spawn("dns connection", connection);
        }
    }
}
