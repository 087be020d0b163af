//! Differences between Istio and Ambit that no condition reports, because the object is followed as Ambit documents it,
//! or another controller follows it.

use std::collections::BTreeMap;

use ambit_derive::MeshConfig;
use ambit_virtual_service::{full_name, is_for_mesh};
use serde_json::Value;

use super::effect::{
    Effect,
    Outcome::{self, Changes, Lapses},
    object_name,
};

/// Classes of Istio's Gateways, with the controllers that Istio's control plane is.
const CLASSES: [(&str, &str); 4] = [
    ("istio", "istio.io/gateway-controller"),
    ("istio-remote", "istio.io/unmanaged-gateway"),
    ("istio-east-west", "istio.io/eastwest-controller"),
    ("agentgateway", "istio.io/agentgateway-controller"),
];
const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// Objects that differences of others depend on.
pub(super) struct Surroundings {
    root_namespace: String,
    cluster_domain: String,
    revision: String,
    /// Whether ServiceEntries are seen everywhere unless they say otherwise.
    exports_to_all: bool,
    /// Controllers of classes.
    controllers: BTreeMap<String, String>,
    /// Gateways that only Istio's control plane follows, by namespace and name.
    lapsed: Vec<(String, String)>,
}

impl Surroundings {
    pub(super) fn new<'a>(
        config: &MeshConfig,
        settings: &Value,
        objects: impl Iterator<Item = &'a Value> + Clone,
    ) -> Self {
        let of_kind = |kind: &'static str| {
            objects
                .clone()
                .filter(move |one| is_of_gateway_api(one, kind))
        };
        let controller = |class: &Value| {
            let name = text(class, "/metadata/name").to_owned();
            (name, text(class, "/spec/controllerName").to_owned())
        };
        let exports = settings.get("defaultServiceExportTo");
        let exports = exports.and_then(Value::as_array);
        let mut all = Self {
            root_namespace: config.root_namespace.to_string(),
            cluster_domain: config.cluster_domain.to_string(),
            revision: config.revision.to_string(),
            exports_to_all: exports.is_some_and(|list| list.iter().any(|one| one == "*")),
            controllers: of_kind("GatewayClass").map(controller).collect(),
            lapsed: Vec::new(),
        };
        let lapsed = of_kind("Gateway").filter(|gateway| all.is_istios(gateway));
        all.lapsed = lapsed
            .map(|one| {
                (
                    namespace(one).to_owned(),
                    text(one, "/metadata/name").to_owned(),
                )
            })
            .collect();
        all
    }

    /// Whether a Gateway is one of Istio's that is no waypoint.
    fn is_istios(&self, gateway: &Value) -> bool {
        let class = text(gateway, "/spec/gatewayClassName");
        match self.controllers.get(class) {
            Some(controller) => CLASSES.iter().any(|(_, of_istio)| of_istio == controller),
            None => CLASSES.iter().any(|(of_istio, _)| *of_istio == class),
        }
    }

    /// Whether the control plane's problem of a Gateway is explained by [`of_value`].
    pub(super) fn explains(&self, namespace: &str, name: &str) -> bool {
        let mut all = self.lapsed.iter();
        all.any(|(of, one)| (of.as_str(), one.as_str()) == (namespace, name))
    }

    /// Differences of one object.
    pub(super) fn of_value(&self, value: &Value) -> Vec<Effect> {
        let version = text(value, "/apiVersion");
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let found = match (group, text(value, "/kind")) {
            (GATEWAY_API, "Gateway") => self.gateway(value),
            (GATEWAY_API, "HTTPRoute" | "GRPCRoute" | "TLSRoute" | "TCPRoute") => self.route(value),
            ("networking.istio.io", "ServiceEntry") => self.service_entry(value),
            ("networking.istio.io", "DestinationRule") => destination_rule(value),
            ("networking.istio.io", "VirtualService") => self.virtual_service(value),
            ("security.istio.io", "PeerAuthentication") => peer_authentication(value),
            ("", "ConfigMap") => revisioned_settings(value),
            _ => Vec::new(),
        };
        let object = object_name(value);
        let effect = |(outcome, field, effect, advice): Difference| {
            Effect::new(outcome, &object, field, effect, advice)
        };
        found.into_iter().map(effect).collect()
    }

    fn gateway(&self, value: &Value) -> Vec<Difference> {
        let class = text(value, "/spec/gatewayClassName");
        if self.is_istios(value) {
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
        let revision = value.pointer("/metadata/labels/istio.io~1rev");
        let revision = revision.and_then(Value::as_str);
        let other = revision.filter(|one| class == "istio-waypoint" && *one != self.revision);
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

    fn route(&self, value: &Value) -> Vec<Difference> {
        let parents = value.pointer("/spec/parentRefs").and_then(Value::as_array);
        let parents = parents.into_iter().flatten().enumerate();
        let lapsed = parents.filter(|(_, parent)| {
            let is_gateway = matches!(text(parent, "/kind"), "" | "Gateway");
            let of = match text(parent, "/namespace") {
                "" => namespace(value),
                named => named,
            };
            is_gateway && self.explains(of, text(parent, "/name"))
        });
        let difference = |(index, parent): (usize, &Value)| {
            (
                Lapses,
                format!("spec.parentRefs[{index}]"),
                format!(
                    "its Gateway {} is followed by Istio's control plane alone",
                    text(parent, "/name")
                ),
                "attach it to a Gateway of another controller, or keep Istio's".to_owned(),
            )
        };
        lapsed.map(difference).collect()
    }

    fn service_entry(&self, value: &Value) -> Vec<Difference> {
        let own = namespace(value);
        let exports = value.pointer("/spec/exportTo").and_then(Value::as_array);
        let is_silent = exports.is_none_or(Vec::is_empty);
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

impl Surroundings {
    /// Differences between waypoints and sidecars, each of which follows VirtualServices for its own namespace.
    fn virtual_service(&self, value: &Value) -> Vec<Difference> {
        let own = namespace(value);
        let list = |at: &str| {
            let list = value.pointer(at).and_then(Value::as_array);
            let texts = list.into_iter().flatten().filter_map(Value::as_str);
            texts.collect::<Vec<_>>()
        };
        if !is_for_mesh(&list("/spec/gateways")) {
            return Vec::new();
        }
        let mut found = Vec::new();
        let exports = list("/spec/exportTo");
        if !exports.is_empty() && !exports.contains(&"*") {
            found.push((
                Changes,
                "spec.exportTo".to_owned(),
                "waypoints of these namespaces follow it, for clients of all namespaces".to_owned(),
                "add sourceNamespace to its matches, if it is for some clients alone".to_owned(),
            ));
        }
        for (number, host) in list("/spec/hosts").into_iter().enumerate() {
            let full = full_name(host, own, &self.cluster_domain).unwrap_or_default();
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

/// Outcome, field, effect and advice.
type Difference = (Outcome, String, String, String);

/// TLS without authorities: Istio verifies nothing there.
fn destination_rule(value: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut check = |at: String, policy: Option<&Value>| {
        let tls = policy.and_then(|policy| policy.get("tls"));
        let Some(tls) = tls.filter(|tls| matches!(text(tls, "/mode"), "SIMPLE" | "MUTUAL")) else {
            return;
        };
        let names_authorities = ["caCertificates", "credentialName"]
            .iter()
            .any(|field| tls.get(field).is_some());
        if !names_authorities && tls.get("insecureSkipVerify") != Some(&Value::Bool(true)) {
            found.push((
                Changes,
                format!("{at}.tls.caCertificates"),
                "without it certificates are verified by the system's authorities".to_owned(),
                "name the authorities of the host, if they are others".to_owned(),
            ));
        }
    };
    let list = |at: &str| {
        let list = value.pointer(at).and_then(Value::as_array);
        list.into_iter().flatten().enumerate()
    };
    check(
        "spec.trafficPolicy".to_owned(),
        value.pointer("/spec/trafficPolicy"),
    );
    for (index, port) in list("/spec/trafficPolicy/portLevelSettings") {
        check(
            format!("spec.trafficPolicy.portLevelSettings[{index}]"),
            Some(port),
        );
    }
    for (index, subset) in list("/spec/subsets") {
        check(
            format!("spec.subsets[{index}].trafficPolicy"),
            subset.get("trafficPolicy"),
        );
    }
    found
}

fn peer_authentication(value: &Value) -> Vec<Difference> {
    let ports = value
        .pointer("/spec/portLevelMtls")
        .and_then(Value::as_object);
    let ports = ports.into_iter().flatten();
    let ports = ports.map(|(port, one)| (format!("spec.portLevelMtls.{port}"), one));
    let own = value.pointer("/spec/mtls");
    let own = own.map(|one| ("spec.mtls".to_owned(), one));
    let disabled = own.into_iter().chain(ports);
    let disabled = disabled.filter(|(_, one)| text(one, "/mode") == "DISABLE");
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

/// Settings of a revision of Istio's control plane: a control plane of that revision reads them, the default one does not.
fn revisioned_settings(value: &Value) -> Vec<Difference> {
    let name = text(value, "/metadata/name");
    let is_settings = name.starts_with("istio-") && value.pointer("/data/mesh").is_some();
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

fn is_of_gateway_api(value: &Value, kind: &str) -> bool {
    text(value, "/kind") == kind && text(value, "/apiVersion").starts_with(GATEWAY_API)
}

fn namespace(value: &Value) -> &str {
    match text(value, "/metadata/namespace") {
        "" => "default",
        namespace => namespace,
    }
}

fn text<'a>(value: &'a Value, at: &str) -> &'a str {
    value
        .pointer(at)
        .and_then(Value::as_str)
        .unwrap_or_default()
}
