//! Parsing of Gateways. Gateways whose class has the controller of this mesh are our waypoints; Gateways of other
//! controllers are used as waypoints if labels name them.

pub(crate) mod proxy_config;

use std::collections::BTreeMap;

use ambit_k8s_api::{
    Gateway, ObjectKey, ObjectMeta, created,
    gateway::{GatewaySpec, Listener, RouteNamespaces},
    labels,
    status::conditions,
};
use ambit_model::{AppTunnel, ArcStr, GatewayName, HBONE_PORT};
use serde_json::Value;

use crate::{
    condition::WAYPOINT_INTRODUCED,
    config::MeshConfig,
    labels::Labels,
    objects::{
        gateway::proxy_config::ProxyConfig,
        gateway_address::{self, Address},
        inbound_binding,
        readable::{FetchExtent, FetchedKind, Parsed, Readable, deserialize_field},
        replaced,
        serves::{AllowedNamespaces, ServedTraffic},
    },
    problem::{FieldError, Note},
};

impl FetchedKind for Gateway {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

/// Parsed Gateway object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GatewayInput {
    pub(crate) name: GatewayName,
    pub(crate) uid: String,
    pub(crate) class: ArcStr,
    /// Revision that the label `istio.io/rev` names.
    pub(crate) revision: Option<ArcStr>,
    pub(crate) created: String,
    /// Traffic that the waypoint serves, by the label `istio.io/waypoint-for`; `None` if the label is unset.
    pub(crate) served_traffic: Option<ServedTraffic>,
    /// Service account whose pods use the waypoint although no label names it; `None` if all pods of its namespace do.
    pub(crate) attached_service_account: Option<ArcStr>,
    pub(crate) allowed_namespaces: AllowedNamespaces,
    /// Address in the Gateway's status, for Gateways of other controllers. Our waypoints are reached by the name of
    /// their service.
    pub(crate) address: Option<Address>,
    /// Whether the Gateway's status records that its waypoint has been ready before.
    pub(crate) has_been_ready: bool,
    /// Objects that keep their previous waypoint until this Gateway's waypoint has been ready, read from the status.
    pub(crate) previous_waypoints: BTreeMap<ObjectKey, GatewayName>,
    /// Whether `spec.addresses` requests addresses.
    pub(crate) requests_addresses: bool,
    /// Handover of HBONE tunnels from the node proxy to the Gateway's pods (sandwiched waypoint), if the annotation
    /// asks for it.
    pub(crate) inbound_binding: Option<AppTunnel>,
    pub(crate) sends_client_identity_header: bool,
    pub(crate) proxy_config: ProxyConfig,
    /// Whether the Gateway is invalid: traffic that would go through its waypoint is refused.
    pub(crate) is_unusable: bool,
    /// Names of the listeners, and whether each is the waypoint's listener: the only one of the Gateway, with HBONE on
    /// port 15008.
    pub(crate) listeners: Vec<(String, bool)>,
}

/// Returns the revision that a Gateway's label `istio.io/rev` names.
fn revision(metadata: &ObjectMeta) -> Option<ArcStr> {
    let all = metadata.labels.as_ref()?;
    all.get(labels::REVISION).map(ArcStr::from)
}

impl Readable for Gateway {
    type Input = GatewayInput;

