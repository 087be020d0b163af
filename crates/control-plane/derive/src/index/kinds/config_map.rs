//! The ConfigMap `istio` of the root namespace: Istio's MeshConfig, settings of the whole mesh that are followed while
//! the mesh runs.
//!
//! What is not supported is noted and changes nothing. What cannot be read, or concerns security and cannot be
//! followed, leaves the last usable settings in force; without any, those of the control plane's own flags.

mod callee;
mod ext_authz;
mod providers;
mod settings;
mod telemetry;

use ambit_k8s_api::{ConfigMap, Kind, ObjectKey};
use ambit_model::PathNormalization;

use crate::{
    MeshConfig, PodDirectory,
    index::{
        Index,
        kind::{Change, Extent, Followed, MeshKind, Read},
    },
    problem::FieldError,
};
pub(crate) use callee::host;
use providers::ExtensionProvider;
pub(crate) use settings::MeshSettings;

/// Its name.
const NAME: &str = "istio";
/// What of it is the MeshConfig.
const KEY: &str = "mesh";

impl Followed for ConfigMap {
    const EXTENT: Extent = Extent::Named(NAME);

    fn cut(mut self) -> Self {
        if let Some(data) = &mut self.data {
            data.retain(|key, _| key == KEY);
        }
        self.binary_data = None;
        self
    }
}

impl MeshKind for ConfigMap {
    type Input = MeshSettings;

    fn read(&self, config: &MeshConfig) -> Result<Read<MeshSettings>, FieldError> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
        if namespace != config.root_namespace || self.metadata.name.as_deref() != Some(NAME) {
            return Ok(Read::of(None, Vec::new()));
        }
        let text = self.data.as_ref().and_then(|data| data.get(KEY));
        let mut notes = Vec::new();
        let text = text.map_or("", String::as_str);
        let read = settings::read(text, config, &mut notes)?;
        Ok(Read::of(Some(read), notes))
    }

    fn changed(index: &mut Index, change: &Change<'_, MeshSettings>, _: &mut PodDirectory) {
        let hosts = |of: Option<&MeshSettings>| of.map(MeshSettings::hosts).unwrap_or_default();
        index
            .callees
            .replace(change.key, hosts(change.old), hosts(change.new));
        index.mark_gateways();
        index.mark_users_of_providers();
        index.mark(change.key.clone());
        index.mark_telemetry();
    }
}

/// What is wrong with a field of the MeshConfig.
fn error(at: &str, message: impl Into<String>) -> FieldError {
    let dot = if at.is_empty() { "" } else { "." };
    FieldError::new(format!("data.{KEY}{dot}{at}"), message)
}

impl Index {
    /// The object that the mesh's settings are in.
    pub(crate) fn settings_key(&self) -> ObjectKey {
        ObjectKey::new(Kind::ConfigMap, self.config.root_namespace.clone(), NAME)
    }

    /// The mesh's settings, if there are any but those of the control plane's flags.
    pub(crate) fn settings(&self) -> Option<&MeshSettings> {
        self.get::<ConfigMap>(&self.settings_key())
    }

    /// A provider by its name.
    pub(crate) fn extension_provider(&self, name: &str) -> Option<&ExtensionProvider> {
        self.settings()?.providers.get(name)
    }

    /// How waypoints normalize paths.
    pub(crate) fn path_normalization(&self) -> PathNormalization {
        let own = self.settings().and_then(|one| one.path_normalization);
        own.unwrap_or(self.config.path_normalization)
    }

    /// How many proxies before the mesh are trusted.
    pub(crate) fn trusted_proxies(&self) -> u32 {
        let own = self.settings().and_then(|one| one.trusted_proxies);
        own.unwrap_or(self.config.trusted_proxies)
    }
}
