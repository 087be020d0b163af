//! Parsing of WasmPlugins: each waypoint that a plugin is attached to receives it, fetches its module and runs it.
//!
//! An invalid plugin without a last usable version is published as unsupported: its fail strategy decides requests to
//! its targets, as if it had failed.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{
    Kind, ObjectKey, ObjectMeta, WasmPlugin, created, is_dns_name,
    wasm::{
        EnvValueSource, FailStrategy, PluginPhase, PluginType, PullPolicy, VmConfig,
        WasmPluginSpec, WorkloadMode,
    },
};
use ambit_model::{ArcStr, ExtensionPhase, WaypointExtension};
use serde_json::Value;

use crate::{
    config::MeshConfig,
    objects::{
        readable::{FetchExtent, FetchedKind, Parsed, Readable, deserialize_field},
        targets::{PolicyTargets, readable_references, target_references},
    },
    problem::{FieldError, Note},
};

/// Maximum size of a plugin's configuration, in bytes.
const MAX_CONFIGURATION_BYTES: usize = 256 << 10;
/// Maximum length of a module's URL, in bytes.
const MAX_URL_BYTES: usize = 2048;
/// Maximum number of environment variables of a plugin.
const MAX_ENVIRONMENT_VARIABLES: usize = 64;
const MAX_ENVIRONMENT_VALUE_BYTES: usize = 2048;

impl FetchedKind for WasmPlugin {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

/// Parsed WasmPlugin object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PluginInput {
    pub(crate) targets: PolicyTargets,
    /// Secret with the credentials for the image's registry (`imagePullSecret`).
    pub(crate) pull_secret: Option<ObjectKey>,
    /// Plugin as waypoints receive it; `None` if it matches no requests at waypoints.
    pub(crate) extension: Option<WaypointExtension>,
}

impl Readable for WasmPlugin {
    type Input = PluginInput;

    fn read(&self, config: &MeshConfig) -> Result<Parsed<PluginInput>, FieldError> {
        let spec = &self.spec;
        let namespace = namespace(self);
        let mut notes = Vec::new();
        let references = target_references(spec.target_ref.as_ref(), &spec.target_refs);
        if !references.is_empty() && spec.selector.is_some() {
            let message = "cannot be given together with spec.targetRefs";
            return Err(FieldError::new("spec.selector", message));
        }
        let targets = PolicyTargets::read(references, &namespace, config)?;
        let pull_secret = parse_pull_secret(self, config, &mut notes)?;
        let extension = parse_extension(self, &mut notes)?;
        let input = PluginInput {
            targets,
            pull_secret,
            extension,
        };
        Ok(Parsed::new(Some(input), notes))
    }

    fn substitute(&self, config: &MeshConfig) -> Option<PluginInput> {
        let references = target_references(self.spec.target_ref.as_ref(), &self.spec.target_refs);
        let extension = WaypointExtension {
            unsupported: Some("the plugin cannot be used as it is written".into()),
            // Before anything else.
            phase: ExtensionPhase::Authn,
            ..minimal_extension(self)
        };
        let targets = PolicyTargets::possible_targets(&references, &namespace(self), config)?;
        Some(PluginInput {
            targets,
            pull_secret: None,
            extension: Some(extension),
        })
    }

    fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
        Some(Self {
            metadata,
            spec: WasmPluginSpec {
                target_refs: readable_references(spec),
                fail_strategy: deserialize_field(spec, "failStrategy").unwrap_or_default(),
                ..WasmPluginSpec::default()
            },
            ..Self::default()
        })
    }

    fn is_attached(&self) -> bool {
        self.spec.is_attached()
    }
}

