//! Watches the identities of local workloads, so that their certificates are fetched and dropped.

use std::collections::BTreeMap;

use ambit_model::Identity;

use super::SharedState;

/// Change of the identities that local workloads use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentityEvent {
    /// The first captured local workload of an identity appeared: fetch its certificate ahead of use.
    Appeared(Identity),
    /// The last local workload of an identity is gone: its certificate can be dropped.
    Gone(Identity),
}

/// Reports every change of the local identities until the state is dropped.
pub async fn follow_identities(state: SharedState, mut report: impl FnMut(IdentityEvent)) {
    let mut changes = state.watch_local();
    let mut known = BTreeMap::new();
    loop {
        changes.mark_unchanged();
        let now = state.local_identities();
        for event in identity_events(&known, &now) {
            report(event);
        }
        known = now;
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Returns the events for the difference between two sets of local identities, each with whether a captured workload
/// uses it.
fn identity_events(
    before: &BTreeMap<Identity, bool>,
    now: &BTreeMap<Identity, bool>,
) -> Vec<IdentityEvent> {
    let gone = before
        .keys()
        .filter(|identity| !now.contains_key(*identity));
    let gone = gone.cloned().map(IdentityEvent::Gone);
    let is_captured =
        |all: &BTreeMap<Identity, bool>, identity: &Identity| all.get(identity) == Some(&true);
    let captured = now.keys().filter(|identity| is_captured(now, identity));
    let appeared = captured.filter(|identity| !is_captured(before, identity));
    gone.chain(appeared.cloned().map(IdentityEvent::Appeared))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differences_are_reported() {
        let id = |name: &str| Identity::new("td", "ns", name);
        let before = [
            ("a", true),
            ("b", true),
            ("own-tunnel", false),
            ("joins", false),
        ];
        let now = [
            ("b", true),
            ("c", true),
            ("joins", true),
            ("new-tunnel", false),
        ];
        let [before, now] = [before.to_vec(), now.to_vec()].map(|all| {
            let all = all.into_iter();
            all.map(|(name, captured)| (id(name), captured)).collect()
        });
        assert_eq!(
            identity_events(&before, &now),
            [
                IdentityEvent::Gone(id("a")),
                IdentityEvent::Gone(id("own-tunnel")),
                IdentityEvent::Appeared(id("c")),
                IdentityEvent::Appeared(id("joins")),
            ]
        );
    }
}
