//! Attachment of workloads and services to waypoints.
//!
//! The first of these decides: the object's own label, the label of its namespace; then, unless `waypointAttachment`
//! allows labels only, the Gateways themselves: the waypoint for a pod's service account, the waypoint of the
//! namespace. If that waypoint cannot be used, clients refuse connections rather than bypass it. Waypoints that do not
//! bind objects yet (`introduction.rs`) are skipped.

use std::fmt::{self, Write};

use ambit_k8s_api::{
    Gateway, GatewayClass, Kind, Namespace, ObjectKey, Service, ServiceEntry, labels, selector,
};
use ambit_model::{
    ArcStr, EndpointWaypoint, GatewayAddress, GatewayDestination, GatewayName, HBONE_PORT,
    Identity, NamespacedHostname, Workload,
};

use crate::{
    config::{WaypointAttachment, WaypointMissing, WorkloadWaypoints},
    labels::Labels,
    objects::{
        binding::WaypointSelection,
        gateway::GatewayInput,
        gateway_class::{CONTROLLER, GatewayClassInput},
        serves::{AllowedNamespaces, ServedTraffic},
    },
    view::{MeshView, foreign::ForeignWaypoint},
};

/// Class whose Gateways are waypoints of this mesh even without a GatewayClass object.
const WAYPOINT_CLASS: &str = "istio-waypoint";
/// Service account of pods that name none; a waypoint must not have this account.
const DEFAULT_SERVICE_ACCOUNT: &str = "default";

/// Label or Gateway that attaches an object to a waypoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachmentOrigin {
    /// The object's own label attaches it.
    ObjectLabel,
    /// The label of the object's namespace attaches it.
    NamespaceLabel,
    /// A Gateway in the object's namespace attaches it, without any label.
    UnlabelledGateway,
}

/// Reason why an object cannot use the waypoint that it is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachmentError {
    /// The Gateway does not exist.
    MissingGateway,
    /// The Gateway belongs to another controller, which has not written an address to its status.
    NoAddress,
    /// The Gateway is named like a Service that was not created for it, or `default`: the waypoint would share their
    /// identity.
    NameTaken,
    /// The Gateway is invalid, and no valid version of it is known.
    InvalidGateway,
    /// `allowedRoutes` of the Gateway's listener does not include the object's namespace.
    NotPermitted,
    /// The object's own label names a waypoint that does not serve such objects: connections are refused.
    UnsupportedType,
    /// The waypoint does not serve such objects, which therefore have no waypoint.
    NotServed,
    /// The waypoint has never been ready, and objects have no waypoint until then.
    NeverReady,
}

impl fmt::Display for AttachmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MissingGateway => "missing",
            Self::NoAddress => "no-address",
            Self::NameTaken => "name-taken",
            Self::InvalidGateway => "unusable",
            Self::NotPermitted => "not-permitted",
            Self::UnsupportedType | Self::NotServed => "unsupported-type",
            Self::NeverReady => "waiting",
        })
    }
}

/// Waypoint that a workload or service is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// Label or Gateway that attaches the object.
    pub(crate) origin: AttachmentOrigin,
    /// Gateway of the waypoint.
    pub(crate) gateway: GatewayName,
    /// Traffic that the waypoint serves, or the reason why the object cannot use it.
    pub(crate) outcome: Result<ServedTraffic, AttachmentError>,
    /// Class and address of the waypoint, if it belongs to another controller.
    pub(crate) foreign_waypoint: Option<ForeignWaypoint>,
    /// Gateway whose waypoint replaces this attachment once it has been ready.
    pub(crate) awaited_gateway: Option<GatewayName>,
}

impl Attachment {
    /// Returns the Gateway if the waypoint is usable and our own: it receives records of the objects that it serves.
    pub(crate) fn own_gateway(&self) -> Option<&GatewayName> {
        let is_ours = self.outcome.is_ok() && self.foreign_waypoint.is_none();
        is_ours.then_some(&self.gateway)
    }

