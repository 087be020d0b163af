//! Attachment of workloads and services to waypoints.
//!
//! In this order: labels of its own, those of its namespace; then, unless the mesh goes by labels alone, the Gateways
//! themselves: the waypoint of a pod's service account, the waypoint of its namespace. The first that is set decides,
//! even if it cannot be resolved: clients then refuse connections rather than send them past the waypoint. Waypoints
//! that do not bind yet (`introduction.rs`) are skipped.

use std::fmt::{self, Write};

use ambit_k8s_api::{
    Gateway, GatewayClass, Kind, Namespace, ObjectKey, Service, ServiceEntry, labels, selector,
};
use ambit_model::{
    ArcStr, Destination, EndpointWaypoint, GatewayAddress, GatewayName, HBONE_PORT, Identity,
    NamespacedHostname, Workload,
};

use crate::{
    config::{WaypointAttachment, WaypointMissing, WorkloadWaypoints},
    labels::Labels,
    objects::{
        binding::Binding,
        gateway::GatewayInput,
        gateway_class::{CONTROLLER, ClassInput},
        serves::{Consent, Serves},
    },
    view::{MeshView, foreign::Foreign},
};

/// The class that is a waypoint's wherever it comes from.
const WAYPOINT_CLASS: &str = "istio-waypoint";
/// The account of pods that name none.
const DEFAULT_ACCOUNT: &str = "default";

/// Label that attaches a workload or service to a waypoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Its own labels.
    Own,
    /// Labels of the object's namespace.
    Namespace,
    /// A Gateway of its namespace.
    Gateway,
}

/// Why an attachment cannot be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// There is no such Gateway.
    Missing,
    /// The Gateway is another controller's, and that has given it no address.
    NoAddress,
    /// The Gateway has the name of a Service or account that others use: its identity would be theirs.
    NameTaken,
    /// The Gateway cannot be used as it is written, and never could.
    Unusable,
    /// The Gateway's listener does not allow the namespace.
    NotPermitted,
    /// The waypoint does not serve such objects, although this one names it.
    UnsupportedType,
    /// The waypoint does not serve such objects: they go without.
    NotServed,
    /// The waypoint has never been ready: until it is, they go without.
    Waiting,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "missing",
            Self::NoAddress => "no-address",
            Self::NameTaken => "name-taken",
            Self::Unusable => "unusable",
            Self::NotPermitted => "not-permitted",
            Self::UnsupportedType | Self::NotServed => "unsupported-type",
            Self::Waiting => "waiting",
        })
    }
}

/// The waypoint of a workload or service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// Origin of the attachment.
    pub(crate) origin: Origin,
    /// Gateway of the waypoint.
    pub(crate) gateway: GatewayName,
    /// Traffic that the waypoint serves, or the reason why there is none.
    pub(crate) outcome: Result<Serves, Obstacle>,
    /// Class and address of a waypoint of another controller.
    pub(crate) foreign: Option<Foreign>,
    /// Waypoint that replaces this one once it has been ready.
    pub(crate) awaited: Option<GatewayName>,
}

impl Attachment {
    /// The Gateway, if all is well and the waypoint is ours: we tell it what it serves.
    pub(crate) fn ours(&self) -> Option<&GatewayName> {
        let is_ours = self.outcome.is_ok() && self.foreign.is_none();
        is_ours.then_some(&self.gateway)
    }

    /// The waypoints that get records of the object: an awaited one knows what it serves before anything is sent to it.
    pub(crate) fn receivers(&self) -> impl Iterator<Item = &GatewayName> {
        self.ours().into_iter().chain(&self.awaited)
    }
}

impl MeshView {
    // === Gateways ===
    /// A Gateway of any controller.
    pub(crate) fn gateway(&self, name: &GatewayName) -> Option<&GatewayInput> {
        self.objects(&name.namespace)?
            .all::<Gateway>()
            .get(&name.name)
    }

    /// A waypoint of ours by name.
    pub(crate) fn waypoint(&self, name: &GatewayName) -> Option<&GatewayInput> {
        let gateway = self.gateway(name).filter(|one| self.is_waypoint(one))?;
        self.usable(gateway).ok()
    }

    /// All waypoints of this control plane.
    pub(crate) fn all_waypoints(&self) -> impl Iterator<Item = &GatewayName> {
        let gateways = self.namespaces.values();
        let gateways = gateways.flat_map(|objects| objects.all::<Gateway>().values());
        let names = gateways.map(|gateway| &gateway.name);
        names.filter(|name| self.waypoint(name).is_some())
    }

