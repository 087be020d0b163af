//! Who follows the state: here, the certificates.

use std::collections::BTreeSet;

use ambit_model::Identity;

use super::SharedState;

/// A change of the identities that certificates are wanted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentityEvent {
    /// The first local workload of an identity appeared: fetch its certificate ahead of use.
    Appeared(Identity),
    /// The last one is gone: forget it.
    Gone(Identity),
}

/// Reports every change of the local identities until the state is dropped.
pub async fn follow_identities(state: SharedState, mut report: impl FnMut(IdentityEvent)) {
    let mut changes = state.watch_local();
    let mut known = BTreeSet::new();
    loop {
        changes.mark_unchanged();
        let now = state.local_identities();
        for event in difference(&known, &now) {
            report(event);
        }
        known = now;
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// What happened between two sets.
fn difference(before: &BTreeSet<Identity>, now: &BTreeSet<Identity>) -> Vec<IdentityEvent> {
    let gone = before.difference(now).cloned().map(IdentityEvent::Gone);
    let appeared = now.difference(before).cloned().map(IdentityEvent::Appeared);
    gone.chain(appeared).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differences_are_reported() {
        let id = |name: &str| Identity::new("td", "ns", name);
        let before = BTreeSet::from([id("a"), id("b")]);
        let now = BTreeSet::from([id("b"), id("c")]);
        assert_eq!(
            difference(&before, &now),
            [
                IdentityEvent::Gone(id("a")),
                IdentityEvent::Appeared(id("c"))
            ]
        );
    }
}
