//! Differences between Istio and Ambit that no status condition reports, since Ambit uses the object as its
//! documentation says, or since another controller is responsible for it.

use std::collections::BTreeMap;

use ambit_derive::MeshConfig;
use ambit_k8s_api::{
    ConfigMap, Gateway, GatewayClass, ObjectMeta,
    gateway::{GROUP as GATEWAY_API, ParentReference},
};
use ambit_virtual_service::{fully_qualified_name, is_for_mesh};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    effect::{
        Effect,
        Outcome::{self, Changes, Lapses},
        object_name,
    },
    specs::{
        DestinationRuleSpec, PeerAuthenticationSpec, RouteSpec, ServiceEntrySpec, Settings,
        TlsPolicy, TypedObject, VirtualServiceSpec, group_and_kind,
    },
};
use crate::manifest;

/// GatewayClasses that Istio creates, with their controller names.
const ISTIO_GATEWAY_CLASSES: [(&str, &str); 4] = [
    ("istio", "istio.io/gateway-controller"),
    ("istio-remote", "istio.io/unmanaged-gateway"),
    ("istio-east-west", "istio.io/eastwest-controller"),
    ("agentgateway", "istio.io/agentgateway-controller"),
];

/// Settings and other objects on which the differences of an object depend.
pub(super) struct MeshContext {
    root_namespace: String,
    cluster_domain: String,
    revision: String,
    /// Whether ServiceEntries without `exportTo` are visible in all namespaces.
    exports_to_all: bool,
    /// Controller names by the name of the GatewayClass.
    controllers: BTreeMap<String, String>,
    /// Gateways of Istio's classes, which lapse without Istio's control plane: namespace and name.
    lapsing_gateways: Vec<(String, String)>,
}

