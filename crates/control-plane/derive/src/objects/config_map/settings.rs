//! Parsing of the MeshConfig: each field either takes effect or is noted as one that has no effect.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::selector::{self, LabelSelector};
use ambit_model::{ArcStr, PathNormalization};
use serde_json::Value;

use crate::{
    config::{MeshConfig, WaypointAttachment, WaypointBinding, WaypointMissing, WorkloadWaypoints},
    objects::{
        config_map::{
            fields::{as_map, field_error, note_unread_fields},
            providers::{self, ExtensionProvider},
            telemetry::{self, MeshTelemetry},
            trust_domains,
        },
        export::ExportTo,
        root_certificates::RootCertificates,
    },
    problem::{FieldError, Note},
};

/// Parsed MeshConfig: settings of the whole mesh.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MeshSettings {
    /// Extension providers by name.
    pub(crate) providers: BTreeMap<ArcStr, ExtensionProvider>,
    /// Path normalization in waypoints; `None` for the default from the control plane's flags.
    pub(crate) path_normalization: Option<PathNormalization>,
    /// Number of trusted proxies in front of the mesh that add to `x-forwarded-for`; `None` for the default from the
    /// control plane's flags.
    pub(crate) trusted_proxies: Option<u32>,
    /// Visibility of ServiceEntries without `exportTo`, and the widest that an entry may request; `None` for the
    /// default from the flags.
    pub(crate) default_export: Option<ExportTo>,
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
    pub(crate) fn provider_hosts(&self) -> Vec<ArcStr> {
        let providers = self.providers.values();
        providers.filter_map(ExtensionProvider::host).collect()
    }
}

/// Fields of Istio's MeshConfig that concern only sidecars and ingress gateways, or behaviour that is fixed in this
/// mesh.
const FIELDS_WITHOUT_EFFECT: [&str; 39] = [
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

/// MeshConfig field that selects the namespaces whose objects the mesh uses.
const DISCOVERY_SELECTORS_FIELD: &str = "discoverySelectors";
/// MeshConfig field with the default visibility of ServiceEntries.
const DEFAULT_EXPORT_FIELD: &str = "defaultServiceExportTo";

/// Parses a MeshConfig from YAML.
pub(crate) fn read(
    text: &str,
    config: &MeshConfig,
    notes: &mut Vec<Note>,
) -> Result<MeshSettings, FieldError> {
    let value: Option<Value> = serde_saphyr::from_str(text)
        .map_err(|cause| field_error("", format!("is no YAML: {cause}")))?;
    let all = as_map("", value.as_ref())?;
    let mut settings = MeshSettings {
        providers: providers::read(all.get(providers::PROVIDERS_FIELD), notes)?,
        telemetry: telemetry::read(all, notes)?,
        ..MeshSettings::default()
    };
    for (name, value) in all {
        match name.as_str() {
            providers::PROVIDERS_FIELD => {}
            known if telemetry::TELEMETRY_FIELDS.contains(&known) => {}
            _ if value.is_null() => {}
            "trustDomain" => {
                require_same_value(name, value, &config.trust_domain, "every identity has it")?
            }
            "rootNamespace" => note_different_value(name, value, &config.root_namespace, notes),
            "waypointAttachment" => {
                note_different_value(name, value, attachment_setting(config), notes)
            }
            "waypointMissing" => {
                note_different_value(name, value, waypoint_missing_setting(config), notes)
            }
            "waypointBinding" => {
                note_different_value(name, value, waypoint_binding_setting(config), notes)
            }
            "workloadWaypoints" => {
                note_different_value(name, value, workload_waypoints_setting(config), notes)
            }
            "outboundTrafficPolicy" => check_outbound_policy(name, value, config, notes)?,
            "referenceGrants" => {
                let given = format!("{:?}", config.reference_grants).to_ascii_lowercase();
                note_different_value(name, value, &given, notes);
            }
            DEFAULT_EXPORT_FIELD => settings.default_export = parse_default_export(value, notes)?,
            "pathNormalization" => {
                settings.path_normalization = parse_path_normalization(value, notes)?
            }
            "defaultConfig" => settings.trusted_proxies = parse_default_config(value, notes)?,
            DISCOVERY_SELECTORS_FIELD => {
                settings.discovery_selectors = parse_discovery_selectors(value)?
            }
            trust_domains::ALIASES_FIELD => {
                settings.trust_domain_aliases = trust_domains::parse_trust_domain_aliases(value)?
            }
            trust_domains::CA_CERTIFICATES_FIELD => {
                settings.ca_certificates = trust_domains::parse_ca_certificates(value, notes)?;
            }
            "enableAutoMtls" if *value == Value::Bool(true) => {}
            known if FIELDS_WITHOUT_EFFECT.contains(&known) => notes.push(field_error(
                known,
                "has no effect: node proxies and waypoints have no such setting",
            )),
            unknown => notes.push(field_error(unknown, "is not known, and has no effect")),
        }
    }
    Ok(settings)
}

/// Checks `outboundTrafficPolicy`. Node proxies have its mode from their own flags, so that it is in effect before they
/// reach the control plane.
fn check_outbound_policy(
    name: &str,
    value: &Value,
    config: &MeshConfig,
    notes: &mut Vec<Note>,
) -> Result<(), FieldError> {
    let all = as_map(name, Some(value))?;
    note_unread_fields(name, all, &["mode"], notes);
    let ours = if config.registry_only {
        "REGISTRY_ONLY"
    } else {
        "ALLOW_ANY"
    };
    if let Some(mode) = all.get("mode").filter(|mode| !mode.is_null()) {
        note_different_value(&format!("{name}.mode"), mode, ours, notes);
    }
    Ok(())
}

fn attachment_setting(config: &MeshConfig) -> &'static str {
    match config.waypoint_attachment {
        WaypointAttachment::LabelsAndGateways => "seed",
        WaypointAttachment::LabelsOnly => "labels",
    }
}

