//! The ConfigMap `istio` of the root namespace, or `istio-REVISION`: Istio's MeshConfig, settings of the whole mesh
//! that may change while the mesh runs. Other ConfigMaps have CA certificates that BackendTLSPolicies may name.
//!
//! Unsupported fields are noted and have no effect. If the MeshConfig cannot be parsed, or a security-relevant field is
//! invalid, the last usable settings stay in effect; without any, the control plane's own flags apply.

pub(crate) mod callee;
pub(crate) mod ext_authz;

use ambit_k8s_api::{ConfigMap, Kind, ObjectKey};
use ambit_model::PathNormalization;

use crate::{
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::{
        config_map::{
            ConfigMapInput, fields::field_error, providers::ExtensionProvider,
            settings::MeshSettings, settings_name,
        },
        root_certificates::RootSource,
    },
    pod_directory::PodDirectory,
    problem::Note,
    relations::references::ReferenceKind,
    view::{MeshView, rendered::RenderedRecords},
};

impl MeshKind for ConfigMap {
    fn on_change(index: &mut Index, change: &Change<'_, ConfigMapInput>, pods: &mut PodDirectory) {
        if change
            .both_versions()
            .any(|one| one.ca_certificates().is_some())
        {
            index.mark_ca_policies_stale(change.key);
        }
        if change.both_versions().all(|one| one.settings().is_none()) {
            return;
        }
        index.recompute_discovery(pods);
        let hosts = |of: Option<&ConfigMapInput>| {
            let settings = of.and_then(ConfigMapInput::settings);
            settings
                .map(MeshSettings::provider_hosts)
                .unwrap_or_default()
        };
        index.view.references.replace(
            ReferenceKind::CalledHost,
            change.key,
            hosts(change.old),
            hosts(change.new),
        );
        let domains = |of: Option<&ConfigMapInput>| {
            let settings = of.and_then(ConfigMapInput::settings)?;
            let (aliases, roots) = (&settings.trust_domain_aliases, &settings.ca_certificates);
            (!aliases.is_empty() || !roots.is_empty()).then(|| (aliases.clone(), roots.clone()))
        };
        if domains(change.old) != domains(change.new) {
            index.mark_principal_policies_stale();
            // Entries must not name identities of other namespaces, under any name of the trust domain.
            index.mark_service_entries_stale();
        }
        let export =
            |of: Option<&ConfigMapInput>| of.and_then(ConfigMapInput::settings)?.default_export;
        if export(change.old) != export(change.new) {
            index.mark_service_entries_stale();
        }
        index.mark_all_gateways_stale();
        index.mark_provider_policies_stale();
        index.mark_object_stale(change.key.clone());
        index.mark_all_telemetry_stale();
    }

    fn render(view: &MeshView, _: &ObjectKey, input: &ConfigMapInput) -> RenderedRecords {
        let settings = input.settings();
        RenderedRecords {
            conflicts: settings.map(|one| notes(view, one)).unwrap_or_default(),
            ..RenderedRecords::default()
        }
    }
}

/// Builds the notes on SPIFFE trust bundles that cannot be fetched.
fn notes(view: &MeshView, settings: &MeshSettings) -> Vec<Note> {
    let all = settings.ca_certificates.iter().enumerate();
    let notes = all.filter_map(|(number, one)| {
        let RootSource::TrustBundleUrl(url) = &one.source else {
            return None;
        };
        let trouble = view.bundle_error(url)?;
        let at = format!("caCertificates[{number}].spiffeBundleUrl");
        let message = format!("cannot be fetched, so that its last roots stay: {trouble}");
        Some(field_error(&at, message))
    });
    notes.collect()
}

impl MeshView {
    /// Returns the key of the ConfigMap with the MeshConfig.
    pub(crate) fn settings_key(&self) -> ObjectKey {
        let name = settings_name(&self.config);
        ObjectKey::new(Kind::ConfigMap, self.config.root_namespace.clone(), name)
    }

    /// Returns the parsed MeshConfig, if there is one.
    pub(crate) fn settings(&self) -> Option<&MeshSettings> {
        self.get::<ConfigMap>(&self.settings_key())?.settings()
    }

    /// Returns an extension provider of the MeshConfig by name.
    pub(crate) fn extension_provider(&self, name: &str) -> Option<&ExtensionProvider> {
        self.settings()?.providers.get(name)
    }

    /// Returns how waypoints normalize paths: the MeshConfig's setting, else that of the control plane's flags.
    pub(crate) fn path_normalization(&self) -> PathNormalization {
        let own = self.settings().and_then(|one| one.path_normalization);
        own.unwrap_or(self.config.path_normalization)
    }

    /// Returns the number of trusted proxies in front of the mesh: from the MeshConfig, else from the control plane's
    /// flags.
    pub(crate) fn trusted_proxies(&self) -> u32 {
        let own = self.settings().and_then(|one| one.trusted_proxies);
        own.unwrap_or(self.config.trusted_proxies)
    }
}
