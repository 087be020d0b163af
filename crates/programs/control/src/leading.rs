//! Work that one replica does for all: that which holds the lease.

use std::future::Future;

use ambit_rt::DrainWatcher;
use tokio::sync::watch;

/// Does `work` from its beginning whenever this replica leads, as long as it does; until the drain, or until
/// the work ends by itself.
pub(crate) async fn while_leading<Work: Future<Output = ()>>(
    mut leads: watch::Receiver<bool>,
    mut drain: DrainWatcher,
    work: impl Fn() -> Work,
) {
    loop {
        tokio::select! {
            changed = leads.wait_for(|leads| *leads) => if changed.is_err() {
                return;
            },
            _ = drain.started() => return,
        }
        tokio::select! {
            () = work() => return,
            lost = leads.wait_for(|leads| !*leads) => if lost.is_err() {
                return;
            },
            _ = drain.started() => return,
        }
    }
}
