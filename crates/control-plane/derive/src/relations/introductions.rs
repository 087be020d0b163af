//! Introduction of waypoints: whether the waypoint of each Gateway has been ready, and which waypoint objects use until
//! then. A waypoint binds an object if the object's connections go through it or are refused.

use std::collections::BTreeMap;

use ambit_k8s_api::ObjectKey;
use ambit_model::GatewayName;

/// Decision whether a waypoint that has never been ready binds objects nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntroductionDecision {
    /// No decision yet; the next flush makes it.
    Undecided,
    /// The waypoint does not bind objects until it has been ready, since no policy is attached to it or to its targets.
    WaitsUntilReady,
    /// Policies are attached to objects that the waypoint will serve: it binds objects that have no other waypoint
    /// until then.
    BindsForPolicies,
    /// The waypoint binds objects although it has never been ready.
    Binds(BindingReason),
}

/// Reason why a waypoint binds objects although it has never been ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BindingReason {
    /// The setting `waypointBinding: strict` of the mesh.
    MeshSetting,
    /// Policies are attached to the Gateway or its class.
    AttachedPolicies,
    /// The Gateway belongs to another controller, or `spec.addresses` is set: this control plane cannot tell whether
    /// its waypoint is ready.
    OtherController,
}

/// State of introduction of the waypoints of all Gateways.
#[derive(Debug, Default)]
pub(crate) struct Introductions {
    /// UIDs of Gateways whose waypoints have been ready.
    introduced_uids: BTreeMap<GatewayName, String>,
    /// UIDs of Gateways whose waypoints have never been ready, with the decision on each.
    pub(crate) pending_decisions: BTreeMap<GatewayName, (String, IntroductionDecision)>,
    /// Previous waypoints that objects keep using, by the object whose label names a waypoint that has never been
    /// ready.
    pub(crate) previous_waypoints: BTreeMap<ObjectKey, PreviousWaypoint>,
}

/// Previous waypoint of an object, which it keeps until the waypoint that its label names now has been ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PreviousWaypoint {
    pub(crate) gateway: GatewayName,
    /// Gateway that the object's label names now, and whose waypoint has not been ready.
    pub(crate) awaited: GatewayName,
}

impl Introductions {
    /// Updates the UID of a Gateway, or removes a deleted Gateway. `of` has the UID, and the objects that keep their
    /// previous waypoint according to the Gateway's status, which are adopted for a Gateway that was not known before.
    pub(crate) fn update_gateway(
        &mut self,
        name: &GatewayName,
        of: Option<(&str, &BTreeMap<ObjectKey, GatewayName>)>,
    ) {
        let Some((uid, replaced)) = of else {
            self.introduced_uids.remove(name);
            self.pending_decisions.remove(name);
            return;
        };
        let introduced = self.introduced_uids.get(name).map(String::as_str);
        let pending = self
            .pending_decisions
            .get(name)
            .map(|(uid, _)| uid.as_str());
        if introduced != Some(uid) && pending != Some(uid) {
            let is_new = introduced.is_none() && pending.is_none();
            self.introduced_uids.remove(name);
            let undecided = (uid.to_owned(), IntroductionDecision::Undecided);
            self.pending_decisions.insert(name.clone(), undecided);
            let replaced = replaced.iter().filter(|_| is_new);
            for (holder, gateway) in replaced {
                self.previous_waypoints
                    .entry(holder.clone())
                    .or_insert_with(|| PreviousWaypoint {
                        gateway: gateway.clone(),
                        awaited: name.clone(),
                    });
            }
        }
    }

    /// Returns the decision on a waypoint that has never been ready; `None` if it has been, or there is no such
    /// Gateway.
    pub(crate) fn pending_decision(&self, name: &GatewayName) -> Option<IntroductionDecision> {
        self.pending_decisions
            .get(name)
            .map(|(_, decision)| *decision)
    }

    /// Whether objects whose label names the Gateway use another waypoint, or none, until its waypoint has been ready.
    pub(crate) fn is_on_hold(&self, name: &GatewayName) -> bool {
        matches!(
            self.pending_decision(name),
            Some(IntroductionDecision::WaitsUntilReady | IntroductionDecision::BindsForPolicies)
        )
    }

    /// Updates the Gateway that an object's label names: if the old one bound the object, the object keeps it until the
    /// new one has been ready.
    pub(crate) fn update_waypoint_label(
        &mut self,
        key: &ObjectKey,
        old: Option<&GatewayName>,
        new: Option<&GatewayName>,
    ) {
        let Some(awaited) = new else {
            self.previous_waypoints.remove(key);
            return;
        };
        let bound = old.filter(|old| {
            !self.is_on_hold(old)
                && self.pending_decision(old) != Some(IntroductionDecision::Undecided)
        });
        if let Some(gateway) = bound.cloned() {
            let awaited = awaited.clone();
            self.previous_waypoints
                .insert(key.clone(), PreviousWaypoint { gateway, awaited });
        } else if let Some(kept) = self
            .previous_waypoints
            .get_mut(key)
            .filter(|_| old.is_some())
        {
            kept.awaited = awaited.clone();
        }
    }

    /// Returns the objects that keep using the waypoint of this Gateway until the one that their label names has been
    /// ready.
    pub(crate) fn previous_waypoint_users(&self, gateway: &GatewayName) -> Vec<ObjectKey> {
        let objects_keeping = self
            .previous_waypoints
            .iter()
            .filter(|(_, kept)| kept.gateway == *gateway);
        objects_keeping.map(|(key, _)| key.clone()).collect()
    }

    /// Returns the previous waypoint that an object keeps while it awaits the one of the Gateway `awaited`.
    pub(crate) fn previous_waypoint(
        &self,
        holder: &ObjectKey,
        awaited: &GatewayName,
    ) -> Option<&GatewayName> {
        let kept = self.previous_waypoints.get(holder);
        Some(&kept.filter(|kept| kept.awaited == *awaited)?.gateway)
    }

    pub(crate) fn introduce(&mut self, name: &GatewayName) {
        if let Some((uid, _)) = self.pending_decisions.remove(name) {
            self.introduced_uids.insert(name.clone(), uid);
        }
    }
}
