//! Canary waypoint of a service, which receives a percentage of its connections. Its labels and annotation are read
//! from the same object, Service or Namespace, as the label of the primary waypoint. If the canary cannot be used, the
//! primary waypoint receives all connections.

use ambit_k8s_api::{Kind, Namespace, ObjectKey, Service};
use ambit_model::{GatewayName, WeightedWaypoint};

use crate::{
    condition::ConditionContent,
    objects::{binding::CanaryWaypoint, serves::ServedTraffic},
    view::{
        MeshView,
        attachment::{Attachment, AttachmentError, AttachmentOrigin},
    },
};

/// Reason why a canary waypoint is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CanaryError {
    /// The weight annotation, whose text the variant has, is not a number from 0 to 100.
    InvalidWeight(String),
    /// The canary is the primary waypoint itself.
    SameAsPrimary,
    /// The service cannot be attached to this Gateway.
    NotAttachable(GatewayName, AttachmentError),
    /// No pod of this Gateway's waypoint is ready.
    NotReady(GatewayName),
}

impl MeshView {
    /// Returns the canary waypoint of a Service and its percentage, or the reason why it is not used; `None` if the
    /// Service has no canary.
    pub(crate) fn canary(
        &self,
        key: &ObjectKey,
        primary: &Attachment,
    ) -> Option<Result<(GatewayName, u32), CanaryError>> {
        // Of Services alone: entries go by the first.
        if key.kind != Kind::Service {
            return None;
        }
        primary.outcome.ok()?;
        let CanaryWaypoint { gateway, weight } = match primary.origin {
            AttachmentOrigin::ObjectLabel => self.get::<Service>(key)?.canary.as_ref()?,
            AttachmentOrigin::NamespaceLabel => {
                let namespaces = self.objects("")?.all_of_kind::<Namespace>();
                namespaces.get(&key.namespace)?.canary.as_ref()?
            }
            AttachmentOrigin::UnlabelledGateway => return None,
        };
        let weight = match weight {
            Ok(weight) => *weight,
            Err(text) => return Some(Err(CanaryError::InvalidWeight(text.clone()))),
        };
        if *gateway == primary.gateway {
            return Some(Err(CanaryError::SameAsPrimary));
        }
        Some(match self.check_serves_services(gateway, &key.namespace) {
            Err(obstacle) => Err(CanaryError::NotAttachable(gateway.clone(), obstacle)),
            Ok(()) if !self.is_waypoint_ready(gateway) && !self.is_foreign_ready(gateway) => {
                Err(CanaryError::NotReady(gateway.clone()))
            }
            Ok(()) => Ok((gateway.clone(), weight)),
        })
    }

    /// Returns the primary and the canary waypoint of a service with their weights; empty if there is no usable canary.
    pub(crate) fn weighted_waypoints(
        &self,
        key: &ObjectKey,
        primary: &Attachment,
    ) -> Vec<WeightedWaypoint> {
        let Some(Ok((gateway, weight))) = self.canary(key, primary) else {
            return Vec::new();
        };
        let canary = Attachment {
            origin: primary.origin,
            foreign_waypoint: self
                .gateway(&gateway)
                .and_then(|gateway| self.foreign_waypoint(gateway)),
            gateway,
            outcome: Ok(ServedTraffic::Services),
            awaited_gateway: None,
        };
        let shares = [(primary, 100 - weight), (&canary, weight)];
        let weighted = shares.map(|(attachment, weight)| {
            let destination = self.waypoint_address(attachment)?;
            Some(WeightedWaypoint {
                destination,
                weight,
            })
        });
        weighted.into_iter().flatten().collect()
    }

    /// Whether ingress gateways send requests through the waypoint of a service, by its label or else its namespace's.
    pub(crate) fn ingress_uses_waypoint(&self, key: &ObjectKey) -> bool {
        if key.kind != Kind::Service {
            return false;
        }
        let own = self
            .get::<Service>(key)
            .and_then(|one| one.ingress_use_waypoint);
        let of_namespace = || {
            let namespaces = self.objects("")?.all_of_kind::<Namespace>();
            namespaces.get(&key.namespace)?.ingress_use_waypoint
        };
        own.or_else(of_namespace).unwrap_or(false)
    }

    /// Adds the canary waypoint and ingress to a service's condition `WaypointBound`.
    pub(crate) fn add_canary_to_condition(
        &self,
        key: &ObjectKey,
        primary: &Attachment,
        condition: &mut ConditionContent,
    ) {
        if !condition.is_true {
            return;
        }
        if self.ingress_uses_waypoint(key) {
            condition.message += "; ingress traffic is sent through it, too";
        }
        let ignored = "all connections go through the first waypoint";
        match self.canary(key, primary) {
            None => {}
            Some(Ok((gateway, weight))) => {
                let share = format!("; {weight} % of connections go through {gateway}");
                condition.message += &share;
            }
            Some(Err(CanaryError::InvalidWeight(text))) => {
                *condition = refused_condition(
                    "CanaryInvalidWeight",
                    format!("the canary's weight {text:?} is no number from 0 to 100: {ignored}"),
                );
            }
            Some(Err(CanaryError::SameAsPrimary)) => {
                let gateway = &primary.gateway;
                *condition = refused_condition(
                    "CanarySameAsPrimary",
                    format!("the canary {gateway} is the first waypoint itself: {ignored}"),
                );
            }
            Some(Err(CanaryError::NotAttachable(gateway, obstacle))) => {
                condition.message +=
                    &format!("; the canary {gateway} is ignored ({obstacle}): {ignored}");
            }
            Some(Err(CanaryError::NotReady(gateway))) => {
                condition.message +=
                    &format!("; the canary {gateway} is ignored, no pod of it is ready: {ignored}");
            }
        }
    }
}

fn refused_condition(reason: &'static str, message: String) -> ConditionContent {
    ConditionContent {
        is_true: false,
        reason,
        message,
        needs_attention: true,
    }
}
