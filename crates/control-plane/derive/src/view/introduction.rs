//! Introduction of waypoints: no object is bound to a waypoint before the waypoint has been ready for the first time.
//!
//! Until then, connections take the same route as before: through the object's previous waypoint, or to the pods
//! directly. Afterwards the waypoint binds its objects for as long as its Gateway, identified by its UID, exists: while
//! no pod of the waypoint is ready, connections are refused. This process remembers that the waypoint has been ready,
//! and a status condition of the Gateway records it for later processes. Changes of that condition do not unbind a
//! waypoint while this process runs.
//!
//! A waypoint binds objects before it is ready if policies are attached to it, or if the mesh's administrator
//! configures it ([`WaypointBinding::Strict`]). Copies of layer 4 policies that the pods' node proxies enforce
//! (`ambit.io/migrated-from`) do not count: the original policies apply to requests that bypass the waypoint.

use ambit_k8s_api::{Kind, Namespace, ObjectKey};
use ambit_model::{ArcStr, GatewayName};

use crate::{
    condition::ConditionContent,
    config::WaypointBinding,
    objects::{binding::WaypointSelection, replaced},
    relations::introductions::{BindingReason, IntroductionDecision},
    view::{
        MeshView,
        attachment::{AttacherFilter, Attachment, AttachmentError, AttachmentOrigin},
        enforcement_targets::{EnforcementReason, EnforcementTargets},
    },
};

/// Label of an object or its namespace that names a waypoint, or `none`.
#[derive(Debug)]
pub(crate) struct WaypointLabel {
    /// Object or Namespace that has the label.
    pub(crate) labelled_object: ObjectKey,
    pub(crate) origin: AttachmentOrigin,
    pub(crate) selection: WaypointSelection,
}

impl MeshView {
    /// Decides whether a waypoint that has not been introduced binds objects; `None` if it is introduced now, since a
    /// pod of it is ready, or the Gateway's status records that one has been. `enforcement_targets` is computed for the
    /// first waypoint that needs it.
    pub(crate) fn decide_introduction(
        &self,
        name: &GatewayName,
        enforcement_targets: &mut Option<EnforcementTargets>,
    ) -> Option<IntroductionDecision> {
        let strict = |why| Some(IntroductionDecision::Binds(why));
        let ours = self.gateway(name).filter(|one| self.is_waypoint(one));
        let Some(gateway) = ours else {
            return strict(BindingReason::OtherController);
        };
        if gateway.has_been_ready || self.is_waypoint_ready(name) {
            return None;
        }
        if gateway.requests_addresses {
            return strict(BindingReason::OtherController);
        }
        if self.config.waypoint_binding == WaypointBinding::Strict {
            return strict(BindingReason::MeshSetting);
        }
        let enforcement_targets =
            enforcement_targets.get_or_insert_with(|| self.enforcement_targets());
        Some(
            match enforcement_targets.enforcement_reason(self, gateway) {
                Some(EnforcementReason::GatewayTargeted) => {
                    IntroductionDecision::Binds(BindingReason::AttachedPolicies)
                }
                Some(EnforcementReason::ServedObjectsTargeted) => {
                    IntroductionDecision::BindsForPolicies
                }
                None => IntroductionDecision::WaitsUntilReady,
            },
        )
    }

    // === what is bound meanwhile ===
    /// Whether an object is attached to a waypoint that does not bind objects yet.
    fn is_on_hold(&self, attachment: &Attachment) -> bool {
        attachment.outcome.is_ok()
            && attachment.foreign_waypoint.is_none()
            && self.introductions.is_on_hold(&attachment.gateway)
    }

    /// Returns the current attachment of an object, by its labels (the most specific first), then by Gateways that
    /// attach it without labels. Waypoints that do not bind objects yet are skipped, and awaited.
    pub(crate) fn current_attachment(
        &self,
        labels: &[WaypointLabel],
        by_label: impl Fn(AttachmentOrigin, &WaypointSelection) -> Option<Attachment>,
        taken: impl Fn(AttacherFilter) -> Option<Attachment>,
    ) -> Option<Attachment> {
        let mut awaited = None;
        for WaypointLabel {
            labelled_object: holder,
            origin,
            selection: binding,
        } in labels
        {
            let found = by_label(*origin, binding);
            let Some(found) = found else {
                return Some(self.attachment_on_hold(awaited?));
            };
            if !self.is_on_hold(&found) {
                return Some(self.attachment_until_ready(awaited, found));
            }
            let awaited = awaited.get_or_insert(found);
            if let Some(kept) = self
                .introductions
                .previous_waypoint(holder, &awaited.gateway)
            {
                let kept = by_label(*origin, &WaypointSelection::Gateway(kept.clone()))?;
                if self.is_on_hold(&kept) {
                    return Some(awaited.clone());
                }
                return Some(self.attachment_until_ready(Some(awaited.clone()), kept));
            }
        }
        let gateway_attachment = || taken(AttacherFilter::All).filter(|one| self.is_on_hold(one));
        match (
            awaited.or_else(gateway_attachment),
            taken(AttacherFilter::BindingOnly),
        ) {
            (awaited, Some(bound)) => Some(self.attachment_until_ready(awaited, bound)),
            (awaited, None) => Some(self.attachment_on_hold(awaited?)),
        }
    }

