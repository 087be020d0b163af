//! Parsing of the MeshConfig: each field either takes effect or is noted as one that has no effect.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::selector::{self, LabelSelector};
use ambit_model::{ArcStr, PathNormalization};
use serde_json::Value;

use crate::{
    config::{MeshConfig, WaypointAttachment, WaypointBinding, WaypointMissing, WorkloadWaypoints},
    objects::{
        config_map::{
            fields::{error, map, rest},
            providers::{self, ExtensionProvider},
            telemetry::{self, MeshTelemetry},
            trust_domains,
        },
        export::Export,
        root_certificates::RootCertificates,
    },
    problem::{FieldError, Note},
};

/// Parsed MeshConfig of the mesh.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MeshSettings {
    /// Extension providers by name.
    pub(crate) providers: BTreeMap<ArcStr, ExtensionProvider>,
    /// Path normalization in waypoints; `None` for the default from the control plane's flags.
    pub(crate) path_normalization: Option<PathNormalization>,
    /// Number of trusted proxies before the mesh that add to `x-forwarded-for`; `None` for the default from the flags.
    pub(crate) trusted_proxies: Option<u32>,
    /// Visibility of ServiceEntries without `exportTo`, and the widest that an entry may request; `None` for the
    /// default from the flags.
    pub(crate) default_export: Option<Export>,
    /// Selectors of the namespaces whose objects the mesh uses; all namespaces if empty.
    pub(crate) discovery_selectors: Vec<LabelSelector>,
    /// Telemetry defaults of the whole mesh.
    pub(crate) telemetry: MeshTelemetry,
    /// Further names of the mesh's trust domain (`trustDomainAliases`).
    pub(crate) trust_domain_aliases: BTreeSet<ArcStr>,
    /// Root certificates of trust domains (`caCertificates`).
    pub(crate) ca_certificates: Vec<RootCertificates>,
}

impl MeshSettings {
    /// Returns the hosts of the providers' services, which waypoints call.
    pub(crate) fn hosts(&self) -> Vec<ArcStr> {
        let providers = self.providers.values();
        providers.filter_map(ExtensionProvider::host).collect()
    }
}

/// Fields of Istio's MeshConfig that concern only sidecars and ingress gateways, or behaviour that is fixed in this
/// mesh.
const ELSEWHERE: [&str; 39] = [
    "ca",
    "certificates",
    "configSources",
    "connectTimeout",
    "defaultDestinationRuleExportTo",
    "defaultHttpRetryPolicy",
    "defaultVirtualServiceExportTo",
    "disableEnvoyListenerLog",
    "dnsRefreshRate",
    "enableAutoMtls",
    "enableEnvoyAccessLogService",
    "enablePrometheusMerge",
    "enableTracing",
    "h2UpgradePolicy",
    "hboneIdleTimeout",
    "inboundClusterStatName",
    "inboundTrafficPolicy",
    "ingressClass",
    "ingressControllerMode",
    "ingressSelector",
    "ingressService",
    "localityLbSetting",
    "meshMTLS",
    "meshMtls",
    "mixerCheckServer",
    "outboundClusterStatName",
    "protocolDetectionTimeout",
    "proxyHttpPort",
    "proxyInboundListenPort",
    "proxyListenPort",
    "rootNamespace",
    "sdsUdsPath",
    "serviceScopeConfigs",
    "serviceSettings",
    "tcpKeepalive",
    "thriftConfig",
    "tlsDefaults",
    "verifyCertificateAtClient",
    "xdsAuthProvider",
];

/// Field that selects the namespaces whose objects the mesh uses.
const DISCOVERY: &str = "discoverySelectors";
/// Field with the default visibility of ServiceEntries.
const EXPORT: &str = "defaultServiceExportTo";