fn parse_pull_secret(
    plugin: &WasmPlugin,
    config: &MeshConfig,
    notes: &mut Vec<Note>,
) -> Result<Option<ObjectKey>, FieldError> {
    const FIELD: &str = "spec.imagePullSecret";
    let name = &plugin.spec.image_pull_secret;
    if name.is_empty() {
        return Ok(None);
    }
    if !is_dns_name(name, 253) {
        let message = format!("{name:?} is no name of a Secret");
        return Err(FieldError::new(FIELD, message));
    }
    if !config.image_pull_secrets {
        let message = "the control plane follows no Secrets (pilot.imagePullSecrets): the image is pulled without credentials";
        notes.push(Note::new(FIELD, message));
        return Ok(None);
    }
    Ok(Some(ObjectKey::new(
        Kind::Secret,
        namespace(plugin),
        name.as_str(),
    )))
}

fn namespace(plugin: &WasmPlugin) -> ArcStr {
    let namespace = plugin.metadata.namespace.as_deref();
    namespace.unwrap_or("default").into()
}

/// Builds the part of the plugin that is valid even if the rest cannot be parsed: name, age, and fail strategy.
fn minimal_extension(plugin: &WasmPlugin) -> WaypointExtension {
    WaypointExtension {
        namespace: namespace(plugin),
        name: plugin.metadata.name.as_deref().unwrap_or_default().into(),
        created: created(&plugin.metadata).into(),
        fail_open: plugin.spec.fail_strategy == FailStrategy::FailOpen,
        ..WaypointExtension::default()
    }
}

fn parse_extension(
    plugin: &WasmPlugin,
    notes: &mut Vec<Note>,
) -> Result<Option<WaypointExtension>, FieldError> {
    let spec = &plugin.spec;
    let url =
        validate_module_url(&spec.url).map_err(|message| FieldError::new("spec.url", message))?;
    let sha256 = spec.sha256.to_ascii_lowercase();
    if !sha256.is_empty() && !is_sha256(&sha256) {
        let message = format!("{:?} is no SHA-256: 64 hexadecimal digits", spec.sha256);
        return Err(FieldError::new("spec.sha256", message));
    }
    let priority = spec.priority.unwrap_or_default();
    let priority = i32::try_from(priority)
        .map_err(|_| FieldError::new("spec.priority", format!("{priority} is no 32-bit number")))?;
    if !spec.verification_key.is_empty() {
        notes.push(Note::new(
            "spec.verificationKey",
            "signatures of images are not verified; give spec.sha256",
        ));
    }
    let ports = parse_ports(spec, notes)?;
    let mut unsupported = None;
    if spec.plugin_type == PluginType::Network {
        let message = "plugins of connections (NETWORK) are not supported; requests are decided by spec.failStrategy";
        notes.push(Note::new("spec.type", message));
        unsupported = Some("plugins of connections are not supported".into());
    }
    let configuration = match &spec.plugin_config {
        None | Some(Value::Null) => String::new(),
        Some(Value::Object(config)) => Value::Object(config.clone()).to_string(),
        Some(_) => return Err(FieldError::new("spec.pluginConfig", "is no object")),
    };
    if configuration.len() > MAX_CONFIGURATION_BYTES {
        let message = format!(
            "has {} bytes; at most {MAX_CONFIGURATION_BYTES}",
            configuration.len()
        );
        return Err(FieldError::new("spec.pluginConfig", message));
    }
    let always_pull = match spec.image_pull_policy {
        PullPolicy::Always => true,
        PullPolicy::IfNotPresent => false,
        PullPolicy::Unspecified => sha256.is_empty() && is_latest(&url),
    };
    let environment = parse_environment(spec.vm_config.as_ref())?;
    Ok(ports.map(|ports| WaypointExtension {
        phase: match spec.phase {
            PluginPhase::Authn => ExtensionPhase::Authn,
            PluginPhase::Authz => ExtensionPhase::Authz,
            PluginPhase::Stats => ExtensionPhase::Stats,
            PluginPhase::Unspecified => ExtensionPhase::Unspecified,
        },
        priority,
        url,
        sha256: sha256.into(),
        always_pull,
        plugin_name: spec.plugin_name.as_str().into(),
        configuration: configuration.into(),
        environment,
        ports,
        unsupported,
        ..minimal_extension(plugin)
    }))
}

