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

use ambit_k8s_api::{Kind, Namespace, ObjectKey};
use ambit_model::{ArcStr, GatewayName};

use crate::{
    condition::Verdict,
    config::WaypointBinding,
    objects::{binding::Binding, replaced},
    relations::introductions::{Introduction, Strictness},
    view::{
        MeshView,
        attachment::{Attachment, Obstacle, Origin, Takers},
        guarded::{Concern, Guarded},
    },
};

/// A label that names a waypoint, or none.
#[derive(Debug)]
pub(crate) struct Label {
    /// The object that has it.
    pub(crate) holder: ObjectKey,
    pub(crate) origin: Origin,
    pub(crate) binding: Binding,
}

impl MeshView {
    /// The decision on one waypoint; `None`: it is introduced, since a pod of it is ready, or the Gateway's status
    /// records that one was. `guarded` is computed for the first waypoint that needs it.
    pub(crate) fn decide_introduction(
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
    pub(crate) fn attachment_now(
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
    pub(crate) fn strictness(&self, gateway: &GatewayName) -> &'static str {
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
    pub(crate) fn labels(
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