/// Parses a MeshConfig from YAML.
pub(crate) fn read(
    text: &str,
    config: &MeshConfig,
    notes: &mut Vec<Note>,
) -> Result<MeshSettings, FieldError> {
    let value: Option<Value> =
        serde_saphyr::from_str(text).map_err(|cause| error("", format!("is no YAML: {cause}")))?;
    let all = map("", value.as_ref())?;
    let mut settings = MeshSettings {
        providers: providers::read(all.get(providers::FIELD), notes)?,
        telemetry: telemetry::read(all, notes)?,
        ..MeshSettings::default()
    };
    for (name, value) in all {
        match name.as_str() {
            providers::FIELD => {}
            known if telemetry::FIELDS.contains(&known) => {}
            _ if value.is_null() => {}
            "trustDomain" => same(name, value, &config.trust_domain, "every identity has it")?,
            "rootNamespace" => unlike(name, value, &config.root_namespace, notes),
            "waypointAttachment" => unlike(name, value, attachment(config), notes),
            "waypointMissing" => unlike(name, value, missing(config), notes),
            "waypointBinding" => unlike(name, value, binding(config), notes),
            "workloadWaypoints" => unlike(name, value, workload_waypoints(config), notes),
            "outboundTrafficPolicy" => outbound(name, value, config, notes)?,
            "referenceGrants" => {
                let given = format!("{:?}", config.reference_grants).to_ascii_lowercase();
                unlike(name, value, &given, notes);
            }
            EXPORT => settings.default_export = default_export(value, notes)?,
            "pathNormalization" => settings.path_normalization = normalization(value, notes)?,
            "defaultConfig" => settings.trusted_proxies = default_config(value, notes)?,
            DISCOVERY => settings.discovery_selectors = discovery_selectors(value)?,
            trust_domains::ALIASES => {
                settings.trust_domain_aliases = trust_domains::aliases(value)?
            }
            trust_domains::CERTIFICATES => {
                settings.ca_certificates = trust_domains::certificates(value, notes)?;
            }
            "enableAutoMtls" if *value == Value::Bool(true) => {}
            known if ELSEWHERE.contains(&known) => notes.push(error(
                known,
                "has no effect: node proxies and waypoints have no such setting",
            )),
            unknown => notes.push(error(unknown, "is not known, and has no effect")),
        }
    }
    Ok(settings)
}

/// Checks `outboundTrafficPolicy`. Node proxies have its mode from their own flags, so that it is in effect before they
/// reach the control plane.
fn outbound(
    name: &str,
    value: &Value,
    config: &MeshConfig,
    notes: &mut Vec<Note>,
) -> Result<(), FieldError> {
    let all = map(name, Some(value))?;
    rest(name, all, &["mode"], notes);
    let ours = if config.registry_only {
        "REGISTRY_ONLY"
    } else {
        "ALLOW_ANY"
    };
    if let Some(mode) = all.get("mode").filter(|mode| !mode.is_null()) {
        unlike(&format!("{name}.mode"), mode, ours, notes);
    }
    Ok(())
}

fn attachment(config: &MeshConfig) -> &'static str {
    match config.waypoint_attachment {
        WaypointAttachment::Seed => "seed",
        WaypointAttachment::Labels => "labels",
    }
}

fn workload_waypoints(config: &MeshConfig) -> &'static str {
    match config.workload_waypoints {
        WorkloadWaypoints::Enforced => "enforced",
        WorkloadWaypoints::Istio => "istio",
    }
}

fn missing(config: &MeshConfig) -> &'static str {
    match config.waypoint_missing {
        WaypointMissing::Refuse => "refuse",
        WaypointMissing::Allow => "allow",
    }
}

fn binding(config: &MeshConfig) -> &'static str {
    match config.waypoint_binding {
        WaypointBinding::Strict => "strict",
        WaypointBinding::Ready => "ready",
    }
}

/// Rejects the MeshConfig if it has another value than the control plane's for a security-relevant setting that cannot
/// change while the mesh runs.
fn same(name: &str, value: &Value, ours: &str, why: &str) -> Result<(), FieldError> {
    if value.as_str() == Some(ours) {
        return Ok(());
    }
    let message = format!(
        "is {value} and the mesh has {ours}: {why}, so that it changes only by an upgrade with the value meshConfig.{name}"
    );
    Err(error(name, message))
}

