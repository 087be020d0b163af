//! The introduction of waypoints: nothing is bound to a waypoint before it has been ready for the first time.
//!
//! Until then connections keep their previous destination: the waypoint that the object had, or the pods themselves.
//! From then on the waypoint binds for as long as its Gateway exists, by the Gateway's UID: while it has no pod that is
//! ready, connections are refused. That it has been ready is stored here and in a condition on the Gateway, which later
//! processes read. No change of that condition unbinds a waypoint while this process runs.
//!
//! A waypoint binds before it is ready where policies are attached to it, and where the mesh's administrator configures
//! it ([`WaypointBinding::Strict`]). Copies of layer 4 policies that the pods' node proxies enforce
//! (`ambit.io/migrated-from`) do not count: requests that bypass the waypoint meet the originals.

use std::collections::BTreeMap;

use ambit_k8s_api::{Kind, Namespace, ObjectKey, status::conditions};
use ambit_model::{ArcStr, GatewayName};
use serde_json::Value;

use super::{
    Index, MeshView,
    attachment::{Attachment, Obstacle, Origin},
    binding::{Binding, Takers},
    guarded::{Concern, Guarded},
    references::Edge,
    replaced,
};
use crate::{
    WaypointBinding,
    condition::{INTRODUCED, Verdict},
};

/// Whether a waypoint that has never been ready binds nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Introduction {
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
pub(super) enum Strictness {
    /// The mesh's settings say so.
    Setting,
    /// Policies are attached to the Gateway or its class.
    Policies,
    /// The Gateway is not ours, or is written with addresses of its own: its readiness is not ours to know.
    Elsewhere,
}

/// The introductions of all Gateways.
#[derive(Debug, Default)]
pub(super) struct Introductions {
    /// UIDs of Gateways whose waypoints have been ready.
    introduced: BTreeMap<GatewayName, String>,
    /// All others, by UID.
    pending: BTreeMap<GatewayName, (String, Introduction)>,
    /// By the object with the label.
    kept: BTreeMap<ObjectKey, Kept>,
}

/// The waypoint that a label named, and bound, before it named one that is not introduced.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    gateway: GatewayName,
    /// The one that the label names now.
    awaited: GatewayName,
}

