//! Trust domains that the mesh accepts besides its own: MeshConfig's `trustDomainAliases` and `caCertificates`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ambit_model::{ArcStr, DEFAULT_TRUST_DOMAIN};

use crate::{
    objects::{
        key_source::{KeyFormat, KeySource},
        root_certificates::RootSource,
        trust_domain_names::TrustDomainNames,
    },
    view::MeshView,
};

/// Timeout for fetching a SPIFFE trust bundle.
const BUNDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Trust domains that proxies accept besides the mesh's own, with their roots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptedTrustDomains {
    /// All names of the mesh's own trust domain; empty if the trust domain has only one name.
    pub aliases: BTreeSet<ArcStr>,
    /// Root certificates by trust domain, as PEM.
    pub roots: BTreeMap<ArcStr, Vec<ArcStr>>,
    /// Trust domains whose SPIFFE bundle has not been fetched yet: proxies keep their last known roots.
    pub pending_trust_domains: BTreeSet<ArcStr>,
}

impl MeshView {
    /// Returns the trust domains that proxies accept besides the mesh's own.
    pub fn accepted_trust_domains(&self) -> AcceptedTrustDomains {
        let mut accepted = AcceptedTrustDomains::default();
        let Some(settings) = self.settings() else {
            return accepted;
        };
        accepted.aliases.clone_from(&settings.trust_domain_aliases);
        if !accepted.aliases.is_empty() {
            // Proxies that have not learnt of a new name of the trust domain yet know themselves by an alias.
            accepted.aliases.insert(self.config.trust_domain.clone());
        }
        let own = std::slice::from_ref(&self.config.trust_domain);
        for certificates in &settings.ca_certificates {
            let domains = match certificates.trust_domains.as_slice() {
                [] => own,
                named => named,
            };
            let roots = match &certificates.source {
                RootSource::Pem(text) => Some(text.clone()),
                RootSource::TrustBundleUrl(url) => {
                    let state = self.keys(&bundle_source(url));
                    state.and_then(|state| state.keys.clone())
                }
            };
            for domain in domains {
                match &roots {
                    Some(text) => {
                        let all = accepted.roots.entry(domain.clone()).or_default();
                        all.push(text.clone());
                    }
                    None => drop(accepted.pending_trust_domains.insert(domain.clone())),
                }
            }
        }
        accepted
    }

    /// Returns the URLs of the SPIFFE trust bundles in the MeshConfig.
    pub(crate) fn bundle_sources(&self) -> BTreeSet<KeySource> {
        let settings = self.settings().into_iter();
        let certificates = settings.flat_map(|settings| &settings.ca_certificates);
        let bundles = certificates.filter_map(|certificates| match &certificates.source {
            RootSource::TrustBundleUrl(url) => Some(bundle_source(url)),
            RootSource::Pem(_) => None,
        });
        bundles.collect()
    }

    /// Returns the error of the last attempt to fetch a trust bundle, if it failed.
    pub(crate) fn bundle_error(&self, url: &ArcStr) -> Option<&ArcStr> {
        self.keys(&bundle_source(url))?.last_error.as_ref()
    }

    /// Returns the names of the mesh's own trust domain.
    pub(crate) fn own_trust_domain_names(&self) -> TrustDomainNames {
        let own = &self.config.trust_domain;
        let settings = self.settings();
        let aliases = settings.map(|settings| &settings.trust_domain_aliases);
        let others = aliases.into_iter().flatten().filter(|alias| *alias != own);
        let all: Vec<_> = [own].into_iter().chain(others).cloned().collect();
        let is_other_mesh = settings.is_some_and(|settings| {
            let mut named = settings.ca_certificates.iter();
            named.any(|one| {
                one.trust_domains
                    .iter()
                    .any(|td| td == DEFAULT_TRUST_DOMAIN)
            })
        });
        TrustDomainNames {
            owns_default_domain: !is_other_mesh,
            names: all,
        }
    }
}

fn bundle_source(url: &ArcStr) -> KeySource {
    KeySource {
        url: url.clone(),
        format: KeyFormat::TrustBundle,
        timeout: BUNDLE_TIMEOUT,
        namespace: None,
    }
}
