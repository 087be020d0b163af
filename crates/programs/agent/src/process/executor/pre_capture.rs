//! Closes the pre-capture connections of a pod that was captured late (see `enrolment/late_capture.rs`).

use std::{sync::Arc, time::Duration};

use ambit_netplan::ProbePorts;
use ambit_rt::{ErrorChain, spawn, spawn_blocking};
use ambit_sys::netns::Netns;
use ambit_zds::PodUid;

use crate::{
    actions::{Actions, ClosedConnections},
    metrics::{Metrics, PreCaptureOutcome},
};

/// Delays of repeated checks: a connection that was being opened when the capture began is established later.
const RECHECK_DELAYS: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(5),
];

/// Closes open pre-capture connections, and returns whether another check is needed. Blocks. Connections that cannot be
/// closed stay and are logged: the pod's capture does not depend on them.
pub(super) fn close_connections<A: Actions>(
    actions: &A,
    metrics: &Metrics,
    uid: &PodUid,
    netns: &Netns,
    probe_ports: &ProbePorts,
) -> bool {
    let ClosedConnections { closed, failed } = match actions.close_unproxied(netns, probe_ports) {
        Ok(outcome) => outcome,
        Err(error) => {
            let error = ErrorChain(&error);
            tracing::warn!(%uid, %error, "the pod may have plaintext connections from before its capture");
            return false;
        }
    };
    let goes_on = failed.is_empty();
    let count = |result, number: usize| {
        let number = u64::try_from(number).unwrap_or(u64::MAX);
        let outcome = PreCaptureOutcome { result };
        let counter = metrics.pre_capture_connections.get_or_create(&outcome);
        counter.inc_by(number);
    };
    count("closed", closed.len());
    count("failed", failed.len());
    if !closed.is_empty() {
        tracing::warn!(
            %uid, count = closed.len(), connections = %TruncatedList(&closed),
            "closed plaintext connections of a pod that started before it was captured"
        );
    }
    for (connection, error) in failed {
        tracing::warn!(
            %uid, connection, %error,
            "cannot close a plaintext connection from before the pod's capture; restart the pod"
        );
    }
    goes_on
}

/// Repeats the check in the background, to close pre-capture connections that were established meanwhile.
pub(super) fn recheck_connections<A: Actions>(
    actions: Arc<A>,
    metrics: Metrics,
    uid: PodUid,
    netns: Netns,
    probe_ports: ProbePorts,
) {
    spawn("close pre-capture connections", async move {
        for pause in RECHECK_DELAYS {
            tokio::time::sleep(pause).await;
            let (actions, metrics) = (Arc::clone(&actions), metrics.clone());
            let (uid, netns, ports) = (uid.clone(), netns.clone(), probe_ports.clone());
            let look = move || close_connections(&*actions, &metrics, &uid, &netns, &ports);
            // A look that panics has been reported under its name.
            if !spawn_blocking("close pre-capture connections", look)
                .await
                .is_ok_and(|goes_on| goes_on)
            {
                return;
            }
        }
    });
}

/// Formats the first eight texts of a list, and the number of further ones.
struct TruncatedList<'a>(&'a [String]);

impl std::fmt::Display for TruncatedList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const MAX_SHOWN: usize = 8;
        let shown = self.0.get(..MAX_SHOWN).unwrap_or(self.0);
        f.write_str(&shown.join(", "))?;
        match self.0.len().saturating_sub(shown.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