    /// Returns the attachment of an object that uses the waypoint `bound` until the awaited one has been ready. If
    /// `bound` cannot be used, the reason decides whether connections stay refused or have no waypoint until then.
    fn attachment_until_ready(&self, awaited: Option<Attachment>, bound: Attachment) -> Attachment {
        match awaited {
            None => bound,
            Some(awaited) if bound.outcome.is_ok() => Attachment {
                awaited_gateway: Some(awaited.gateway),
                ..bound
            },
            Some(awaited) if self.waypoint_address(&bound).is_none() => {
                self.attachment_on_hold(awaited)
            }
            // What was refused before is no reason to let anything pass now.
            Some(awaited) => awaited,
        }
    }

    /// Returns the attachment of an object that has no waypoint until the awaited one has been ready, unless policies
    /// require the awaited one to bind it at once.
    fn attachment_on_hold(&self, awaited: Attachment) -> Attachment {
        if self.introductions.pending_decision(&awaited.gateway)
            != Some(IntroductionDecision::WaitsUntilReady)
        {
            return awaited;
        }
        Attachment {
            outcome: Err(AttachmentError::NeverReady),
            awaited_gateway: Some(awaited.gateway.clone()),
            ..awaited
        }
    }

    // === conditions ===
    /// Builds the condition `Introduced` of one of our own waypoints: whether it has been ready.
    pub(crate) fn introduced_condition(&self, gateway: &GatewayName) -> Option<ConditionContent> {
        let (is_true, reason, message) = match self.introductions.pending_decision(gateway) {
            None => (
                true,
                "Introduced",
                "the waypoint has been ready: connections to objects bound to it go through it or are refused",
            ),
            Some(IntroductionDecision::Undecided) => return None,
            Some(IntroductionDecision::WaitsUntilReady) => (
                false,
                "Waiting",
                "the waypoint has not been ready yet: until it is, traffic of objects that name it bypasses it",
            ),
            Some(
                IntroductionDecision::BindsForPolicies
                | IntroductionDecision::Binds(BindingReason::AttachedPolicies),
            ) => (
                false,
                "Strict",
                "the waypoint has not been ready yet: connections to objects that name it are refused until it is, \
                 since policies are attached to it or to its targets",
            ),
            Some(IntroductionDecision::Binds(_)) => (
                false,
                "Strict",
                "the waypoint has not been ready yet: connections to objects that name it are refused until it is",
            ),
        };
        Some(ConditionContent {
            is_true,
            reason,
            message: message.to_owned(),
            needs_attention: false,
        })
    }

    /// Builds the condition `Replaces` of a Gateway, which lists the objects that keep another waypoint until the
    /// Gateway's has been ready.
    pub(crate) fn replaces_condition(&self, gateway: &GatewayName) -> Option<ConditionContent> {
        if !self.introductions.is_on_hold(gateway) {
            return None;
        }
        let kept = self.introductions.previous_waypoints.iter();
        let waiting = kept.filter(|(_, kept)| kept.awaited == *gateway);
        replaced::replaces_condition(waiting.map(|(holder, kept)| (holder, &kept.gateway)))
    }

    /// Returns the reason why a waypoint binds objects although it has never been ready, as the end of a sentence;
    /// empty if it does not.
    pub(crate) fn binding_reason(&self, gateway: &GatewayName) -> &'static str {
        match self.introductions.pending_decision(gateway) {
            Some(
                IntroductionDecision::BindsForPolicies
                | IntroductionDecision::Binds(BindingReason::AttachedPolicies),
            ) => {
                "; it has not been ready yet, and binds because policies are attached to it or to its targets"
            }
            Some(IntroductionDecision::Binds(BindingReason::MeshSetting)) => {
                "; it has not been ready yet, and binds because of meshConfig.waypointBinding"
            }
            _ => "",
        }
    }

    /// Returns the labels that attach an object of a namespace: its own first, then its namespace's.
    pub(crate) fn waypoint_labels(
        &self,
        namespace: &ArcStr,
        own: Option<(ObjectKey, WaypointSelection)>,
    ) -> Vec<WaypointLabel> {
        let own = own.map(|(holder, binding)| WaypointLabel {
            labelled_object: holder,
            origin: AttachmentOrigin::ObjectLabel,
            selection: binding,
        });
        let namespaces = self.objects("").map(|all| all.all_of_kind::<Namespace>());
        let of_namespace = namespaces.and_then(|all| all.get(namespace)?.binding.clone());
        let of_namespace = of_namespace.map(|binding| WaypointLabel {
            labelled_object: ObjectKey::new(Kind::Namespace, "", namespace.clone()),
            origin: AttachmentOrigin::NamespaceLabel,
            selection: binding,
        });
        own.into_iter().chain(of_namespace).collect()
    }
}