    /// Returns the waypoints that receive records of the object, including the awaited one, so that it is configured
    /// before it receives traffic.
    pub(crate) fn receiving_waypoints(&self) -> impl Iterator<Item = &GatewayName> {
        self.own_gateway().into_iter().chain(&self.awaited_gateway)
    }
}

impl MeshView {
    // === Gateways ===
    /// Returns a Gateway of any controller by name.
    pub(crate) fn gateway(&self, name: &GatewayName) -> Option<&GatewayInput> {
        self.objects(&name.namespace)?
            .all_of_kind::<Gateway>()
            .get(&name.name)
    }

    /// Returns the Gateway of one of our own waypoints by name, unless it cannot be used.
    pub(crate) fn waypoint(&self, name: &GatewayName) -> Option<&GatewayInput> {
        let gateway = self.gateway(name).filter(|one| self.is_waypoint(one))?;
        self.check_usable(gateway).ok()
    }

    /// Returns the Gateways of all our own waypoints that can be used.
    pub(crate) fn all_waypoints(&self) -> impl Iterator<Item = &GatewayName> {
        let gateways = self.namespaces.values();
        let gateways = gateways.flat_map(|objects| objects.all_of_kind::<Gateway>().values());
        let names = gateways.map(|gateway| &gateway.name);
        names.filter(|name| self.waypoint(name).is_some())
    }

