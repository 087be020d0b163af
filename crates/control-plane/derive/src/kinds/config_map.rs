//! The ConfigMap `istio` of the root namespace, or `istio-REVISION`: Istio's MeshConfig, settings of the whole mesh that are followed while
//! the mesh runs. Of others, the certificates of authorities that policies may refer to.
//!
//! What is not supported is noted and changes nothing. What cannot be read, or concerns security and cannot be
//! followed, leaves the last usable settings in force; without any, those of the control plane's own flags.

pub(crate) mod callee;
pub(crate) mod ext_authz;

use ambit_k8s_api::{ConfigMap, Kind, ObjectKey};
use ambit_model::PathNormalization;

use crate::{
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::{
        config_map::{
            MapInput, fields::error, providers::ExtensionProvider, settings::MeshSettings,
            settings_name,
        },
        root_certificates::RootSource,
    },
    pod_directory::PodDirectory,
    problem::Note,
    relations::references::Edge,
    view::{MeshView, rendered::Rendered},
};

impl MeshKind for ConfigMap {
    fn changed(index: &mut Index, change: &Change<'_, MapInput>, pods: &mut PodDirectory) {
        if change.both().any(|one| one.authorities().is_some()) {
            index.mark_users_of_authorities(change.key);
        }
        if change.both().all(|one| one.settings().is_none()) {
            return;
        }
        index.discover(pods);
        let hosts = |of: Option<&MapInput>| {
            let settings = of.and_then(MapInput::settings);
            settings.map(MeshSettings::hosts).unwrap_or_default()
        };
        index.view.references.replace(
            Edge::Calls,
            change.key,
            hosts(change.old),
            hosts(change.new),
        );
        let domains = |of: Option<&MapInput>| {
            let settings = of.and_then(MapInput::settings)?;
            let (aliases, roots) = (&settings.trust_domain_aliases, &settings.ca_certificates);
            (!aliases.is_empty() || !roots.is_empty()).then(|| (aliases.clone(), roots.clone()))
        };
        if domains(change.old) != domains(change.new) {
            index.mark_callers();
            // Entries must not name identities of other namespaces, under any name of the trust domain.
            index.mark_exports();
        }
        let export = |of: Option<&MapInput>| of.and_then(MapInput::settings)?.default_export;
        if export(change.old) != export(change.new) {
            index.mark_exports();
        }
        index.mark_gateways();
        index.mark_users_of_providers();
        index.mark(change.key.clone());
        index.mark_telemetry();
    }

    fn render(view: &MeshView, _: &ObjectKey, input: &MapInput) -> Rendered {
        let settings = input.settings();
        Rendered {
            conflicts: settings.map(|one| notes(view, one)).unwrap_or_default(),
            ..Rendered::default()
        }
    }
}

/// Notes on trust bundles that cannot be fetched.
fn notes(view: &MeshView, settings: &MeshSettings) -> Vec<Note> {
    let all = settings.ca_certificates.iter().enumerate();
    let notes = all.filter_map(|(number, one)| {
        let RootSource::Bundle(url) = &one.source else {
            return None;
        };
        let trouble = view.bundle_trouble(url)?;
        let at = format!("caCertificates[{number}].spiffeBundleUrl");
        let message = format!("cannot be fetched, so that its last roots stay: {trouble}");
        Some(error(&at, message))
    });
    notes.collect()
}

impl MeshView {
    /// The object that the mesh's settings are in.
    pub(crate) fn settings_key(&self) -> ObjectKey {
        let name = settings_name(&self.config);
        ObjectKey::new(Kind::ConfigMap, self.config.root_namespace.clone(), name)
    }

    /// The mesh's settings, if there are any but those of the control plane's flags.
    pub(crate) fn settings(&self) -> Option<&MeshSettings> {
        self.get::<ConfigMap>(&self.settings_key())?.settings()
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
