//! Parsing of RateLimits. Each waypoint that a RateLimit is attached to receives it.
//!
//! An invalid object without a last usable version is published as not understood: waypoints refuse requests to its
//! targets, or forward them if `failOpen` is set.

pub(crate) mod read;

use ambit_k8s_api::{
    Kind, ObjectKey, ObjectMeta, RateLimit,
    ambit::{GlobalRateLimit, RateLimitSpec},
};
use ambit_model::{self as model, ArcStr, PolicyKey};
use serde_json::Value;

use crate::{
    config::MeshConfig,
    objects::{
        readable::{FetchExtent, FetchedKind, Parsed, Readable, deserialize_field},
        targets::{PolicyTargets, readable_references, target_references},
    },
    problem::FieldError,
};

impl FetchedKind for RateLimit {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

/// Parsed RateLimit object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RateLimitInput {
    pub(crate) targets: PolicyTargets,
    /// Limits in the form that waypoints receive, without the resolved address of the rate-limit service.
    pub(crate) limit: model::RateLimit,
    pub(crate) rate_limit_service: Option<RateLimitService>,
}

impl RateLimitInput {
    /// Whether the limit only counts requests and refuses none (`spec.dryRun`).
    pub(crate) fn is_dry_run(&self) -> bool {
        self.limit.dry_run
    }
}

/// Reference to the rate-limit service, which need not exist.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RateLimitService {
    /// Key of the Service.
    pub(crate) service_key: ObjectKey,
    /// Name of the service as `namespace/host`.
    pub(crate) qualified_name: String,
    pub(crate) port: u16,
}

impl Readable for RateLimit {
    type Input = RateLimitInput;

    fn read(&self, config: &MeshConfig) -> Result<Parsed<RateLimitInput>, FieldError> {
        let spec = &self.spec;
        let outline = minimal_limit(self);
        let references = target_references(None, &spec.target_refs);
        let targets = PolicyTargets::read(references, &outline.key.namespace, config)?;
        if spec.local.is_empty() && spec.global.is_none() {
            let message = "a limit is needed: spec.local or spec.global";
            return Err(FieldError::new("spec", message));
        }
        let global = spec.global.as_ref();
        let namespace = &outline.key.namespace;
        let callee = global.map(|global| parse_rate_limit_service(global, namespace, config));
        Ok(Parsed::without_notes(RateLimitInput {
            targets,
            limit: model::RateLimit {
                local: read::parse_local_limits(&spec.local)?,
                global: global.map(read::parse_global_limit).transpose()?,
                sends_headers: spec.tell_clients,
                ..outline
            },
            rate_limit_service: callee.transpose()?,
        }))
    }

    fn substitute(&self, config: &MeshConfig) -> Option<RateLimitInput> {
        let references = target_references(None, &self.spec.target_refs);
        let outline = minimal_limit(self);
        Some(RateLimitInput {
            targets: PolicyTargets::possible_targets(&references, &outline.key.namespace, config)?,
            limit: model::RateLimit {
                not_understood: Some("the rate limit cannot be used as it is written".into()),
                ..outline
            },
            rate_limit_service: None,
        })
    }

    fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
        Some(Self {
            metadata,
            spec: RateLimitSpec {
                target_refs: readable_references(spec),
                fail_open: deserialize_field(spec, "failOpen").unwrap_or_default(),
                dry_run: deserialize_field(spec, "dryRun").unwrap_or_default(),
                ..RateLimitSpec::default()
            },
            ..Self::default()
        })
    }

    fn is_attached(&self) -> bool {
        !self.spec.target_refs.is_empty()
    }
}

/// Builds the part of the limit that is valid even if the rest cannot be parsed: name, dry run, and whether requests
/// are forwarded when no decision is available.
fn minimal_limit(limit: &RateLimit) -> model::RateLimit {
    let metadata = &limit.metadata;
    model::RateLimit {
        key: PolicyKey {
            namespace: metadata.namespace.as_deref().unwrap_or("default").into(),
            name: metadata.name.as_deref().unwrap_or_default().into(),
        },
        dry_run: limit.spec.dry_run,
        fail_open: limit.spec.fail_open,
        ..model::RateLimit::default()
    }
}

/// Resolves the reference to the rate-limit service. Waypoints call the service on behalf of the object's namespace.
pub(crate) fn parse_rate_limit_service(
    global: &GlobalRateLimit,
    policy_namespace: &ArcStr,
    config: &MeshConfig,
) -> Result<RateLimitService, FieldError> {
    let from = &global.service;
    let namespace = from.namespace.as_deref().unwrap_or(policy_namespace);
    if !ambit_k8s_api::is_dns_name(namespace, 63) {
        let message = format!("{namespace:?} is no name of a namespace");
        return Err(FieldError::new("spec.global.service.namespace", message));
    }
    if !ambit_k8s_api::is_dns_name(&from.name, 63) {
        let message = format!("{:?} is no name of a Service", from.name);
        return Err(FieldError::new("spec.global.service.name", message));
    }
    let port = u16::try_from(from.port).ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| {
        let message = format!("{} is not a port, 1 to 65535", from.port);
        FieldError::new("spec.global.service.port", message)
    })?;
    let (name, domain) = (&from.name, &config.cluster_domain);
    Ok(RateLimitService {
        service_key: ObjectKey::new(Kind::Service, namespace, name.as_str()),
        qualified_name: format!("{namespace}/{name}.{namespace}.svc.{domain}"),
        port,
    })
}