impl MeshContext {
    pub(super) fn new<'a>(
        config: &MeshConfig,
        settings: &Settings,
        objects: impl Iterator<Item = &'a Value> + Clone,
    ) -> Self {
        let classes = parse_gateway_api_objects::<GatewayClass>(objects.clone(), "GatewayClass");
        let controller = |class: GatewayClass| {
            let name = class.metadata.name.unwrap_or_default();
            (name, class.spec.controller_name)
        };
        let exports = &settings.default_service_export_to;
        let mut all = Self {
            root_namespace: config.root_namespace.to_string(),
            cluster_domain: config.cluster_domain.to_string(),
            revision: config.revision.to_string(),
            exports_to_all: exports.iter().any(|one| one == "*"),
            controllers: classes.map(controller).collect(),
            lapsing_gateways: Vec::new(),
        };
        let lapsed = parse_gateway_api_objects::<Gateway>(objects, "Gateway");
        let lapsed = lapsed.filter(|gateway| all.is_istio_gateway(gateway));
        all.lapsing_gateways = lapsed
            .map(|one| {
                (
                    namespace_of(&one.metadata).to_owned(),
                    one.metadata.name.unwrap_or_default(),
                )
            })
            .collect();
        all
    }

    /// Whether a Gateway has one of Istio's classes for gateways other than waypoints.
    fn is_istio_gateway(&self, gateway: &Gateway) -> bool {
        let class = gateway.spec.gateway_class_name.as_str();
        match self.controllers.get(class) {
            Some(controller) => ISTIO_GATEWAY_CLASSES
                .iter()
                .any(|(_, of_istio)| of_istio == controller),
            None => ISTIO_GATEWAY_CLASSES
                .iter()
                .any(|(of_istio, _)| *of_istio == class),
        }
    }

    /// Whether [`Self::effects_of`] reports a Gateway as one of Istio's classes, so that the control plane's problem of
    /// its class is redundant.
    pub(super) fn reports_gateway_class(&self, namespace: &str, name: &str) -> bool {
        let mut all = self.lapsing_gateways.iter();
        all.any(|(of, one)| (of.as_str(), one.as_str()) == (namespace, name))
    }

    /// Returns the effects of one object whose meaning differs between Istio and Ambit.
    pub(super) fn effects_of(&self, value: &Value) -> Vec<Effect> {
        let Some((group, kind)) = group_and_kind(value) else {
            return Vec::new();
        };
        let found = match (group.as_str(), kind.as_str()) {
            (GATEWAY_API, "Gateway") => self.gateway_differences(&parse_or_default(value)),
            (GATEWAY_API, "HTTPRoute" | "GRPCRoute" | "TLSRoute" | "TCPRoute") => {
                self.route_differences(&parse_or_default(value))
            }
            ("networking.istio.io", "ServiceEntry") => {
                self.service_entry_differences(&parse_or_default(value))
            }
            ("networking.istio.io", "DestinationRule") => {
                destination_rule_differences(&parse_or_default(value))
            }
            ("networking.istio.io", "VirtualService") => {
                self.virtual_service_differences(&parse_or_default(value))
            }
            ("security.istio.io", "PeerAuthentication") => {
                peer_authentication_differences(&parse_or_default(value))
            }
            ("", "ConfigMap") => revisioned_settings(&parse_or_default(value)),
            _ => Vec::new(),
        };
        let object = object_name(value);
        let effect = |(outcome, field, effect, advice): Difference| {
            Effect::new(outcome, &object, field, effect, advice)
        };
        found.into_iter().map(effect).collect()
    }

    fn gateway_differences(&self, gateway: &Gateway) -> Vec<Difference> {
        let class = &gateway.spec.gateway_class_name;
        if self.is_istio_gateway(gateway) {
            return vec![(
                Lapses,
                "spec.gatewayClassName".to_owned(),
                format!(
                    "Gateways of the class {class} are followed by Istio's control plane alone"
                ),
                "keep Istio's control plane for it, or use a class of another controller"
                    .to_owned(),
            )];
        }
        let labels = gateway.metadata.labels.as_ref();
        let revision = labels.and_then(|labels| labels.get("istio.io/rev"));
        let other = revision.filter(|one| class == "istio-waypoint" && **one != self.revision);
        let other = other.map(|revision| {
            (
                Lapses,
                "metadata.labels[istio.io/rev]".to_owned(),
                format!("the waypoint is left to a control plane of the revision {revision}"),
                format!("remove the label, or install that revision (`--set global.revision={revision}`)"),
            )
        });
        other.into_iter().collect()
    }

    fn route_differences(&self, route: &TypedObject<RouteSpec>) -> Vec<Difference> {
        let parents = route.spec.parent_refs.iter().enumerate();
        let lapsed = parents.filter(|(_, parent)| {
            let is_gateway = matches!(parent.kind.as_deref(), None | Some("" | "Gateway"));
            let of = parent.namespace.as_deref().filter(|of| !of.is_empty());
            let of = of.unwrap_or_else(|| namespace_of(&route.metadata));
            is_gateway && self.reports_gateway_class(of, &parent.name)
        });
        let difference = |(index, parent): (usize, &ParentReference)| {
            (
                Lapses,
                format!("spec.parentRefs[{index}]"),
                format!(
                    "its Gateway {} is followed by Istio's control plane alone",
                    parent.name
                ),
                "attach it to a Gateway of another controller, or keep Istio's".to_owned(),
            )
        };
        lapsed.map(difference).collect()
    }

    fn service_entry_differences(&self, entry: &TypedObject<ServiceEntrySpec>) -> Vec<Difference> {
        let own = namespace_of(&entry.metadata);
        let is_silent = entry.spec.export_to.is_empty();
        if !is_silent || self.exports_to_all || own == self.root_namespace {
            return Vec::new();
        }
        vec![(
            Changes,
            "spec.exportTo".to_owned(),
            format!("without it the entry is seen in {own} alone, not in all namespaces"),
            format!(
                "write the entry in {}, or set defaultServiceExportTo: [\"*\"] in the MeshConfig",
                self.root_namespace
            ),
        )]
    }
}

impl MeshContext {
    /// Returns differences of a VirtualService with `exportTo`, or with hosts of another namespace: in Ambit a waypoint
    /// applies it, in Istio the sidecars of the clients.
    fn virtual_service_differences(
        &self,
        service: &TypedObject<VirtualServiceSpec>,
    ) -> Vec<Difference> {
        let own = namespace_of(&service.metadata);
        let VirtualServiceSpec {
            hosts,
            gateways,
            export_to,
        } = &service.spec;
        let gateways: Vec<_> = gateways.iter().map(String::as_str).collect();
        if !is_for_mesh(&gateways) {
            return Vec::new();
        }
        let mut found = Vec::new();
        if !export_to.is_empty() && !export_to.iter().any(|one| one == "*") {
            found.push((
                Changes,
                "spec.exportTo".to_owned(),
                "waypoints of these namespaces follow it, for clients of all namespaces".to_owned(),
                "add sourceNamespace to its matches, if it is for some clients alone".to_owned(),
            ));
        }
        for (number, host) in hosts.iter().enumerate() {
            let full = fully_qualified_name(host, own, &self.cluster_domain).unwrap_or_default();
            let suffix = format!(".svc.{}", self.cluster_domain);
            let service = full
                .strip_suffix(&suffix)
                .and_then(|name| name.split_once('.'));
            let Some((_, of)) = service.filter(|(_, of)| *of != own) else {
                continue;
            };
            found.push((
                Changes,
                format!("spec.hosts[{number}]"),
                format!("it is followed for clients of {own} alone, unless the waypoint is of {own}, too"),
                format!("write it in {of}, if it is for all clients"),
            ));
        }
        found
    }
}