impl Introductions {
    /// Follows the UID of a Gateway, or its deletion. Of a new Gateway, takes over what its status has of objects that
    /// keep another waypoint.
    pub(super) fn follow(
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

    /// The decision on a Gateway that is not introduced.
    pub(super) fn pending(&self, name: &GatewayName) -> Option<Introduction> {
        self.pending.get(name).map(|(_, decision)| *decision)
    }

    /// Whether another waypoint, or none, takes the place of a Gateway's.
    pub(super) fn is_on_hold(&self, name: &GatewayName) -> bool {
        matches!(
            self.pending(name),
            Some(Introduction::Waiting | Introduction::Guarded)
        )
    }

    /// The label of an object names another waypoint than before.
    pub(super) fn relabel(
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

    /// Objects that keep a waypoint until the one that their label names is introduced.
    pub(super) fn keepers(&self, gateway: &GatewayName) -> Vec<ObjectKey> {
        let keepers = self
            .kept
            .iter()
            .filter(|(_, kept)| kept.gateway == *gateway);
        keepers.map(|(key, _)| key.clone()).collect()
    }

    /// The waypoint that an object keeps while it awaits another.
    fn kept(&self, holder: &ObjectKey, awaited: &GatewayName) -> Option<&GatewayName> {
        let kept = self.kept.get(holder);
        Some(&kept.filter(|kept| kept.awaited == *awaited)?.gateway)
    }

    fn introduce(&mut self, name: &GatewayName) {
        if let Some((uid, _)) = self.pending.remove(name) {
            self.introduced.insert(name.clone(), uid);
        }
    }
}

/// Whether the status of a Gateway records that its waypoint has been ready: by our condition or, as control planes
/// without that wrote it, by addresses.
pub(crate) fn has_been_ready(status: &Value) -> bool {
    let has_value =
        |one: &Value, field: &str, text: &str| one.get(field).and_then(Value::as_str) == Some(text);
    let mut conditions = conditions(status).into_iter();
    let addresses = status.get("addresses").and_then(Value::as_array);
    conditions
        .any(|one| has_value(&one, "type", INTRODUCED.name) && has_value(&one, "status", "True"))
        || addresses.is_some_and(|addresses| !addresses.is_empty())
}

/// A label that names a waypoint, or none.
#[derive(Debug)]
pub(super) struct Label {
    /// The object that has it.
    pub(super) holder: ObjectKey,
    pub(super) origin: Origin,
    pub(super) binding: Binding,
}

impl MeshView {
    /// The decision on one waypoint; `None`: it is introduced, since a pod of it is ready, or the Gateway's status
    /// records that one was. `guarded` is computed for the first waypoint that needs it.
    fn decide_introduction(
        &self,
        name: &GatewayName,
        guarded: &mut Option<Guarded>,
    ) -> Option<Introduction> {
        let strict = |why| Some(Introduction::Strict(why));
        let ours = self.gateway(name).filter(|one| self.is_waypoint(one));
        let Some(gateway) = ours else {
            return strict(Strictness::Elsewhere);
        };
        if gateway.has_been_ready || self.is_ready(name) {
            return None;
        }
        if gateway.names_addresses {
            return strict(Strictness::Elsewhere);
        }
        if self.config.waypoint_binding == WaypointBinding::Strict {
            return strict(Strictness::Setting);
        }
        let guarded = guarded.get_or_insert_with(|| self.guarded());
        Some(match guarded.concerns(self, gateway) {
            Some(Concern::Gateway) => Introduction::Strict(Strictness::Policies),
            Some(Concern::Served) => Introduction::Guarded,
            None => Introduction::Waiting,
        })
    }

    // === what is bound meanwhile ===
    /// Whether an attachment is to a waypoint that does not bind yet.
    fn is_on_hold(&self, attachment: &Attachment) -> bool {
        attachment.outcome.is_ok()
            && attachment.foreign.is_none()
            && self.introductions.is_on_hold(&attachment.gateway)
    }

    /// The attachment of an object by its labels, the most specific first, and by the Gateways that take it by
    /// themselves, without those waypoints that do not bind yet.
    pub(super) fn attachment_now(
        &self,
        labels: &[Label],
        by_label: impl Fn(Origin, &Binding) -> Option<Attachment>,
        taken: impl Fn(Takers) -> Option<Attachment>,
    ) -> Option<Attachment> {
        let mut awaited = None;
        for Label {
            holder,
            origin,
            binding,
        } in labels
        {
            let found = by_label(*origin, binding);
            let Some(found) = found else {
                return Some(self.hold(awaited?));
            };
            if !self.is_on_hold(&found) {
                return Some(self.meanwhile(awaited, found));
            }
            let awaited = awaited.get_or_insert(found);
            if let Some(kept) = self.introductions.kept(holder, &awaited.gateway) {
                let kept = by_label(*origin, &Binding::To(kept.clone()))?;
                if self.is_on_hold(&kept) {
                    return Some(awaited.clone());
                }
                return Some(self.meanwhile(Some(awaited.clone()), kept));
            }
        }
        let by_itself = || taken(Takers::All).filter(|one| self.is_on_hold(one));
        match (awaited.or_else(by_itself), taken(Takers::Binding)) {
            (awaited, Some(bound)) => Some(self.meanwhile(awaited, bound)),
            (awaited, None) => Some(self.hold(awaited?)),
        }
    }

    /// The attachment of an object that has another waypoint until the one that it awaits is introduced. If that one is
    /// of no use, it does not take the place of anything.
    fn meanwhile(&self, awaited: Option<Attachment>, bound: Attachment) -> Attachment {
        match awaited {
            None => bound,
            Some(awaited) if bound.outcome.is_ok() => Attachment {
                awaited: Some(awaited.gateway),
                ..bound
            },
            Some(awaited) if self.waypoint_address(&bound).is_none() => self.hold(awaited),
            // What was refused before is no reason to let anything pass now.
            Some(awaited) => awaited,
        }
    }

    /// The attachment of an object that has no other waypoint until this one is introduced.
    fn hold(&self, awaited: Attachment) -> Attachment {
        if self.introductions.pending(&awaited.gateway) != Some(Introduction::Waiting) {
            return awaited;
        }
        Attachment {
            outcome: Err(Obstacle::Waiting),
            awaited: Some(awaited.gateway.clone()),
            ..awaited
        }
    }

    // === conditions ===
    /// Condition `Introduced` of a waypoint of ours: whether it has been ready.
    pub(crate) fn introduction_verdict(&self, gateway: &GatewayName) -> Option<Verdict> {
        let (is_true, reason, message) = match self.introductions.pending(gateway) {
            None => (
                true,
                "Introduced",
                "the waypoint has been ready: connections to objects bound to it go through it or are refused",
            ),
            Some(Introduction::Undecided) => return None,
            Some(Introduction::Waiting) => (
                false,
                "Waiting",
                "the waypoint has not been ready yet: until it is, traffic of objects that name it bypasses it",
            ),
            Some(Introduction::Guarded | Introduction::Strict(Strictness::Policies)) => (
                false,
                "Strict",
                "the waypoint has not been ready yet: connections to objects that name it are refused until it is, \
                 since policies are attached to it or to its targets",
            ),
            Some(Introduction::Strict(_)) => (
                false,
                "Strict",
                "the waypoint has not been ready yet: connections to objects that name it are refused until it is",
            ),
        };
        Some(Verdict {
            is_true,
            reason,
            message: message.to_owned(),
            is_trouble: false,
        })
    }

    /// Condition of a waypoint with the objects that keep another until it has been ready.
    pub(crate) fn replaced_verdict(&self, gateway: &GatewayName) -> Option<Verdict> {
        if !self.introductions.is_on_hold(gateway) {
            return None;
        }
        let kept = self.introductions.kept.iter();
        let waiting = kept.filter(|(_, kept)| kept.awaited == *gateway);
        replaced::verdict(waiting.map(|(holder, kept)| (holder, &kept.gateway)))
    }

    /// Why a waypoint binds although it has never been ready, as the end of a sentence.
    pub(super) fn strictness(&self, gateway: &GatewayName) -> &'static str {
        match self.introductions.pending(gateway) {
            Some(Introduction::Guarded | Introduction::Strict(Strictness::Policies)) => {
                "; it has not been ready yet, and binds because policies are attached to it or to its targets"
            }
            Some(Introduction::Strict(Strictness::Setting)) => {
                "; it has not been ready yet, and binds because of meshConfig.waypointBinding"
            }
            _ => "",
        }
    }

    /// The labels that attach an object of a namespace: its own, then its namespace's.
    pub(super) fn labels(
        &self,
        namespace: &ArcStr,
        own: Option<(ObjectKey, Binding)>,
    ) -> Vec<Label> {
        let own = own.map(|(holder, binding)| Label {
            holder,
            origin: Origin::Own,
            binding,
        });
        let namespaces = self.objects("").map(|all| all.all::<Namespace>());
        let of_namespace = namespaces.and_then(|all| all.get(namespace)?.binding.clone());
        let of_namespace = of_namespace.map(|binding| Label {
            holder: ObjectKey::new(Kind::Namespace, "", namespace.clone()),
            origin: Origin::Namespace,
            binding,
        });
        own.into_iter().chain(of_namespace).collect()
    }
}

impl Index {
    /// Decides which waypoints bind, and marks what depends on those where that changed.
    pub(super) fn decide_introductions(&mut self) {
        let pending = &self.view.introductions.pending;
        if pending.is_empty() {
            return;
        }
        let mut guarded = None;
        let mut changed = Vec::new();
        for (name, (_, before)) in pending {
            let now = self.view.decide_introduction(name, &mut guarded);
            if now != Some(*before) {
                changed.push((name.clone(), now));
            }
        }
        for (name, now) in changed {
            match now {
                Some(now) => {
                    if let Some((_, decision)) = self.view.introductions.pending.get_mut(&name) {
                        *decision = now;
                    }
                }
                None => self.view.introductions.introduce(&name),
            }
            let class = self.view.gateway(&name).map(|one| one.class.clone());
            self.mark_gateway(&name, &class.unwrap_or_default());
            if now.is_none() {
                for key in self.view.references.of(Edge::Bound, &name) {
                    self.view.introductions.kept.remove(key);
                }
            }
        }
    }

    /// Marks what keeps a waypoint until the one that its label names is introduced.
    pub(super) fn mark_keepers(&mut self, gateway: &GatewayName) {
        for key in self.view.introductions.keepers(gateway) {
            self.mark_bound(key);
        }
    }

    /// The label of a ServiceEntry itself names another waypoint than before.
    pub(crate) fn relabel(
        &mut self,
        key: &ObjectKey,
        old: Option<&Binding>,
        new: Option<&Binding>,
    ) {
        let (old, new) = (
            old.and_then(Binding::gateway),
            new.and_then(Binding::gateway),
        );
        if old != new {
            self.view.introductions.relabel(key, old, new);
        }
    }
}