    fn read(&self, _: &MeshConfig) -> Result<Parsed<GatewayInput>, FieldError> {
        let metadata = &self.metadata;
        let annotation = |name: &str| metadata.annotations.as_ref().and_then(|all| all.get(name));
        let mut notes = Vec::new();
        let account = annotation(labels::FOR_SERVICE_ACCOUNT).filter(|name| !name.is_empty());
        let inbound_binding = inbound_binding::read(metadata, &mut notes);
        let input = GatewayInput {
            name: gateway_name(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            class: self.spec.gateway_class_name.as_str().into(),
            revision: revision(metadata),
            created: created(metadata),
            served_traffic: parse_waypoint_for(metadata.labels.as_ref())?,
            attached_service_account: account.map(ArcStr::from),
            allowed_namespaces: allowed_namespaces(
                &self.spec.listeners,
                inbound_binding,
                &mut notes,
            ),
            inbound_binding,
            address: gateway_address::parse_status_address(&self.status),
            has_been_ready: has_been_ready(&self.status),
            previous_waypoints: replaced::read(&self.status),
            requests_addresses: !self.spec.addresses.is_empty(),
            sends_client_identity_header: annotation(labels::XFCC_CLIENT_IDENTITY)
                .is_some_and(|value| value == "true"),
            listeners: listeners(&self.spec.listeners, &mut notes),
            proxy_config: proxy_config::read(annotation(labels::PROXY_CONFIG), &mut notes),
            is_unusable: false,
        };
        Ok(Parsed::new(Some(input), notes))
    }

    /// Builds the substitute for an invalid Gateway: a waypoint that cannot be used, so that traffic meant for it is
    /// refused instead of bypassing it.
    fn substitute(&self, _: &MeshConfig) -> Option<GatewayInput> {
        let metadata = &self.metadata;
        let annotations = metadata.annotations.as_ref();
        let account = annotations.and_then(|all| all.get(labels::FOR_SERVICE_ACCOUNT));
        let account = account.filter(|name| !name.is_empty());
        Some(GatewayInput {
            name: gateway_name(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            class: self.spec.gateway_class_name.as_str().into(),
            revision: revision(metadata),
            created: created(metadata),
            served_traffic: None,
            attached_service_account: account.map(ArcStr::from),
            allowed_namespaces: AllowedNamespaces::None,
            address: None,
            has_been_ready: has_been_ready(&self.status),
            previous_waypoints: replaced::read(&self.status),
            requests_addresses: false,
            inbound_binding: None,
            sends_client_identity_header: false,
            listeners: Vec::new(),
            proxy_config: ProxyConfig::default(),
            is_unusable: true,
        })
    }

    fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
        Some(Self {
            metadata,
            spec: GatewaySpec {
                gateway_class_name: deserialize_field(spec, "gatewayClassName")?,
                ..GatewaySpec::default()
            },
            ..Self::default()
        })
    }

    fn inherit_if_unreadable(new: &mut GatewayInput, old: &GatewayInput) {
        if new.proxy_config.is_unreadable {
            new.proxy_config.trusted_proxies = old.proxy_config.trusted_proxies;
        }
    }
}

fn gateway_name(metadata: &ObjectMeta) -> GatewayName {
    GatewayName::new(
        metadata.namespace.as_deref().unwrap_or("default"),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// Returns the names of the listeners, and whether each is the waypoint's listener, which must be the only one of the
/// Gateway. Fields of the listener that have no effect are noted.
fn listeners(of: &[Listener], notes: &mut Vec<Note>) -> Vec<(String, bool)> {
    let is_single = of.len() == 1;
    let mut listeners = Vec::new();
    for (index, one) in of.iter().enumerate() {
        let ignored = [
            ("hostname", one.hostname.is_some()),
            ("tls", one.tls.is_some()),
        ];
        let ignored = ignored.into_iter();
        for (name, _) in ignored.filter(|(_, is_given)| *is_given && is_hbone(one)) {
            let field = format!("spec.listeners[{index}].{name}");
            notes.push(Note::new(field, "has no effect on waypoints"));
        }
        listeners.push((one.name.clone(), is_single && is_hbone(one)));
    }
    listeners
}

/// Protocol of the listener of a sandwiched waypoint, which receives connections that a node proxy hands over.
const SANDWICHED_LISTENER_PROTOCOL: &str = "istio.io/PROXY";

fn is_hbone(listener: &Listener) -> bool {
    listener.protocol == "HBONE" && listener.port == i32::from(HBONE_PORT)
}

/// Parses the label `istio.io/waypoint-for` of a Gateway or its class; `None` if it is unset.
pub(crate) fn parse_waypoint_for(
    all: Option<&Labels>,
) -> Result<Option<ServedTraffic>, FieldError> {
    let Some(value) = all.and_then(|all| all.get(labels::WAYPOINT_FOR)) else {
        return Ok(None);
    };
    let unknown = || {
        FieldError::new(
            format!("metadata.labels[{}]", labels::WAYPOINT_FOR),
            format!("{value:?} is none of service, workload, all and none"),
        )
    };
    ServedTraffic::read(value).map(Some).ok_or_else(unknown)
}

/// Returns the namespaces whose objects may use the waypoint: the `allowedRoutes` of the listener that receives
/// connections from the node proxy (sandwiched waypoint), else of the HBONE listener.
fn allowed_namespaces(
    listeners: &[Listener],
    binding: Option<AppTunnel>,
    notes: &mut Vec<Note>,
) -> AllowedNamespaces {
    let is_behind = |one: &Listener| {
        let port = binding.and_then(|binding| binding.port).map(i32::from);
        one.protocol == SANDWICHED_LISTENER_PROTOCOL || Some(one.port) == port
    };
    let first = |wanted: &dyn Fn(&Listener) -> bool| {
        let mut all = listeners.iter().enumerate();
        all.find(|(_, one)| wanted(one))
    };
    let found = first(&is_behind).or_else(|| first(&is_hbone));
    let namespaces = found.and_then(|(index, one)| {
        let allowed = one.allowed_routes.as_ref()?;
        Some((index, allowed.namespaces.as_ref()?))
    });
    let Some((index, RouteNamespaces { from, selector })) = namespaces else {
        return AllowedNamespaces::SameNamespace;
    };
    match (from.as_deref(), selector) {
        (None | Some("Same"), _) => AllowedNamespaces::SameNamespace,
        (Some("All"), _) => AllowedNamespaces::All,
        (Some("None"), _) => AllowedNamespaces::None,
        (Some("Selector"), Some(selector)) => {
            AllowedNamespaces::Selector(Box::new(selector.clone()))
        }
        (from, _) => {
            notes.push(Note::new(
                format!("spec.listeners[{index}].allowedRoutes.namespaces"),
                format!(
                    "{:?} allows no namespace: use Same, All, or Selector with a selector",
                    from.unwrap_or_default()
                ),
            ));
            AllowedNamespaces::None
        }
    }
}

/// Whether the status of a Gateway records that its waypoint has been ready: by Ambit's condition, or by addresses,
/// which control planes that lack the condition wrote.
pub(crate) fn has_been_ready(status: &Value) -> bool {
    let has_value =
        |one: &Value, field: &str, text: &str| one.get(field).and_then(Value::as_str) == Some(text);
    let mut conditions = conditions(status).into_iter();
    let addresses = status.get("addresses").and_then(Value::as_array);
    conditions.any(|one| {
        has_value(&one, "type", WAYPOINT_INTRODUCED.name) && has_value(&one, "status", "True")
    }) || addresses.is_some_and(|addresses| !addresses.is_empty())
}