/// Adds a note if the MeshConfig has another value than the chart set for a setting that cannot change while the mesh
/// runs.
fn unlike(name: &str, value: &Value, ours: &str, notes: &mut Vec<Note>) {
    if value.as_str() != Some(ours) {
        let message = format!(
            "is {value} and the mesh has {ours}: it changes only by an upgrade of the mesh, not here"
        );
        notes.push(error(name, message));
    }
}

/// Parses `discoverySelectors`. A selector that cannot be parsed in full is an error: it could exclude namespaces, and
/// their policies, that it is meant to include.
fn discovery_selectors(value: &Value) -> Result<Vec<LabelSelector>, FieldError> {
    let not_a_list = || error(DISCOVERY, "is not a list of label selectors");
    let all = value.as_array().ok_or_else(not_a_list)?;
    let read = |(index, one): (usize, &Value)| {
        selector::read(one).map_err(|why| error(&format!("{DISCOVERY}[{index}]"), why.to_string()))
    };
    all.iter().enumerate().map(read).collect()
}

fn normalization(
    value: &Value,
    notes: &mut Vec<Note>,
) -> Result<Option<PathNormalization>, FieldError> {
    let all = map("pathNormalization", Some(value))?;
    rest("pathNormalization", all, &["normalization"], notes);
    let Some(mode) = all.get("normalization").filter(|mode| !mode.is_null()) else {
        return Ok(None);
    };
    match mode.as_str() {
        Some("DEFAULT" | "BASE") => Ok(Some(PathNormalization::Base)),
        Some("NONE") => Ok(Some(PathNormalization::None)),
        Some("MERGE_SLASHES") => Ok(Some(PathNormalization::MergeSlashes)),
        Some("DECODE_AND_MERGE_SLASHES") => Ok(Some(PathNormalization::DecodeAndMergeSlashes)),
        _ => Err(error(
            "pathNormalization.normalization",
            format!(
                "{mode} is none of DEFAULT, NONE, BASE, MERGE_SLASHES and DECODE_AND_MERGE_SLASHES"
            ),
        )),
    }
}

/// Parses `defaultServiceExportTo`: `*` (all namespaces), `.` (the entry's own) or `~` (none); an empty list counts as
/// unset.
fn default_export(value: &Value, notes: &mut Vec<Note>) -> Result<Option<Export>, FieldError> {
    let not_texts = || {
        error(
            EXPORT,
            format!("{value} is not a list of \"*\", \".\" or \"~\""),
        )
    };
    let all = value.as_array().ok_or_else(not_texts)?;
    let mut export = None;
    for (index, one) in all.iter().enumerate() {
        let one = match one.as_str().ok_or_else(not_texts)? {
            "*" => Export::All,
            "." => Export::Own,
            "~" => Export::None,
            namespace => {
                let message = format!(
                    "has no effect: ServiceEntries cannot be shown to {namespace} alone, only to all namespaces (\"*\")"
                );
                notes.push(error(&format!("{EXPORT}[{index}]"), message));
                Export::Own
            }
        };
        export = export.max(Some(one));
    }
    Ok(export)
}

/// Parses `defaultConfig` and returns `numTrustedProxies`; fields without effect are noted. Its `tracing.sampling` is
/// parsed with the telemetry fields.
fn default_config(value: &Value, notes: &mut Vec<Note>) -> Result<Option<u32>, FieldError> {
    let all = map("defaultConfig", Some(value))?;
    // Where the control plane is, is known otherwise.
    let read = ["gatewayTopology", "discoveryAddress", "tracing"];
    rest("defaultConfig", all, &read, notes);
    let tracing = map("defaultConfig.tracing", all.get("tracing"))?;
    rest("defaultConfig.tracing", tracing, &["sampling"], notes);
    let place = "defaultConfig.gatewayTopology";
    let topology = map(place, all.get("gatewayTopology"))?;
    rest(place, topology, &["numTrustedProxies"], notes);
    let Some(number) = topology
        .get("numTrustedProxies")
        .filter(|one| !one.is_null())
    else {
        return Ok(None);
    };
    let usable = number.as_u64().and_then(|one| u32::try_from(one).ok());
    usable.map(Some).ok_or_else(|| {
        let message = format!("{number} is not a number of proxies");
        error(&format!("{place}.numTrustedProxies"), message)
    })
}