fn workload_waypoints_setting(config: &MeshConfig) -> &'static str {
    match config.workload_waypoints {
        WorkloadWaypoints::AllClients => "enforced",
        WorkloadWaypoints::CapturedClients => "istio",
    }
}

fn waypoint_missing_setting(config: &MeshConfig) -> &'static str {
    match config.waypoint_missing {
        WaypointMissing::RefuseConnections => "refuse",
        WaypointMissing::BypassWaypoint => "allow",
    }
}

fn waypoint_binding_setting(config: &MeshConfig) -> &'static str {
    match config.waypoint_binding {
        WaypointBinding::Strict => "strict",
        WaypointBinding::WhenReady => "ready",
    }
}

/// Rejects the MeshConfig if it has another value than the control plane's for a security-relevant setting that cannot
/// change while the mesh runs.
fn require_same_value(name: &str, value: &Value, ours: &str, why: &str) -> Result<(), FieldError> {
    if value.as_str() == Some(ours) {
        return Ok(());
    }
    let message = format!(
        "is {value} and the mesh has {ours}: {why}, so that it changes only by an upgrade with the value meshConfig.{name}"
    );
    Err(field_error(name, message))
}

/// Adds a note if the MeshConfig has another value than the chart set for a setting that cannot change while the mesh
/// runs.
fn note_different_value(name: &str, value: &Value, ours: &str, notes: &mut Vec<Note>) {
    if value.as_str() != Some(ours) {
        let message = format!(
            "is {value} and the mesh has {ours}: it changes only by an upgrade of the mesh, not here"
        );
        notes.push(field_error(name, message));
    }
}

