//! Parsing of ConfigMaps: the MeshConfig, and CA certificates (`ca.crt`).

pub(crate) mod callee;
pub(crate) mod ext_authz;
pub(crate) mod fields;
pub(crate) mod providers;
pub(crate) mod settings;
pub(crate) mod telemetry;
pub(crate) mod trust_domains;

use ambit_k8s_api::{ConfigMap, revisions};
use ambit_model::ArcStr;

use crate::{
    config::MeshConfig,
    objects::{
        config_map::{fields::MESH_CONFIG_KEY, settings::MeshSettings},
        readable::{FetchExtent, FetchedKind, Parsed, Readable},
    },
    problem::FieldError,
};

/// Name of the default revision's ConfigMap; other revisions append `-` and the revision's name.
const MESH_CONFIG_MAP_NAME: &str = "istio";
/// Key of the CA certificates in all ConfigMaps but the MeshConfig's.
const CA_CERTIFICATES_KEY: &str = "ca.crt";
/// Maximum length of the CA certificates of one ConfigMap, in bytes of PEM.
const MAX_CA_CERTIFICATES_BYTES: usize = 256 << 10;

impl FetchedKind for ConfigMap {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };

    fn without_unused_fields(mut self) -> Self {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let is_settings = name
            .strip_prefix(MESH_CONFIG_MAP_NAME)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
        if let Some(data) = &mut self.data {
            data.retain(|key, _| {
                key == CA_CERTIFICATES_KEY || is_settings && key == MESH_CONFIG_KEY
            });
        }
        self.binary_data = None;
        self
    }
}

/// Parsed ConfigMap: the MeshConfig, or CA certificates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConfigMapInput {
    /// The parsed MeshConfig.
    Settings(Box<MeshSettings>),
    /// CA certificates, as PEM.
    CaCertificates(ArcStr),
}

impl ConfigMapInput {
    pub(crate) fn settings(&self) -> Option<&MeshSettings> {
        match self {
            Self::Settings(settings) => Some(settings),
            Self::CaCertificates(_) => None,
        }
    }

    /// Returns the CA certificates, as PEM; `None` for the MeshConfig.
    pub(crate) fn ca_certificates(&self) -> Option<&ArcStr> {
        match self {
            Self::Settings(_) => None,
            Self::CaCertificates(text) => Some(text),
        }
    }
}

impl Readable for ConfigMap {
    type Input = ConfigMapInput;

    fn read(&self, config: &MeshConfig) -> Result<Parsed<ConfigMapInput>, FieldError> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
        let text = |key: &str| self.data.as_ref().and_then(|data| data.get(key));
        let name = self.metadata.name.as_deref().unwrap_or_default();
        if namespace != config.root_namespace || name != settings_name(config) {
            let is_usable = |text: &&String| {
                text.len() <= MAX_CA_CERTIFICATES_BYTES
                    && text.contains("-----BEGIN CERTIFICATE-----")
            };
            let text = text(CA_CERTIFICATES_KEY).filter(is_usable);
            let input = text.map(|text| ConfigMapInput::CaCertificates(text.as_str().into()));
            return Ok(Parsed::new(input, Vec::new()));
        }
        let mut notes = Vec::new();
        let text = text(MESH_CONFIG_KEY).map_or("", String::as_str);
        let read = settings::read(text, config, &mut notes)?;
        let input = ConfigMapInput::Settings(Box::new(read));
        Ok(Parsed::new(Some(input), notes))
    }
}

/// Returns the name of the ConfigMap that has the MeshConfig of the control plane's revision.
pub(crate) fn settings_name(config: &MeshConfig) -> String {
    format!(
        "{MESH_CONFIG_MAP_NAME}{}",
        revisions::name_suffix(&config.revision)
    )
}