/// Validates the module's URL; a URL without a scheme is an image (`oci://`).
fn validate_module_url(url: &str) -> Result<ArcStr, String> {
    if url.is_empty() {
        return Err(
            "must say where the module is: oci://, https://, http:// or file://".to_owned(),
        );
    }
    let is_text = url.bytes().all(|byte| byte.is_ascii_graphic());
    if url.len() > MAX_URL_BYTES || !is_text {
        return Err(format!("{url:?} is no URL"));
    }
    let (scheme, rest) = url.split_once("://").unwrap_or(("oci", url));
    if !["oci", "http", "https", "file"].contains(&scheme) {
        return Err(format!("{scheme:?} is none of oci, https, http and file"));
    }
    if rest.is_empty() || scheme == "file" && !rest.starts_with('/') {
        return Err(format!("{url:?} names no module"));
    }
    Ok(arcstr::format!("{scheme}://{rest}"))
}

/// Whether an image has no digest, and the tag `latest` or none, so that its content can change.
fn is_latest(url: &str) -> bool {
    let Some(image) = url.strip_prefix("oci://") else {
        return false;
    };
    let name = image.rsplit('/').next().unwrap_or_default();
    !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the service ports whose requests the plugin applies to, empty for all; `None` if it applies to no requests
/// at waypoints.
fn parse_ports(
    spec: &WasmPluginSpec,
    notes: &mut Vec<Note>,
) -> Result<Option<Vec<u16>>, FieldError> {
    let (mut ports, mut all, mut of_clients) = (BTreeSet::new(), spec.matches.is_empty(), 0);
    for (index, one) in spec.matches.iter().enumerate() {
        for (place, port) in one.ports.iter().enumerate() {
            let number = u16::try_from(port.number).ok().filter(|number| *number > 0);
            let number = number.ok_or_else(|| {
                let field = format!("spec.match[{index}].ports[{place}].number");
                FieldError::new(field, format!("{} is not a port, 1 to 65535", port.number))
            })?;
            if one.mode != WorkloadMode::Client {
                ports.insert(number);
            }
        }
        if one.mode == WorkloadMode::Client {
            of_clients += 1;
        } else {
            all |= one.ports.is_empty();
        }
    }
    if of_clients > 0 {
        let message = "CLIENT matches nothing at waypoints, which stand for the servers";
        notes.push(Note::new("spec.match", message));
    }
    if all {
        return Ok(Some(Vec::new()));
    }
    Ok((!ports.is_empty()).then(|| ports.into_iter().collect()))
}

fn parse_environment(config: Option<&VmConfig>) -> Result<BTreeMap<ArcStr, ArcStr>, FieldError> {
    let all = config.map(|config| &config.env[..]).unwrap_or_default();
    if all.len() > MAX_ENVIRONMENT_VARIABLES {
        let message = format!(
            "{} variables; at most {MAX_ENVIRONMENT_VARIABLES}",
            all.len()
        );
        return Err(FieldError::new("spec.vmConfig.env", message));
    }
    let mut environment = BTreeMap::new();
    for (index, variable) in all.iter().enumerate() {
        let error = |field: &str, message: String| {
            FieldError::new(format!("spec.vmConfig.env[{index}].{field}"), message)
        };
        let name = &variable.name;
        if name.is_empty() || name.len() > 256 || name.contains(['=', '\0']) {
            return Err(error("name", format!("{name:?} is no name of a variable")));
        }
        if variable.value_from == EnvValueSource::Host {
            let message =
                "HOST is refused: the environment of a waypoint is not for plugins; give the value";
            return Err(error("valueFrom", message.to_owned()));
        }
        if variable.value.len() > MAX_ENVIRONMENT_VALUE_BYTES || variable.value.contains('\0') {
            return Err(error(
                "value",
                format!("has more than {MAX_ENVIRONMENT_VALUE_BYTES} bytes, or a zero in it"),
            ));
        }
        let value = (name.as_str().into(), variable.value.as_str().into());
        if environment.insert(value.0, value.1).is_some() {
            return Err(error("name", format!("{name:?} is duplicated")));
        }
    }
    Ok(environment)
}
