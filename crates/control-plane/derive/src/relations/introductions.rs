//! State of waypoints that have been ready, or not yet.

use std::collections::BTreeMap;

use ambit_k8s_api::ObjectKey;
use ambit_model::GatewayName;

/// Whether a waypoint that has never been ready binds nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Introduction {
    /// The next flush decides.
    Undecided,
    /// The waypoint does not bind: it has never been ready, and no policy requires it to bind nevertheless.
    Waiting,
    /// Policies are attached to what the waypoint is to serve: it binds all that has no other waypoint meanwhile.
    Guarded,
    /// The waypoint binds.
    Strict(Strictness),
}

/// Why a waypoint binds that has never been ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// The settings of the mesh bind waypoints at once.
    Setting,
    /// Policies are attached to the Gateway or its class.
    Policies,
    /// The Gateway is not ours, or is written with addresses of its own: its readiness is not ours to know.
    Elsewhere,
}

/// The introductions of all Gateways.
#[derive(Debug, Default)]
pub(crate) struct Introductions {
    /// UIDs of Gateways whose waypoints have been ready.
    introduced: BTreeMap<GatewayName, String>,
    /// UIDs of the other Gateways, with the decision on each.
    pub(crate) pending: BTreeMap<GatewayName, (String, Introduction)>,
    /// Waypoints that objects keep, by the object with the label.
    pub(crate) kept: BTreeMap<ObjectKey, Kept>,
}

/// The waypoint that a label named, and bound, before it named one that is not introduced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) gateway: GatewayName,
    /// Gateway that the label names now.
    pub(crate) awaited: GatewayName,
}

impl Introductions {
    /// Follows the UID of a Gateway, or its deletion. Of a new Gateway, takes over what its status has of objects that
    /// keep another waypoint.
    pub(crate) fn follow(
        &mut self,
        name: &GatewayName,
        of: Option<(&str, &BTreeMap<ObjectKey, GatewayName>)>,
    ) {
        let Some((uid, replaced)) = of else {
            self.introduced.remove(name);
            self.pending.remove(name);
            return;
        };
        let introduced = self.introduced.get(name).map(String::as_str);
        let pending = self.pending.get(name).map(|(uid, _)| uid.as_str());
        if introduced != Some(uid) && pending != Some(uid) {
            let is_new = introduced.is_none() && pending.is_none();
            self.introduced.remove(name);
            let undecided = (uid.to_owned(), Introduction::Undecided);
            self.pending.insert(name.clone(), undecided);
            let replaced = replaced.iter().filter(|_| is_new);
            for (holder, gateway) in replaced {
                self.kept.entry(holder.clone()).or_insert_with(|| Kept {
                    gateway: gateway.clone(),
                    awaited: name.clone(),
                });
            }
        }
    }

    /// Returns the decision on a Gateway that is not introduced.
    pub(crate) fn pending(&self, name: &GatewayName) -> Option<Introduction> {
        self.pending.get(name).map(|(_, decision)| *decision)
    }

    /// Whether another waypoint, or none, takes the place of a Gateway's.
    pub(crate) fn is_on_hold(&self, name: &GatewayName) -> bool {
        matches!(
            self.pending(name),
            Some(Introduction::Waiting | Introduction::Guarded)
        )
    }

    /// Follows a label of an object that names another waypoint than before.
    pub(crate) fn relabel(
        &mut self,
        key: &ObjectKey,
        old: Option<&GatewayName>,
        new: Option<&GatewayName>,
    ) {
        let Some(awaited) = new else {
            self.kept.remove(key);
            return;
        };
        let bound = old.filter(|old| {
            !self.is_on_hold(old) && self.pending(old) != Some(Introduction::Undecided)
        });
        if let Some(gateway) = bound.cloned() {
            let awaited = awaited.clone();
            self.kept.insert(key.clone(), Kept { gateway, awaited });
        } else if let Some(kept) = self.kept.get_mut(key).filter(|_| old.is_some()) {
            kept.awaited = awaited.clone();
        }
    }

    /// Returns the objects that keep a waypoint until the one that their label names is introduced.
    pub(crate) fn keepers(&self, gateway: &GatewayName) -> Vec<ObjectKey> {
        let keepers = self
            .kept
            .iter()
            .filter(|(_, kept)| kept.gateway == *gateway);
        keepers.map(|(key, _)| key.clone()).collect()
    }

    /// Returns the waypoint that an object keeps while it awaits another.
    pub(crate) fn kept(&self, holder: &ObjectKey, awaited: &GatewayName) -> Option<&GatewayName> {
        let kept = self.kept.get(holder);
        Some(&kept.filter(|kept| kept.awaited == *awaited)?.gateway)
    }

    pub(crate) fn introduce(&mut self, name: &GatewayName) {
        if let Some((uid, _)) = self.pending.remove(name) {
            self.introduced.insert(name.clone(), uid);
        }
    }
}