    /// Returns a Gateway, or the reason why it cannot be used as a waypoint. Another controller's Gateway only needs an
    /// address.
    fn check_usable<'a>(
        &self,
        gateway: &'a GatewayInput,
    ) -> Result<&'a GatewayInput, AttachmentError> {
        let is_ours = self.is_waypoint(gateway);
        if is_ours && self.is_name_taken(&gateway.name) {
            Err(AttachmentError::NameTaken)
        } else if gateway.is_unusable {
            Err(AttachmentError::InvalidGateway)
        } else if !is_ours && gateway.address.is_none() {
            Err(AttachmentError::NoAddress)
        } else {
            Ok(gateway)
        }
    }

    /// Whether a Gateway's name is `default`, or the name of a Service that was not created for it: its waypoint's
    /// Service and service account would have the same name.
    fn is_name_taken(&self, name: &GatewayName) -> bool {
        let key = ObjectKey::new(Kind::Service, name.namespace.clone(), name.name.clone());
        let service = self.get::<Service>(&key);
        name.name == DEFAULT_SERVICE_ACCOUNT || service.is_some_and(|service| !service.is_managed)
    }

    /// Whether a Gateway is a waypoint of this mesh: its revision belongs to one of the mesh's control planes. Every
    /// control plane of the mesh serves configuration to the waypoint, so that it can move between revisions; a Gateway
    /// with an unknown revision belongs to another implementation.
    pub(crate) fn is_waypoint(&self, gateway: &GatewayInput) -> bool {
        let namespaces = self.objects("").map(|all| all.all_of_kind::<Namespace>());
        let namespace = namespaces.and_then(|all| all.get(&gateway.name.namespace));
        let namespace = namespace.and_then(|one| one.labels.get(labels::REVISION));
        let (own, namespace) = (gateway.revision.as_deref(), namespace.map(String::as_str));
        self.has_waypoint_class(gateway) && self.revisions.is_managed_by_mesh(own, namespace)
    }

    /// Whether a Gateway's class makes it a waypoint.
    pub(crate) fn has_waypoint_class(&self, gateway: &GatewayInput) -> bool {
        let class = || self.gateway_class(&gateway.class);
        gateway.class == WAYPOINT_CLASS
            || class().is_some_and(|class| class.controller == CONTROLLER)
    }

    /// Returns the Gateways of a class, whatever its controller.
    pub(crate) fn gateways_of_class(&self, class: &ArcStr) -> Vec<GatewayName> {
        let gateways = self
            .all_objects()
            .flat_map(|(_, objects)| objects.all_of_kind::<Gateway>().values());
        let of_class = gateways.filter(|gateway| gateway.class == *class);
        of_class.map(|gateway| gateway.name.clone()).collect()
    }

    pub(crate) fn gateway_class(&self, name: &ArcStr) -> Option<&GatewayClassInput> {
        self.objects("")?.all_of_kind::<GatewayClass>().get(name)
    }

    /// Returns the value of `istio.io/waypoint-for` on a Gateway, or else on its class.
    fn declared_traffic(&self, gateway: &GatewayInput) -> Option<ServedTraffic> {
        let of_class = || self.gateway_class(&gateway.class)?.served_traffic;
        gateway.served_traffic.or_else(of_class)
    }

    /// Returns the traffic that a waypoint serves for objects whose labels name it; services by default.
    pub(crate) fn served_traffic(&self, gateway: &GatewayInput) -> ServedTraffic {
        self.declared_traffic(gateway)
            .unwrap_or(ServedTraffic::Services)
    }

    /// Checks that a waypoint may serve the services of a namespace.
    pub(crate) fn check_serves_services(
        &self,
        name: &GatewayName,
        namespace: &ArcStr,
    ) -> Result<(), AttachmentError> {
        let gateway = self.gateway(name).ok_or(AttachmentError::MissingGateway)?;
        let gateway = self.check_usable(gateway)?;
        let serves = self.served_traffic(gateway);
        if !serves.includes_services() {
            Err(AttachmentError::NotServed)
        } else if !self.allows_namespace(gateway, namespace) {
            Err(AttachmentError::NotPermitted)
        } else {
            Ok(())
        }
    }

    fn allows_namespace(&self, gateway: &GatewayInput, namespace: &ArcStr) -> bool {
        match &gateway.allowed_namespaces {
            AllowedNamespaces::SameNamespace => gateway.name.namespace == *namespace,
            AllowedNamespaces::All => true,
            AllowedNamespaces::None => false,
            AllowedNamespaces::Selector(wanted) => {
                let namespaces = self.objects("").map(|all| all.all_of_kind::<Namespace>());
                let known = namespaces.and_then(|all| all.get(namespace));
                let mut found = known.map(|known| known.labels.clone()).unwrap_or_default();
                // Kubernetes sets it; manifests need not have it.
                found.insert(labels::NAMESPACE_NAME.to_owned(), namespace.to_string());
                selector::matches(wanted, &found)
            }
        }
    }

    /// Returns the Gateways of a namespace that are waypoints by their class, the oldest first.
    fn waypoints_of(&self, namespace: &str) -> Vec<&GatewayInput> {
        let gateways = self
            .objects(namespace)
            .map(|all| all.all_of_kind::<Gateway>());
        let gateways = gateways.into_iter().flat_map(|all| all.values());
        let mut found: Vec<_> = gateways
            .filter(|one| self.has_waypoint_class(one))
            .collect();
        found.sort_by_key(|one| (&one.created, &one.name.name));
        found
    }

    /// Returns the Gateways that attach pods and services of their namespace without labels, with the traffic that they
    /// serve then; none if `waypointAttachment` allows labels only.
    pub(crate) fn unlabelled_attachers(
        &self,
        namespace: &str,
        which: AttacherFilter,
    ) -> impl Iterator<Item = (&GatewayInput, ServedTraffic)> {
        let by_rule = self.config.waypoint_attachment == WaypointAttachment::LabelsAndGateways;
        let all = if by_rule {
            self.waypoints_of(namespace)
        } else {
            Vec::new()
        };
        all.into_iter()
            .filter(move |one| {
                which == AttacherFilter::All || !self.introductions.is_on_hold(&one.name)
            })
            .map(|one| {
                (
                    one,
                    self.declared_traffic(one).unwrap_or(ServedTraffic::All),
                )
            })
    }

    // === the order ===
    /// Returns the attachment of a workload, by the labels `own` of its object and those of the namespace. `account` is
    /// the service account of a pod, which Gateways may attach without labels; `None` for other workloads.
    pub(crate) fn waypoint_of_workload(
        &self,
        object: &ObjectKey,
        own: &Labels,
        account: Option<&ArcStr>,
    ) -> Option<Attachment> {
        let namespace = &object.namespace;
        let own =
            WaypointSelection::from_labels(own, namespace).map(|binding| (object.clone(), binding));
        let by_label = |origin, binding: &WaypointSelection| {
            self.attachment_by_label(namespace, (origin, binding), |serves| {
                (!serves.includes_workloads()).then_some(AttachmentError::NotServed)
            })
        };
        self.current_attachment(&self.waypoint_labels(namespace, own), by_label, |which| {
            self.attachment_by_gateway(namespace, account?, which)
        })
    }

    /// Returns the attachment of an object by its label; `None` if the label's value is `none`. `unserved` returns the
    /// error for a waypoint that does not serve this kind of object.
    fn attachment_by_label(
        &self,
        namespace: &ArcStr,
        (origin, binding): (AttachmentOrigin, &WaypointSelection),
        unserved: impl FnOnce(ServedTraffic) -> Option<AttachmentError>,
    ) -> Option<Attachment> {
        let name = binding.gateway()?;
        let gateway = self.gateway(name).ok_or(AttachmentError::MissingGateway);
        // Of one that is not there, what it would have served cannot be known.
        let outcome = gateway.and_then(|gateway| self.check_usable(gateway));
        let foreign = outcome
            .ok()
            .and_then(|gateway| self.foreign_waypoint(gateway));
        let outcome = outcome.and_then(|gateway| {
            let serves = self.served_traffic(gateway);
            match unserved(serves) {
                Some(obstacle) => Err(obstacle),
                None if !self.allows_namespace(gateway, namespace) => {
                    Err(AttachmentError::NotPermitted)
                }
                None => Ok(serves),
            }
        });
        Some(Attachment {
            origin,
            gateway: name.clone(),
            outcome,
            foreign_waypoint: foreign,
            awaited_gateway: None,
        })
    }

    /// Returns the attachment of a pod without labels: to the waypoint for its service account, else to the waypoint of
    /// its namespace.
    fn attachment_by_gateway(
        &self,
        namespace: &ArcStr,
        account: &ArcStr,
        which: AttacherFilter,
    ) -> Option<Attachment> {
        let unlabelled_attachers = || {
            let all = self.unlabelled_attachers(namespace, which);
            all.filter(|(_, serves)| serves.includes_workloads())
        };
        let of_account = unlabelled_attachers()
            .find(|(one, _)| one.attached_service_account.as_ref() == Some(account));
        let of_namespace =
            || unlabelled_attachers().find(|(one, _)| one.attached_service_account.is_none());
        let (gateway, serves) = of_account.or_else(of_namespace)?;
        Some(self.gateway_attachment(gateway, serves))
    }

    fn gateway_attachment(&self, gateway: &GatewayInput, serves: ServedTraffic) -> Attachment {
        Attachment {
            origin: AttachmentOrigin::UnlabelledGateway,
            gateway: gateway.name.clone(),
            outcome: self.check_usable(gateway).map(|_| serves),
            foreign_waypoint: self.foreign_waypoint(gateway),
            awaited_gateway: None,
        }
    }

    /// Returns the attachment of a Service or ServiceEntry.
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
        let by_label = |origin, binding: &WaypointSelection| {
            // A label of the namespace is there for all kinds of objects.
            let unserved = match origin {
                AttachmentOrigin::ObjectLabel => AttachmentError::UnsupportedType,
                AttachmentOrigin::NamespaceLabel | AttachmentOrigin::UnlabelledGateway => {
                    AttachmentError::NotServed
                }
            };
            self.attachment_by_label(namespace, (origin, binding), |serves| {
                (!serves.includes_services()).then_some(unserved)
            })
        };
        let own = own.map(|binding| (key.clone(), binding));
        let attachment =
            self.current_attachment(&self.waypoint_labels(namespace, own), by_label, |which| {
                self.service_attachment_by_gateway(namespace, which)
                    .filter(|_| has_pods)
            })?;
        let foreign = attachment.foreign_waypoint.as_ref();
        if foreign.is_some_and(|foreign| self.owns_gateway_address(key, &foreign.destination)) {
            // Nothing comes through a waypoint before it comes to the waypoint.
            return None;
        }
        Some(attachment)
    }

    /// Returns the attachment of services without labels: to the waypoint of their namespace. A waypoint that also
    /// serves workloads attaches services only if all pods of the namespace use it; otherwise each endpoint has its own
    /// waypoint.
    fn service_attachment_by_gateway(
        &self,
        namespace: &ArcStr,
        which: AttacherFilter,
    ) -> Option<Attachment> {
        let mut of_services = self.unlabelled_attachers(namespace, which);
        let (gateway, serves) = of_services.find(|(one, serves)| {
            one.attached_service_account.is_none() && serves.includes_services()
        })?;
        if serves.includes_workloads() {
            let mut others = self.unlabelled_attachers(namespace, which);
            let is_mixed = others.any(|(one, serves)| {
                one.attached_service_account.is_some() && serves.includes_workloads()
            });
            if is_mixed || self.has_pods_with_waypoint_label(namespace) {
                return None;
            }
        }
        Some(self.gateway_attachment(gateway, serves))
    }

    // === what is sent ===
    /// Returns the address that clients connect to for the waypoint; `None` for no waypoint. For a waypoint that cannot
    /// be used, it is a host name that does not exist, so that clients refuse connections.
    pub(crate) fn waypoint_address(&self, attachment: &Attachment) -> Option<GatewayAddress> {
        let GatewayName { namespace, name } = &attachment.gateway;
        let hostname = match attachment.outcome {
            Ok(_) if let Some(foreign) = &attachment.foreign_waypoint => {
                return Some(foreign.address());
            }
            Ok(_) => arcstr::format!("{name}.{namespace}.svc.{}", self.config.cluster_domain),
            Err(AttachmentError::NotServed | AttachmentError::NeverReady) => return None,
            Err(_) if self.config.waypoint_missing == WaypointMissing::BypassWaypoint => {
                return None;
            }
            Err(obstacle) => {
                let mut text = String::new();
                write!(text, "{obstacle}.{name}.{namespace}.waypoint.invalid").ok()?;
                text.into()
            }
        };
        let destination = NamespacedHostname::new(namespace.clone(), hostname);
        Some(GatewayAddress {
            destination: GatewayDestination::Hostname(destination),
            hbone_mtls_port: HBONE_PORT,
        })
    }

    /// Sets the waypoint in a workload's record, as its attachment requires.
    pub(crate) fn set_workload_waypoint(
        &self,
        workload: &mut Workload,
        attachment: Option<&Attachment>,
    ) {
        let Some(attachment) = attachment else {
            return;
        };
        let address = self.waypoint_address(attachment);
        if self.config.workload_waypoints == WorkloadWaypoints::CapturedClients {
            workload.waypoint = address;
            return;
        }
        let is_foreign = attachment.foreign_waypoint.is_some();
        workload.endpoint_waypoint = address.clone().map(|waypoint| EndpointWaypoint {
            waypoint,
            identities: match attachment.outcome {
                Ok(_) => self.waypoint_identities(&attachment.gateway),
                Err(_) => Vec::new(),
            },
            enforce: true,
            refuse: is_foreign,
            // Others serve the services that are bound to them, and not those that pods of theirs belong to.
            for_services: !is_foreign
                && attachment
                    .outcome
                    .is_ok_and(ServedTraffic::includes_services),
            rules: None,
        });
        workload.waypoint = address;
    }

    /// Returns the identities that the pods of a waypoint have.
    pub(crate) fn waypoint_identities(&self, gateway: &GatewayName) -> Vec<Identity> {
        match self.waypoint(gateway) {
            Some(_) => vec![self.waypoint_identity(gateway)],
            None => self.foreign_identities(gateway),
        }
    }

    /// Returns the identity of the pods of one of our own waypoints, whose service account has the Gateway's name.
    fn waypoint_identity(&self, gateway: &GatewayName) -> Identity {
        Identity::new(
            self.config.trust_domain.clone(),
            gateway.namespace.clone(),
            gateway.name.clone(),
        )
    }
}

/// Selection among the Gateways that attach objects without labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttacherFilter {
    /// All Gateways, including those that do not bind objects yet.
    All,
    /// Gateways that bind objects now.
    BindingOnly,
}