    /// A Gateway that something is to go through, unless it cannot be used. One of another controller is as good as
    /// its address.
    fn usable<'a>(&self, gateway: &'a GatewayInput) -> Result<&'a GatewayInput, Obstacle> {
        let is_ours = self.is_waypoint(gateway);
        if is_ours && self.is_taken(&gateway.name) {
            Err(Obstacle::NameTaken)
        } else if gateway.is_unusable {
            Err(Obstacle::Unusable)
        } else if !is_ours && gateway.address.is_none() {
            Err(Obstacle::NoAddress)
        } else {
            Ok(gateway)
        }
    }

    /// Whether a Gateway's name, which its Service and its service account have, is that of others' already.
    fn is_taken(&self, name: &GatewayName) -> bool {
        let key = ObjectKey::new(Kind::Service, name.namespace.clone(), name.name.clone());
        let service = self.get::<Service>(&key);
        name.name == DEFAULT_ACCOUNT || service.is_some_and(|service| !service.is_managed)
    }

    /// Whether a Gateway is a waypoint of this mesh: one of its control planes runs it, and all of them serve it, so that
    /// it may move from one to another. A Gateway of a revision that none of them has is another implementation's.
    pub(crate) fn is_waypoint(&self, gateway: &GatewayInput) -> bool {
        let namespaces = self.objects("").map(|all| all.all::<Namespace>());
        let namespace = namespaces.and_then(|all| all.get(&gateway.name.namespace));
        let namespace = namespace.and_then(|one| one.labels.get(labels::REVISION));
        let (own, namespace) = (gateway.revision.as_deref(), namespace.map(String::as_str));
        self.is_of_waypoints(gateway) && self.revisions.is_of_mesh(own, namespace)
    }

    /// Whether a Gateway is a waypoint by its class.
    pub(crate) fn is_of_waypoints(&self, gateway: &GatewayInput) -> bool {
        let class = || self.class(&gateway.class);
        gateway.class == WAYPOINT_CLASS
            || class().is_some_and(|class| class.controller == CONTROLLER)
    }

    /// The Gateways of a class, of any controller.
    pub(crate) fn gateways_of_class(&self, class: &ArcStr) -> Vec<GatewayName> {
        let gateways = self
            .all_objects()
            .flat_map(|(_, objects)| objects.all::<Gateway>().values());
        let of_class = gateways.filter(|gateway| gateway.class == *class);
        of_class.map(|gateway| gateway.name.clone()).collect()
    }

    pub(crate) fn class(&self, name: &ArcStr) -> Option<&ClassInput> {
        self.objects("")?.all::<GatewayClass>().get(name)
    }

    /// Traffic that a Gateway or its class declares by a label.
    fn declared(&self, gateway: &GatewayInput) -> Option<Serves> {
        let of_class = || self.class(&gateway.class)?.serves;
        gateway.serves.or_else(of_class)
    }

    /// Traffic that a waypoint serves of objects whose labels name it.
    pub(crate) fn serves(&self, gateway: &GatewayInput) -> Serves {
        self.declared(gateway).unwrap_or(Serves::Services)
    }

    /// Whether a waypoint may serve the services of a namespace.
    pub(crate) fn serves_services(
        &self,
        name: &GatewayName,
        namespace: &ArcStr,
    ) -> Result<(), Obstacle> {
        let gateway = self.gateway(name).ok_or(Obstacle::Missing)?;
        let gateway = self.usable(gateway)?;
        let serves = self.serves(gateway);
        if !serves.services() {
            Err(Obstacle::NotServed)
        } else if !self.allows(gateway, namespace) {
            Err(Obstacle::NotPermitted)
        } else {
            Ok(())
        }
    }

    fn allows(&self, gateway: &GatewayInput, namespace: &ArcStr) -> bool {
        match &gateway.consent {
            Consent::Same => gateway.name.namespace == *namespace,
            Consent::All => true,
            Consent::Nobody => false,
            Consent::Selected(wanted) => {
                let namespaces = self.objects("").map(|all| all.all::<Namespace>());
                let known = namespaces.and_then(|all| all.get(namespace));
                let mut found = known.map(|known| known.labels.clone()).unwrap_or_default();
                // Kubernetes sets it; manifests need not have it.
                found.insert(labels::NAMESPACE_NAME.to_owned(), namespace.to_string());
                selector::matches(wanted, &found)
            }
        }
    }

    /// The waypoints of a namespace, the first of several first.
    fn waypoints_of(&self, namespace: &str) -> Vec<&GatewayInput> {
        let gateways = self.objects(namespace).map(|all| all.all::<Gateway>());
        let gateways = gateways.into_iter().flat_map(|all| all.values());
        let mut found: Vec<_> = gateways.filter(|one| self.is_of_waypoints(one)).collect();
        found.sort_by_key(|one| (&one.created, &one.name.name));
        found
    }

    /// Gateways that take pods and services of their namespace by themselves, with the traffic that they serve then.
    pub(crate) fn takers(
        &self,
        namespace: &str,
        which: Takers,
    ) -> impl Iterator<Item = (&GatewayInput, Serves)> {
        let by_rule = self.config.waypoint_attachment == WaypointAttachment::Seed;
        let all = if by_rule {
            self.waypoints_of(namespace)
        } else {
            Vec::new()
        };
        all.into_iter()
            .filter(move |one| which == Takers::All || !self.introductions.is_on_hold(&one.name))
            .map(|one| (one, self.declared(one).unwrap_or(Serves::All)))
    }

    // === the order ===
    /// The waypoint of a workload that an object has or is. `account`: of a pod, which Gateways may take by themselves.
    pub(crate) fn waypoint_of_workload(
        &self,
        object: &ObjectKey,
        own: &Labels,
        account: Option<&ArcStr>,
    ) -> Option<Attachment> {
        let namespace = &object.namespace;
        let own = Binding::of(own, namespace).map(|binding| (object.clone(), binding));
        let by_label = |origin, binding: &Binding| {
            self.by_label(namespace, (origin, binding), |serves| {
                (!serves.workloads()).then_some(Obstacle::NotServed)
            })
        };
        self.attachment_now(&self.labels(namespace, own), by_label, |which| {
            self.taken(namespace, account?, which)
        })
    }

    /// Attachment by a label; `unserved` is whether a waypoint that does not serve this kind of traffic is none for the
    /// object.
    fn by_label(
        &self,
        namespace: &ArcStr,
        (origin, binding): (Origin, &Binding),
        unserved: impl FnOnce(Serves) -> Option<Obstacle>,
    ) -> Option<Attachment> {
        let name = binding.gateway()?;
        let gateway = self.gateway(name).ok_or(Obstacle::Missing);
        // Of one that is not there, what it would have served cannot be known.
        let outcome = gateway.and_then(|gateway| self.usable(gateway));
        let foreign = outcome.ok().and_then(|gateway| self.foreign(gateway));
        let outcome = outcome.and_then(|gateway| {
            let serves = self.serves(gateway);
            match unserved(serves) {
                Some(obstacle) => Err(obstacle),
                None if !self.allows(gateway, namespace) => Err(Obstacle::NotPermitted),
                None => Ok(serves),
            }
        });
        Some(Attachment {
            origin,
            gateway: name.clone(),
            outcome,
            foreign,
            awaited: None,
        })
    }

    /// The waypoint that takes a pod by itself: its account's, else its namespace's.
    fn taken(&self, namespace: &ArcStr, account: &ArcStr, which: Takers) -> Option<Attachment> {
        let takers = || {
            let all = self.takers(namespace, which);
            all.filter(|(_, serves)| serves.workloads())
        };
        let of_account = takers().find(|(one, _)| one.account.as_ref() == Some(account));
        let of_namespace = || takers().find(|(one, _)| one.account.is_none());
        let (gateway, serves) = of_account.or_else(of_namespace)?;
        Some(self.by_itself(gateway, serves))
    }

    fn by_itself(&self, gateway: &GatewayInput, serves: Serves) -> Attachment {
        Attachment {
            origin: Origin::Gateway,
            gateway: gateway.name.clone(),
            outcome: self.usable(gateway).map(|_| serves),
            foreign: self.foreign(gateway),
            awaited: None,
        }
    }

    /// The waypoint of a Service or ServiceEntry.
    pub(crate) fn waypoint_of_service(&self, key: &ObjectKey) -> Option<Attachment> {
        let namespace = &key.namespace;
        let (own, has_pods) = match key.kind {
            Kind::Service => {
                let service = self.get::<Service>(key).filter(|one| !one.is_managed)?;
                let name = GatewayName::new(namespace.clone(), key.name.clone());
                if self.waypoint(&name).is_some() {
                    // A waypoint's own.
                    return None;
                }
                (service.binding.clone(), service.selector.is_some())
            }
            Kind::ServiceEntry => {
                let entry = self.get::<ServiceEntry>(key)?;
                (entry.binding.clone(), entry.selector.is_some())
            }
            _ => return None,
        };
        let by_label = |origin, binding: &Binding| {
            // A label of the namespace is there for all kinds of objects.
            let unserved = match origin {
                Origin::Own => Obstacle::UnsupportedType,
                Origin::Namespace | Origin::Gateway => Obstacle::NotServed,
            };
            self.by_label(namespace, (origin, binding), |serves| {
                (!serves.services()).then_some(unserved)
            })
        };
        let own = own.map(|binding| (key.clone(), binding));
        let attachment = self.attachment_now(&self.labels(namespace, own), by_label, |which| {
            self.taken_service(namespace, which).filter(|_| has_pods)
        })?;
        let foreign = attachment.foreign.as_ref();
        if foreign.is_some_and(|foreign| self.is_at(key, &foreign.at)) {
            // Nothing comes through a waypoint before it comes to the waypoint.
            return None;
        }
        Some(attachment)
    }

    /// The waypoint that takes the services of a namespace by itself. One that takes pods, too, is that of a
    /// service only if all pods there have it; else it depends on the endpoint.
    fn taken_service(&self, namespace: &ArcStr, which: Takers) -> Option<Attachment> {
        let mut of_services = self.takers(namespace, which);
        let (gateway, serves) =
            of_services.find(|(one, serves)| one.account.is_none() && serves.services())?;
        if serves.workloads() {
            let mut others = self.takers(namespace, which);
            let is_mixed = others.any(|(one, serves)| one.account.is_some() && serves.workloads());
            if is_mixed || self.has_choosers(namespace) {
                return None;
            }
        }
        Some(self.by_itself(gateway, serves))
    }

    // === what is sent ===
    /// Address of the waypoint for clients. An unresolved one is a name that does not exist.
    pub(crate) fn waypoint_address(&self, attachment: &Attachment) -> Option<GatewayAddress> {
        let GatewayName { namespace, name } = &attachment.gateway;
        let hostname = match attachment.outcome {
            Ok(_) if let Some(foreign) = &attachment.foreign => return Some(foreign.address()),
            Ok(_) => arcstr::format!("{name}.{namespace}.svc.{}", self.config.cluster_domain),
            Err(Obstacle::NotServed | Obstacle::Waiting) => return None,
            Err(_) if self.config.waypoint_missing == WaypointMissing::Allow => return None,
            Err(obstacle) => {
                let mut text = String::new();
                write!(text, "{obstacle}.{name}.{namespace}.waypoint.invalid").ok()?;
                text.into()
            }
        };
        let destination = NamespacedHostname::new(namespace.clone(), hostname);
        Some(GatewayAddress {
            destination: Destination::Hostname(destination),
            hbone_mtls_port: HBONE_PORT,
        })
    }

    /// Gives a workload its waypoint.
    pub(crate) fn attach(&self, workload: &mut Workload, attachment: Option<&Attachment>) {
        let Some(attachment) = attachment else {
            return;
        };
        let address = self.waypoint_address(attachment);
        if self.config.workload_waypoints == WorkloadWaypoints::Istio {
            workload.waypoint = address;
            return;
        }
        let is_foreign = attachment.foreign.is_some();
        workload.endpoint_waypoint = address.clone().map(|waypoint| EndpointWaypoint {
            waypoint,
            identities: match attachment.outcome {
                Ok(_) => self.identities(&attachment.gateway),
                Err(_) => Vec::new(),
            },
            enforce: true,
            refuse: is_foreign,
            // Others serve the services that are bound to them, and not those that pods of theirs belong to.
            for_services: !is_foreign && attachment.outcome.is_ok_and(Serves::services),
            rules: None,
        });
        workload.waypoint = address;
    }

    /// The identities that are a waypoint's.
    pub(crate) fn identities(&self, gateway: &GatewayName) -> Vec<Identity> {
        match self.waypoint(gateway) {
            Some(_) => vec![self.waypoint_identity(gateway)],
            None => self.foreign_identities(gateway),
        }
    }

    /// The identity of the pods of a waypoint of ours.
    fn waypoint_identity(&self, gateway: &GatewayName) -> Identity {
        Identity::new(
            self.config.trust_domain.clone(),
            gateway.namespace.clone(),
            gateway.name.clone(),
        )
    }
}

/// Selection among the Gateways that take pods and services by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takers {
    /// All Gateways, whether they bind now or not.
    All,
    /// Gateways that bind now.
    Binding,
}
