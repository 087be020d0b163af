//! Tasks that run only on the leader, the replica that holds the Lease.

use std::future::Future;

use ambit_rt::DrainWatcher;
use tokio::sync::watch;

/// Runs `work` from the start whenever this replica becomes the leader, and cancels it when this replica loses the
/// Lease. Ends with the drain, or when `work` returns.
pub(crate) async fn run_while_leader<Work: Future<Output = ()>>(
    mut is_leader: watch::Receiver<bool>,
    mut drain: DrainWatcher,
    work: impl Fn() -> Work,
) {
    loop {
        tokio::select! {
            changed = is_leader.wait_for(|is_leader| *is_leader) => if changed.is_err() {
                return;
            },
            _ = drain.wait_until_started() => return,
        }
        tokio::select! {
            () = work() => return,
            lost = is_leader.wait_for(|is_leader| !*is_leader) => if lost.is_err() {
                return;
            },
            _ = drain.wait_until_started() => return,
        }
    }
}
