//! Gateways: those whose class is one of waypoints are waypoints of ours, others are used if labels name them.

mod proxy_config;

use std::collections::BTreeMap;

use ambit_k8s_api::{
    Gateway, ObjectKey, ObjectMeta, created,
    gateway::{GatewaySpec, Listener, RouteNamespaces},
    labels,
};
use ambit_model::{AppTunnel, ArcStr, GatewayName, HBONE_PORT, WaypointGateway};

use serde_json::{Value, json};

use super::{authorization_policy::callers, telemetry, unread};
use crate::{
    Labels, MeshConfig, PodDirectory, ServicePolicyScope,
    condition::{
        ConditionType, EFFECTIVE, INTRODUCED, Part, PartsType, REPLACES, Standing, Verdict,
    },
    index::{
        Consent, Index, MeshView, Serves, foreign,
        gateway_address::Address,
        inbound_binding, introduction,
        kind::{Change, Extent, Followed, MeshKind, Read, Rendered, field},
        references::Edge,
        replaced,
    },
    problem::{FieldError, Note},
};
use proxy_config::ProxyConfig;

impl Followed for Gateway {
    const EXTENT: Extent = Extent::Whole { labels: None };
}

/// A Gateway as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GatewayInput {
    pub(crate) name: GatewayName,
    uid: String,
    pub(crate) class: ArcStr,
    /// The revision that it names.
    pub(crate) revision: Option<ArcStr>,
    pub(crate) created: String,
    /// Traffic that the Gateway declares to serve.
    pub(crate) serves: Option<Serves>,
    /// The one service account whose pods it takes.
    pub(crate) account: Option<ArcStr>,
    pub(crate) consent: Consent,
    /// Its address, from its controller's status. Of ours the name is enough.
    pub(crate) address: Option<Address>,
    /// Whether its status records that its waypoint has been ready.
    pub(crate) has_been_ready: bool,
    /// Objects that keep another waypoint until its own has been ready, from its status.
    pub(crate) replaced: BTreeMap<ObjectKey, GatewayName>,
    /// Whether it requests addresses of its own.
    pub(crate) names_addresses: bool,
    /// How tunnels are handed over to its pods.
    pub(crate) inbound_binding: Option<AppTunnel>,
    client_identity_header: bool,
    config: ProxyConfig,
    /// Whether it cannot be used as it is written: what it takes is refused.
    pub(crate) is_unusable: bool,
    /// Names of its listeners, and whether each is the one that waypoints have.
    listeners: Vec<(String, bool)>,
}

/// The revision that a Gateway names.
fn revision(metadata: &ObjectMeta) -> Option<ArcStr> {
    let all = metadata.labels.as_ref()?;
    all.get(labels::REVISION).map(ArcStr::from)
}

impl MeshKind for Gateway {
    type Input = GatewayInput;

    const CONDITIONS: &'static [ConditionType] = &[EFFECTIVE, INTRODUCED, REPLACES];

    const PARTS: Option<PartsType> = Some(PartsType {
        list: "listeners",
        manager: "ambit-listeners",
        is_shared: false,
    });

