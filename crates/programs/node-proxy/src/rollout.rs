//! One proxy following another: when this one begins to take connections, and when it stops.
//!
//! Both hold the same sockets (see [`ambit_handover`]), so at any moment one of them takes the
//! connections, or they wait in the kernel's queues: none is refused. The new one begins when it
//! knows the mesh and has the certificates of the pods it was handed; that also makes it ready, and
//! so lets the rollout end the old one. The old one, told to end while nobody has followed it, serves
//! on as if nothing had been said until somebody has, and drains then; with its time almost over it
//! drains all the same, so that its peers hear of the end before it comes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_certificates::Certificates;
use ambit_handover::{Accept, Keeper};
use ambit_model::Identity;
use ambit_rt::ReadyTask;
use tokio::{sync::watch, time::sleep};

use crate::{gate::GateKeeper, pod::Proxy, pods::Served};

/// How long certificates that the CA refuses are waited for: it may not have heard of the pods.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// What of its time an old proxy keeps for draining: a quarter, at most this.
const DRAIN_RESERVE: Duration = Duration::from_secs(5);
/// How often it looks whether anybody still needs it.
const LOOK: Duration = Duration::from_millis(100);

/// Opens and closes the gate as the supervisor says.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) served: Served,
    pub(crate) keeper: Keeper,
    pub(crate) gate: GateKeeper,
    pub(crate) ready: ReadyTask,
}

impl Turn {
    /// Runs for the life of the process. `mesh_known` turns true with the first full answer of the
    /// control plane.
    pub(crate) async fn follow(self, mut mesh_known: watch::Receiver<bool>) {
        let mut accept = self.keeper.accept();
        loop {
            let now = *accept.borrow_and_update();
            match now {
                Accept::Now => self.begin(),
                Accept::Paused => {
                    self.gate.set(false);
                    tracing::info!("the successor takes the connections");
                }
                Accept::WhenReady => tokio::select! {
                    () = self.prepared(&mut mesh_known) => self.begin(),
                    Ok(()) = accept.changed() => continue,
                },
            }
            if accept.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn begin(&self) {
        self.gate.set(true);
        self.ready.ready();
        self.keeper.accepting();
        tracing::info!(pods = self.served.pods().len(), "taking connections");
    }

    async fn prepared(&self, mesh_known: &mut watch::Receiver<bool>) {
        if mesh_known.wait_for(|known| *known).await.is_err() {
            // Nobody will ever say so: the mesh is a file's, and known.
        }
        // They were asked for when the pods were restored.
        let pods = self.served.pods();
        let identities: Vec<_> = pods.iter().map(|pod| &pod.identity).collect();
        at_hand(&self.proxy.certificates, &identities).await;
    }
}

/// Waits for certificates that were asked for. Trouble on the way to the CA is no reason to begin without: the
/// old proxy has certificates. What the CA refuses it may refuse for ever.
async fn at_hand(certificates: &Certificates, identities: &[&Identity]) {
    let all = async {
        for identity in identities {
            certificates.obtained(identity).await;
        }
    };
    let all_but_refused = async {
        loop {
            sleep(REFUSED_FOR).await;
            let mut awaited = identities.iter();
            if !awaited.any(|identity| certificates.is_awaited(identity)) {
                return;
            }
            tracing::warn!("not taking over yet: certificates are missing");
        }
    };
    tokio::select! {
        () = all => {}
        () = all_but_refused => {
            tracing::warn!("taking over although the CA refuses certificates of some pods");
        }
    }
}

/// Whether any pod would be left without a proxy. A successor of another make, or one that could not
/// take the sockets over, has opened its own beside ours.
fn needed(served: &Served) -> bool {
    served.pods().iter().any(|pod| {
        let others = pod.others_listen();
        !others.is_ok_and(|others| others)
    })
}

/// Waits until a successor takes the connections, nothing is served any more, or `limit`, less what
/// the drain needs, has passed.
pub(crate) async fn succeeded(keeper: &Keeper, served: &Served, limit: Duration) {
    if !keeper.is_supervised() {
        return;
    }
    let reserve = (limit / 4).min(DRAIN_RESERVE);
    let until = Instant::now() + limit.saturating_sub(reserve);
    let mut accept = keeper.accept();
    let idle = async {
        while needed(served) {
            sleep(LOOK).await;
        }
    };
    if *accept.borrow() != Accept::Paused && !served.is_empty() {
        tracing::info!("told to end: serving on until a successor takes the connections");
    }
    tokio::select! {
        _paused = accept.wait_for(|accept| *accept == Accept::Paused) => {}
        () = idle => {}
        () = tokio::time::sleep_until(until.into()) => {}
    }
}

#[cfg(test)]
mod tests {
    use ambit_certificates::CertificatesOptions;
    use ambit_testkit::{FakeCa, Pki, until};

    use super::*;

    fn start() -> (FakeCa, Certificates, [Identity; 2]) {
        let ca = FakeCa::new(Arc::new(Pki::new()), Duration::from_secs(3600));
        let certificates =
            Certificates::start(Arc::new(ca.clone()), CertificatesOptions::default());
        let identities = ["web", "db"].map(|name| Identity::new("td", "ns", name));
        (ca, certificates, identities)
    }

    /// Whether it has come to an end within this time.
    async fn within(seconds: u64, waiting: impl Future<Output = ()>) -> bool {
        let limit = Duration::from_secs(seconds);
        tokio::time::timeout(limit, waiting).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_ca_that_cannot_be_reached_is_waited_for() {
        let (ca, certificates, [web, db]) = start();
        ca.fail(1_000);
        for identity in [&web, &db] {
            certificates.prefetch(identity);
        }
        let both = [&web, &db];
        let waiting = at_hand(&certificates, &both);
        tokio::pin!(waiting);
        assert!(!within(300, &mut waiting).await);
        ca.recover();
        assert!(within(200, &mut waiting).await);
        for identity in [&web, &db] {
            assert!(certificates.peek(identity).is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_identity_that_the_ca_refuses_does_not_hold_up_the_others() {
        let (ca, certificates, [web, db]) = start();
        certificates.prefetch(&web);
        until("the one", || certificates.peek(&web).is_some()).await;
        ca.refuse(1_000);
        certificates.prefetch(&db);
        assert!(!within(9, at_hand(&certificates, &[&web, &db])).await);
        assert!(within(11, at_hand(&certificates, &[&web, &db])).await);
        assert!(certificates.peek(&db).is_none());
    }
}
