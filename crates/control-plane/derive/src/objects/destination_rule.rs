//! Parsing of DestinationRules.

pub(crate) mod balancing;
pub(crate) mod input;
pub(crate) mod policy;
pub(crate) mod subsets;
pub(crate) mod tls;
pub(crate) mod values;

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{
    DestinationRule, Kind, ObjectKey, ObjectMeta, created,
    destination::{ClientTls, DestinationRuleSpec, TlsMode, TrafficPolicy},
};
use ambit_model::{ArcStr, DestinationPolicy, GatewayName};
use serde_json::Value;

use crate::{
    config::MeshConfig,
    objects::{
        destination_rule::{input::DestinationRuleInput, subsets::SubsetInput},
        readable::{FetchExtent, FetchedKind, Parsed, Readable, deserialize_field},
    },
    problem::{FieldError, Note},
};

impl FetchedKind for DestinationRule {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

impl Readable for DestinationRule {
    type Input = DestinationRuleInput;

    fn read(&self, config: &MeshConfig) -> Result<Parsed<DestinationRuleInput>, FieldError> {
        let mut notes = Vec::new();
        let spec = &self.spec;
        let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let host = qualify_host(&spec.host, namespace, config)
            .map_err(|message| FieldError::new("spec.host", message))?;
        let factor = balancing::parse_balance_factor(&self.metadata)?;
        let (mut policy, mut ports) =
            policy::read(spec.traffic_policy.as_ref(), factor, &mut notes)?;
        let mut subsets = subsets::read(spec, factor, &mut notes)?;
        let of_subsets = subsets.values_mut().flat_map(SubsetInput::policies_mut);
        for policy in ports.values_mut().chain([&mut policy]).chain(of_subsets) {
            tls::refuse_foreign_files(policy, namespace, &mut notes);
        }
        if spec.workload_selector.is_some() {
            let message = "a rule for selected pods is for proxies inside of them: waypoints do not follow it";
            notes.push(Note::new("spec.workloadSelector", message));
            return Ok(Parsed::new(None, notes));
        }
        let input = DestinationRuleInput {
            key: ObjectKey::new(Kind::DestinationRule, namespace, name),
            created: created(&self.metadata),
            host,
            export_to: parse_export_to(&spec.export_to, namespace),
            policy,
            ports,
            subsets,
        };
        Ok(Parsed::new(Some(input), notes))
    }

    fn substitute(&self, config: &MeshConfig) -> Option<DestinationRuleInput> {
        let spec = serde_json::to_value(&self.spec).ok()?;
        // Without the rule, what TLS was to protect would be sent in clear.
        if !tls::requests_tls(&spec) || self.spec.workload_selector.is_some() {
            return None;
        }
        let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let why = "the DestinationRule cannot be used as it is written";
        Some(DestinationRuleInput {
            key: ObjectKey::new(Kind::DestinationRule, namespace, name),
            created: created(&self.metadata),
            host: qualify_host(&self.spec.host, namespace, config).ok()?,
            export_to: parse_export_to(&self.spec.export_to, namespace),
            policy: DestinationPolicy {
                unsupported: Some(why.into()),
                ..DestinationPolicy::default()
            },
            ports: BTreeMap::new(),
            subsets: BTreeMap::new(),
        })
    }

    fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
        let policy = TrafficPolicy {
            tls: Some(ClientTls {
                mode: TlsMode::Simple,
                ..ClientTls::default()
            }),
            ..TrafficPolicy::default()
        };
        Some(Self {
            metadata,
            spec: DestinationRuleSpec {
                host: deserialize_field(spec, "host")?,
                export_to: deserialize_field(spec, "exportTo").unwrap_or_default(),
                traffic_policy: spec.is_some_and(tls::requests_tls).then_some(policy),
                ..DestinationRuleSpec::default()
            },
            ..Self::default()
        })
    }
}

/// Returns the full name of a rule's host: a name without dots is a service of the rule's namespace.
pub(crate) fn qualify_host(
    host: &str,
    namespace: &str,
    config: &MeshConfig,
) -> Result<ArcStr, String> {
    let rest = host.strip_prefix("*.").unwrap_or(host);
    let is_wildcard = host == "*" || rest.len() < host.len();
    let labels = rest.split('.');
    let is_name = |label: &str| {
        let all = label.bytes();
        let mut all = all.map(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        !label.is_empty() && label.len() <= 63 && all.all(|is| is)
    };
    if host != "*" && (host.len() > 253 || !labels.clone().all(is_name)) {
        return Err(format!(
            "{host:?} is no host: a service's name, a full name, or *. and the end of names"
        ));
    }
    if is_wildcard || host.contains('.') {
        return Ok(host.to_ascii_lowercase().into());
    }
    let domain = &config.cluster_domain;
    Ok(arcstr::format!("{host}.{namespace}.svc.{domain}"))
}

/// Parses an object's `exportTo`: the namespaces whose waypoints apply the object; `None` for all.
pub(crate) fn parse_export_to(to: &[String], namespace: &str) -> Option<BTreeSet<ArcStr>> {
    if to.is_empty() || to.iter().any(|one| one == "*") {
        return None;
    }
    let all = to.iter().map(|one| match one.as_str() {
        "." => namespace.into(),
        other => ArcStr::from(other),
    });
    Some(all.collect())
}

impl DestinationRuleInput {
    pub(crate) fn is_visible_to(&self, gateway: &GatewayName) -> bool {
        let exported = self.export_to.as_ref();
        exported.is_none_or(|to| to.contains(&gateway.namespace))
    }

    pub(crate) fn precedence_key(&self) -> (&str, &str) {
        (&self.created, &self.key.name)
    }

    /// Whether the policy of any port originates TLS or refuses all requests. Subsets do not count: only routes use
    /// them.
    pub(crate) fn originates_tls(&self) -> bool {
        originates_tls(&self.policy, &self.ports)
    }
}

pub(crate) fn originates_tls(
    policy: &DestinationPolicy,
    ports: &BTreeMap<u16, DestinationPolicy>,
) -> bool {
    let mut policies = ports.values().chain([policy]);
    policies.any(|policy| policy.tls.is_some() || policy.unsupported.is_some())
}