    fn read(&self, _: &MeshConfig) -> Result<Read<GatewayInput>, FieldError> {
        let metadata = &self.metadata;
        let annotation = |name: &str| metadata.annotations.as_ref().and_then(|all| all.get(name));
        let mut notes = Vec::new();
        let account = annotation(labels::FOR_SERVICE_ACCOUNT).filter(|name| !name.is_empty());
        let inbound_binding = inbound_binding::read(metadata, &mut notes);
        let input = GatewayInput {
            name: name_of(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            class: self.spec.gateway_class_name.as_str().into(),
            revision: revision(metadata),
            created: created(metadata),
            serves: serves(metadata.labels.as_ref())?,
            account: account.map(ArcStr::from),
            consent: consent(&self.spec.listeners, inbound_binding, &mut notes),
            inbound_binding,
            address: foreign::address(&self.status),
            has_been_ready: introduction::has_been_ready(&self.status),
            replaced: replaced::read(&self.status),
            names_addresses: !self.spec.addresses.is_empty(),
            client_identity_header: annotation(labels::XFCC_CLIENT_IDENTITY)
                .is_some_and(|value| value == "true"),
            listeners: listeners(&self.spec.listeners, &mut notes),
            config: proxy_config::read(annotation(labels::PROXY_CONFIG), &mut notes),
            is_unusable: false,
        };
        Ok(Read::of(Some(input), notes))
    }

    /// A waypoint that there should be: without it, what it takes would go around it.
    fn substitute(&self, _: &MeshConfig) -> Option<GatewayInput> {
        let metadata = &self.metadata;
        let annotations = metadata.annotations.as_ref();
        let account = annotations.and_then(|all| all.get(labels::FOR_SERVICE_ACCOUNT));
        let account = account.filter(|name| !name.is_empty());
        Some(GatewayInput {
            name: name_of(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            class: self.spec.gateway_class_name.as_str().into(),
            revision: revision(metadata),
            created: created(metadata),
            serves: None,
            account: account.map(ArcStr::from),
            consent: Consent::Nobody,
            address: None,
            has_been_ready: introduction::has_been_ready(&self.status),
            replaced: replaced::read(&self.status),
            names_addresses: false,
            inbound_binding: None,
            client_identity_header: false,
            listeners: Vec::new(),
            config: ProxyConfig::default(),
            is_unusable: true,
        })
    }

    fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
        Some(Self {
            metadata,
            spec: GatewaySpec {
                gateway_class_name: field(spec, "gatewayClassName")?,
                ..GatewaySpec::default()
            },
            ..Self::default()
        })
    }

    fn inherit(new: &mut GatewayInput, old: &GatewayInput) {
        if new.config.is_unreadable {
            new.config.trusted_proxies = old.config.trusted_proxies;
        }
    }

    fn standing(view: &MeshView, _: &ObjectKey, gateway: &GatewayInput) -> Option<Standing> {
        if !view.is_waypoint(gateway) {
            return Some(Standing::default());
        }
        Some(Standing {
            verdict: Some(Verdict {
                is_true: true,
                reason: "Waypoint",
                message: String::new(),
                is_trouble: false,
            }),
            parts: gateway.listeners.iter().map(judge).collect(),
            introduction: view.introduction_verdict(&gateway.name),
            replaces: view.replaced_verdict(&gateway.name),
        })
    }

    fn changed(index: &mut Index, change: &Change<'_, GatewayInput>, _: &mut PodDirectory) {
        let name = GatewayName::new(change.key.namespace.clone(), change.key.name.clone());
        let of = change.new.map(|one| (one.uid.as_str(), &one.replaced));
        index.view.introductions.follow(&name, of);
        let address = |gateway: Option<&GatewayInput>| gateway.and_then(|one| one.address.clone());
        let (old, new) = (address(change.old), address(change.new));
        index
            .view
            .references
            .replace(Edge::GatewayAddress, change.key, old, new);
        let classes: Vec<_> = change.both().map(|one| one.class.clone()).collect();
        for class in &classes {
            index.mark_gateway(&name, class);
        }
        if index.view.has_telemetry() {
            index.mark_telemetry();
        }
    }

    fn render(view: &MeshView, _: &ObjectKey, gateway: &GatewayInput) -> Rendered {
        let is_waypoint = view.waypoint(&gateway.name).is_some();
        let own = gateway.config.trusted_proxies;
        let record = is_waypoint.then(|| WaypointGateway {
            gateway: gateway.name.clone(),
            path_normalization: view.path_normalization(),
            trusted_proxies: own.unwrap_or_else(|| view.trusted_proxies()),
            client_identity_header: gateway.client_identity_header,
            cluster_addresses: view.cluster_addresses.all(),
            allowed_addresses: view.config.allowed_addresses.clone(),
            services_alone: view.config.service_policy_scope == ServicePolicyScope::Istio,
        });
        let (waypoint_telemetry, of_telemetry) = match is_waypoint {
            true => telemetry::render(view, &gateway.name),
            false => Default::default(),
        };
        let conflicts = is_waypoint.then(|| {
            let mut notes = view.strangers(&gateway.name);
            notes.extend(of_telemetry);
            notes.extend(unread::note(view, &gateway.name));
            notes.extend(callers::gateway_note(view, &gateway.name));
            notes.extend(view.passed_on_nodes(&gateway.name));
            notes.extend(
                gateway
                    .inbound_binding
                    .map(|_| inbound_binding::without_effect()),
            );
            notes
        });
        let mut rendered = Rendered {
            conflicts: conflicts.unwrap_or_default(),
            ..Rendered::default()
        };
        rendered.add(record.map(|one| (gateway.name.clone(), one)));
        let telemetry = waypoint_telemetry.into_iter();
        rendered.add(telemetry.map(|one| (gateway.name.clone(), one)));
        rendered
    }
}

fn name_of(metadata: &ObjectMeta) -> GatewayName {
    GatewayName::new(
        metadata.namespace.as_deref().unwrap_or("default"),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// The listeners as a waypoint has them: a single one.
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

/// The protocol of listeners that get what a node proxy hands over.
const BEHIND_NODE_PROXY: &str = "istio.io/PROXY";

fn is_hbone(listener: &Listener) -> bool {
    listener.protocol == "HBONE" && listener.port == i32::from(HBONE_PORT)
}

/// Conditions of a listener, in Istio's words.
fn judge((name, is_good): &(String, bool)) -> Part {
    let expected = "a waypoint has exactly one listener, of protocol HBONE and on port 15008";
    let verdict = |is_true: bool, is_trouble: bool, reason: &'static str| Verdict {
        is_true,
        reason,
        message: if is_trouble {
            expected
        } else {
            "No errors found"
        }
        .to_owned(),
        is_trouble,
    };
    let (accepted, programmed) = if *is_good {
        (
            verdict(true, false, "Accepted"),
            verdict(true, false, "Programmed"),
        )
    } else {
        (
            verdict(false, true, "UnsupportedProtocol"),
            verdict(false, true, "Invalid"),
        )
    };
    Part {
        identity: BTreeMap::from([("name", name.as_str().into())]),
        fields: BTreeMap::from([("attachedRoutes", json!(0)), ("supportedKinds", json!([]))]),
        conditions: vec![
            ("Accepted", accepted),
            ("Conflicted", verdict(false, false, "NoConflicts")),
            ("Programmed", programmed),
            ("ResolvedRefs", verdict(true, false, "ResolvedRefs")),
        ],
    }
}

/// Traffic that the labels of a Gateway or its class declare.
pub(super) fn serves(all: Option<&Labels>) -> Result<Option<Serves>, FieldError> {
    let Some(value) = all.and_then(|all| all.get(labels::WAYPOINT_FOR)) else {
        return Ok(None);
    };
    let unknown = || {
        FieldError::new(
            format!("metadata.labels[{}]", labels::WAYPOINT_FOR),
            format!("{value:?} is none of service, workload, all and none"),
        )
    };
    Serves::read(value).map(Some).ok_or_else(unknown)
}

/// Namespaces that may use the waypoint: those that the listener allows which receives tunnels, else those of its HBONE
/// listener.
fn consent(listeners: &[Listener], binding: Option<AppTunnel>, notes: &mut Vec<Note>) -> Consent {
    let is_behind = |one: &Listener| {
        let port = binding.and_then(|binding| binding.port).map(i32::from);
        one.protocol == BEHIND_NODE_PROXY || Some(one.port) == port
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
        return Consent::Same;
    };
    match (from.as_deref(), selector) {
        (None | Some("Same"), _) => Consent::Same,
        (Some("All"), _) => Consent::All,
        (Some("None"), _) => Consent::Nobody,
        (Some("Selector"), Some(selector)) => Consent::Selected(Box::new(selector.clone())),
        (from, _) => {
            notes.push(Note::new(
                format!("spec.listeners[{index}].allowedRoutes.namespaces"),
                format!(
                    "{:?} allows no namespace: use Same, All, or Selector with a selector",
                    from.unwrap_or_default()
                ),
            ));
            Consent::Nobody
        }
    }
}
