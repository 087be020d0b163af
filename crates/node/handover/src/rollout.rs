//! Rollout from one worker to the next: when the new one begins to accept connections, and when the
//! old one stops.
//!
//! Both hold the same sockets, so at any moment one of them accepts connections, or they wait in
//! the kernel's queues: none is refused. The new worker accepts once it is prepared; that also
//! makes it ready, and so lets the rollout terminate the old one. The old worker, when terminated
//! without a successor, serves until it has one, and drains then; shortly before its grace period
//! ends it drains in any case, so that its peers are notified before it exits.

use std::time::{Duration, Instant};

use ambit_rt::ReadyTask;
use tokio::time::sleep;

use crate::{AcceptCommand, GateControl, Supervisor};

/// Upper limit of the drain time, which is a quarter of the old worker's grace period.
const MAX_DRAIN_TIME: Duration = Duration::from_secs(5);
/// Interval at which a terminated worker checks whether it must still serve.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Opens and closes the gate of the accept loops as the supervisor commands.
#[derive(Debug)]
pub struct AcceptControl {
    /// Link to the supervisor, which decides when to accept.
    pub supervisor: Supervisor,
    /// Control of the gate that the accept loops wait at.
    pub gate: GateControl,
    /// Readiness task that completes once connections are accepted.
    pub ready: ReadyTask,
}

impl AcceptControl {
    /// Executes the supervisor's commands about accepting connections for the life of the process. `prepared` returns a
    /// future that completes when connections can be served; it is polled while a predecessor accepts them.
    pub async fn follow_commands<P: Future<Output = ()>>(self, mut prepared: impl FnMut() -> P) {
        let mut accept = self.supervisor.accept_commands();
        loop {
            let now = *accept.borrow_and_update();
            match now {
                AcceptCommand::Now => self.start_accepting(),
                AcceptCommand::Paused => {
                    self.gate.set_open(false);
                    tracing::info!("the successor takes the connections");
                }
                AcceptCommand::OnceReady => tokio::select! {
                    () = prepared() => self.start_accepting(),
                    Ok(()) = accept.changed() => continue,
                },
            }
            if accept.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn start_accepting(&self) {
        self.gate.set_open(true);
        self.ready.ready();
        self.supervisor.report_accepting();
        tracing::info!("taking connections");
    }
}

/// Waits until a successor accepts the connections, `is_needed` returns false, or `limit` minus the drain time has
/// passed. Returns at once without a supervisor, since no successor can exist then.
pub async fn wait_for_successor(
    supervisor: &Supervisor,
    limit: Duration,
    is_needed: impl Fn() -> bool,
) {
    if !supervisor.is_supervised() {
        return;
    }
    let reserve = (limit / 4).min(MAX_DRAIN_TIME);
    let until = Instant::now() + limit.saturating_sub(reserve);
    let mut accept = supervisor.accept_commands();
    let idle = async {
        while is_needed() {
            sleep(CHECK_INTERVAL).await;
        }
    };
    if *accept.borrow() != AcceptCommand::Paused && is_needed() {
        tracing::info!("termination requested: serving until a successor takes the connections");
    }
    tokio::select! {
        _paused = accept.wait_for(|accept| *accept == AcceptCommand::Paused) => {}
        () = idle => {}
        () = tokio::time::sleep_until(until.into()) => {}
    }
}