/// Parses `discoverySelectors`. A selector that cannot be parsed in full is an error: it could exclude namespaces, and
/// their policies, that it is meant to include.
fn parse_discovery_selectors(value: &Value) -> Result<Vec<LabelSelector>, FieldError> {
    let not_a_list = || {
        field_error(
            DISCOVERY_SELECTORS_FIELD,
            "is not a list of label selectors",
        )
    };
    let all = value.as_array().ok_or_else(not_a_list)?;
    let read = |(index, one): (usize, &Value)| {
        selector::read(one).map_err(|why| {
            field_error(
                &format!("{DISCOVERY_SELECTORS_FIELD}[{index}]"),
                why.to_string(),
            )
        })
    };
    all.iter().enumerate().map(read).collect()
}

fn parse_path_normalization(
    value: &Value,
    notes: &mut Vec<Note>,
) -> Result<Option<PathNormalization>, FieldError> {
    let all = as_map("pathNormalization", Some(value))?;
    note_unread_fields("pathNormalization", all, &["normalization"], notes);
    let Some(mode) = all.get("normalization").filter(|mode| !mode.is_null()) else {
        return Ok(None);
    };
    match mode.as_str() {
        Some("DEFAULT" | "BASE") => Ok(Some(PathNormalization::Base)),
        Some("NONE") => Ok(Some(PathNormalization::None)),
        Some("MERGE_SLASHES") => Ok(Some(PathNormalization::MergeSlashes)),
        Some("DECODE_AND_MERGE_SLASHES") => Ok(Some(PathNormalization::DecodeAndMergeSlashes)),
        _ => Err(field_error(
            "pathNormalization.normalization",
            format!(
                "{mode} is none of DEFAULT, NONE, BASE, MERGE_SLASHES and DECODE_AND_MERGE_SLASHES"
            ),
        )),
    }
}

/// Parses `defaultServiceExportTo`: `*` (all namespaces), `.` (the entry's own) or `~` (none); an empty list counts as
/// unset.
fn parse_default_export(
    value: &Value,
    notes: &mut Vec<Note>,
) -> Result<Option<ExportTo>, FieldError> {
    let not_texts = || {
        field_error(
            DEFAULT_EXPORT_FIELD,
            format!("{value} is not a list of \"*\", \".\" or \"~\""),
        )
    };
    let all = value.as_array().ok_or_else(not_texts)?;
    let mut export = None;
    for (index, one) in all.iter().enumerate() {
        let one = match one.as_str().ok_or_else(not_texts)? {
            "*" => ExportTo::All,
            "." => ExportTo::OwnNamespace,
            "~" => ExportTo::None,
            namespace => {
                let message = format!(
                    "has no effect: ServiceEntries cannot be shown to {namespace} alone, only to all namespaces (\"*\")"
                );
                notes.push(field_error(
                    &format!("{DEFAULT_EXPORT_FIELD}[{index}]"),
                    message,
                ));
                ExportTo::OwnNamespace
            }
        };
        export = export.max(Some(one));
    }
    Ok(export)
}

/// Parses `defaultConfig` and returns `numTrustedProxies`; fields without effect are noted. Its `tracing.sampling` is
/// parsed with the telemetry fields.
fn parse_default_config(value: &Value, notes: &mut Vec<Note>) -> Result<Option<u32>, FieldError> {
    let all = as_map("defaultConfig", Some(value))?;
    // Where the control plane is, is known otherwise.
    let read = ["gatewayTopology", "discoveryAddress", "tracing"];
    note_unread_fields("defaultConfig", all, &read, notes);
    let tracing = as_map("defaultConfig.tracing", all.get("tracing"))?;
    note_unread_fields("defaultConfig.tracing", tracing, &["sampling"], notes);
    let place = "defaultConfig.gatewayTopology";
    let topology = as_map(place, all.get("gatewayTopology"))?;
    note_unread_fields(place, topology, &["numTrustedProxies"], notes);
    let Some(number) = topology
        .get("numTrustedProxies")
        .filter(|one| !one.is_null())
    else {
        return Ok(None);
    };
    let usable = number.as_u64().and_then(|one| u32::try_from(one).ok());
    usable.map(Some).ok_or_else(|| {
        let message = format!("{number} is not a number of proxies");
        field_error(&format!("{place}.numTrustedProxies"), message)
    })
}
