//! Decides from which time waypoints bind the objects whose labels name them, and updates the decisions.

use ambit_k8s_api::ObjectKey;
use ambit_model::GatewayName;

use crate::{
    index::Index, objects::binding::WaypointSelection, relations::references::ReferenceKind,
};

impl Index {
    /// Decides which waypoints bind objects, and marks as stale the objects that depend on a changed decision.
    pub(crate) fn decide_introductions(&mut self) {
        let pending = &self.view.introductions.pending_decisions;
        if pending.is_empty() {
            return;
        }
        let mut enforcement_targets = None;
        let mut changed = Vec::new();
        for (name, (_, before)) in pending {
            let now = self
                .view
                .decide_introduction(name, &mut enforcement_targets);
            if now != Some(*before) {
                changed.push((name.clone(), now));
            }
        }
        for (name, now) in changed {
            match now {
                Some(now) => {
                    if let Some((_, decision)) =
                        self.view.introductions.pending_decisions.get_mut(&name)
                    {
                        *decision = now;
                    }
                }
                None => self.view.introductions.introduce(&name),
            }
            let class = self.view.gateway(&name).map(|one| one.class.clone());
            self.mark_gateway_dependents_stale(&name, &class.unwrap_or_default());
            if now.is_none() {
                for key in self
                    .view
                    .references
                    .referrers(ReferenceKind::Waypoint, &name)
                {
                    self.view.introductions.previous_waypoints.remove(key);
                }
            }
        }
    }

    /// Marks as stale the objects that keep using a waypoint until the one that their label names has been ready.
    pub(crate) fn mark_previous_waypoint_users_stale(&mut self, gateway: &GatewayName) {
        for key in self.view.introductions.previous_waypoint_users(gateway) {
            self.mark_waypoint_dependents_stale(key);
        }
    }

    /// Updates which waypoint an object keeps, after a change of the label that names its waypoint.
    pub(crate) fn update_waypoint_label(
        &mut self,
        key: &ObjectKey,
        old: Option<&WaypointSelection>,
        new: Option<&WaypointSelection>,
    ) {
        let (old, new) = (
            old.and_then(WaypointSelection::gateway),
            new.and_then(WaypointSelection::gateway),
        );
        if old != new {
            self.view.introductions.update_waypoint_label(key, old, new);
        }
    }
}
