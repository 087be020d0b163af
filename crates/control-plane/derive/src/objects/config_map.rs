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
        config_map::{fields::KEY, settings::MeshSettings},
        readable::{Extent, Followed, Read, Readable},
    },
    problem::FieldError,
};

/// Name of the default revision's ConfigMap; other revisions append `-` and the revision's name.
const NAME: &str = "istio";
/// Key of the CA certificates in all ConfigMaps but the MeshConfig's.
const AUTHORITIES: &str = "ca.crt";
/// Maximum length of the CA certificates of one ConfigMap, in bytes of PEM.
const MAX_AUTHORITIES: usize = 256 << 10;

impl Followed for ConfigMap {
    const EXTENT: Extent = Extent::Whole { labels: None };

    fn cut(mut self) -> Self {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let is_settings = name
            .strip_prefix(NAME)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
        if let Some(data) = &mut self.data {
            data.retain(|key, _| key == AUTHORITIES || is_settings && key == KEY);
        }
        self.binary_data = None;
        self
    }
}

/// Parsed ConfigMap: the MeshConfig, or CA certificates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MapInput {
    /// The parsed MeshConfig.
    Settings(Box<MeshSettings>),
    /// CA certificates, as PEM.
    Authorities(ArcStr),
}

impl MapInput {
    pub(crate) fn settings(&self) -> Option<&MeshSettings> {
        match self {
            Self::Settings(settings) => Some(settings),
            Self::Authorities(_) => None,
        }
    }

    /// Returns the CA certificates, as PEM; `None` for the MeshConfig.
    pub(crate) fn authorities(&self) -> Option<&ArcStr> {
        match self {
            Self::Settings(_) => None,
            Self::Authorities(text) => Some(text),
        }
    }
}

impl Readable for ConfigMap {
    type Input = MapInput;

    fn read(&self, config: &MeshConfig) -> Result<Read<MapInput>, FieldError> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
        let text = |key: &str| self.data.as_ref().and_then(|data| data.get(key));
        let name = self.metadata.name.as_deref().unwrap_or_default();
        if namespace != config.root_namespace || name != settings_name(config) {
            let is_usable = |text: &&String| {
                text.len() <= MAX_AUTHORITIES && text.contains("-----BEGIN CERTIFICATE-----")
            };
            let text = text(AUTHORITIES).filter(is_usable);
            let input = text.map(|text| MapInput::Authorities(text.as_str().into()));
            return Ok(Read::of(input, Vec::new()));
        }
        let mut notes = Vec::new();
        let text = text(KEY).map_or("", String::as_str);
        let read = settings::read(text, config, &mut notes)?;
        let input = MapInput::Settings(Box::new(read));
        Ok(Read::of(Some(input), notes))
    }
}

/// Returns the name of the ConfigMap that has the MeshConfig of the control plane's revision.
pub(crate) fn settings_name(config: &MeshConfig) -> String {
    format!("{NAME}{}", revisions::suffix(&config.revision))
}