/// Difference in the meaning of an object: outcome, field, effect and advice.
type Difference = (Outcome, String, String, String);

/// Returns differences of a DestinationRule: for TLS without CA certificates, Istio does not verify the server, and
/// Ambit uses the system's trust store.
fn destination_rule_differences(rule: &TypedObject<DestinationRuleSpec>) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut check = |at: String, policy: &TlsPolicy| {
        let tls = policy.tls.as_ref();
        let tls = tls.filter(|tls| matches!(tls.mode.as_str(), "SIMPLE" | "MUTUAL"));
        if tls.is_some_and(|tls| !tls.configures_ca() && !tls.insecure_skip_verify) {
            found.push((
                Changes,
                format!("{at}.tls.caCertificates"),
                "without it certificates are verified by the system's authorities".to_owned(),
                "name the authorities of the host, if they are others".to_owned(),
            ));
        }
    };
    let policy = &rule.spec.traffic_policy;
    check("spec.trafficPolicy".to_owned(), policy);
    for (index, port) in policy.port_level_settings.iter().enumerate() {
        check(
            format!("spec.trafficPolicy.portLevelSettings[{index}]"),
            port,
        );
    }
    for (index, subset) in rule.spec.subsets.iter().enumerate() {
        check(
            format!("spec.subsets[{index}].trafficPolicy"),
            &subset.traffic_policy,
        );
    }
    found
}

fn peer_authentication_differences(
    policy: &TypedObject<PeerAuthenticationSpec>,
) -> Vec<Difference> {
    let ports = policy.spec.port_level_mtls.iter();
    let ports = ports.map(|(port, one)| (format!("spec.portLevelMtls.{port}"), one));
    let own = ("spec.mtls".to_owned(), &policy.spec.mtls);
    let disabled = [own].into_iter().chain(ports);
    let disabled = disabled.filter(|(_, one)| one.mode == "DISABLE");
    disabled
        .map(|(at, _)| {
            (
                Changes,
                format!("{at}.mode"),
                "DISABLE is as PERMISSIVE: callers in the mesh use mTLS all the same".to_owned(),
                String::new(),
            )
        })
        .collect()
}

/// Returns a difference if a ConfigMap is the MeshConfig of a revision: only a control plane of that revision reads it.
fn revisioned_settings(map: &ConfigMap) -> Vec<Difference> {
    let name = map.metadata.name.as_deref().unwrap_or_default();
    let has_mesh = map
        .data
        .as_ref()
        .is_some_and(|data| data.contains_key("mesh"));
    let is_settings = name.starts_with("istio-") && has_mesh;
    let difference = is_settings.then(|| {
        (
            Lapses,
            "data.mesh".to_owned(),
            "settings of a revision are read by a control plane of that revision alone".to_owned(),
            "write the settings into the ConfigMap istio, or install that revision".to_owned(),
        )
    });
    difference.into_iter().collect()
}

/// Parses the objects of one kind of the Gateway API, and skips all others.
fn parse_gateway_api_objects<'a, T: DeserializeOwned + Default>(
    objects: impl Iterator<Item = &'a Value>,
    kind: &'static str,
) -> impl Iterator<Item = T> {
    let is_one = move |one: &&Value| {
        group_and_kind(one).is_some_and(|(group, of)| group == GATEWAY_API && of == kind)
    };
    objects.filter(is_one).map(parse_or_default)
}

/// Parses an object; `null` fields count as absent. A malformed object becomes the default: the control plane reports
/// it.
pub(super) fn parse_or_default<T: DeserializeOwned + Default>(value: &Value) -> T {
    T::deserialize(manifest::to_manifest(value)).unwrap_or_default()
}

fn namespace_of(metadata: &ObjectMeta) -> &str {
    let namespace = metadata.namespace.as_deref();
    namespace
        .filter(|name| !name.is_empty())
        .unwrap_or("default")
}
