//! Trust domains whose peers are accepted in addition to the mesh's own: aliases of it, and domains with their own
//! root certificates. Configured by a file, which is watched, or by the bundles that a SPIFFE agent sends with a
//! workload's certificate; checked at every handshake.
//!
//! Roots verify certificates of their own trust domain only, so that no CA can sign for another trust domain.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use ambit_mesh_json::TrustDomains as Contents;
use parking_lot::RwLock;
use rustls_pki_types::{CertificateDer, TrustAnchor};
use tokio::sync::watch;

use crate::{ChainError, followed_file, pem};

/// Reason why a file of trust domains cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustDomainsError {
    /// The file cannot be read.
    #[error("cannot read trust domains from {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of reading the file.
        #[source]
        source: io::Error,
    },
    /// The file is malformed.
    #[error("{} does not have the form of trust domains", path.display())]
    InvalidFile {
        /// Path of the file.
        path: PathBuf,
        /// Error of parsing the JSON text.
        #[source]
        source: serde_json::Error,
    },
    /// The root certificates of a trust domain cannot be parsed.
    #[error("the roots of trust domain {trust_domain} cannot be used")]
    InvalidRoots {
        /// Trust domain that the roots belong to.
        trust_domain: String,
        /// Error of parsing the root certificates.
        #[source]
        source: ChainError,
    },
}

/// Trust domains that are accepted in addition to the mesh's own. Clones share them.
#[derive(Clone, Debug)]
pub struct TrustDomains {
    configured: Arc<RwLock<Arc<TrustDomainSet>>>,
    federated: Arc<RwLock<Arc<TrustDomainSet>>>,
    changes: Arc<watch::Sender<u64>>,
}

impl Default for TrustDomains {
    fn default() -> Self {
        Self {
            configured: Arc::default(),
            federated: Arc::default(),
            changes: Arc::new(watch::Sender::new(0)),
        }
    }
}

impl TrustDomains {
    /// Creates a set in which only the mesh's own trust domain is accepted.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the accepted trust domains by those in a file; if the file does not exist, only the mesh's own is
    /// accepted. On an error the previous ones stay. Returns the number of trust domains.
    pub fn load(&self, path: &Path) -> Result<usize, TrustDomainsError> {
        let contents = match fs::read(path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|source| TrustDomainsError::InvalidFile {
                    path: path.to_owned(),
                    source,
                })?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Contents::default(),
            Err(source) => {
                return Err(TrustDomainsError::Read {
                    path: path.to_owned(),
                    source,
                });
            }
        };
        self.replace(&contents)
    }

    /// Replaces the accepted trust domains by those of a parsed file. On an error the previous ones stay. Returns the
    /// number of trust domains.
    pub fn replace(&self, contents: &Contents) -> Result<usize, TrustDomainsError> {
        let mut anchors = BTreeMap::new();
        for (domain, text) in &contents.roots {
            let roots =
                pem::parse_certificates(0, text).map_err(|source| invalid_roots(domain, source))?;
            anchors.insert(domain.clone(), trust_anchors(domain, roots)?);
        }
        let domains = TrustDomainSet {
            aliases: contents.aliases.clone(),
            anchors,
            ..TrustDomainSet::default()
        };
        let count = domains.count();
        self.activate(&self.configured, domains);
        Ok(count)
    }

    /// Returns a set for one workload, which shares the configured trust domains and has no federated trust domains
    /// yet.
    #[must_use]
    pub fn for_workload(&self) -> Self {
        Self {
            federated: Arc::default(),
            ..self.clone()
        }
    }

    /// Replaces the federated trust domains of the workloads that use this set. Their roots take precedence over
    /// configured ones. On an error the previous ones stay.
    pub fn replace_federated(
        &self,
        bundles: BTreeMap<String, Vec<CertificateDer<'static>>>,
    ) -> Result<(), TrustDomainsError> {
        let mut anchors = BTreeMap::new();
        for (domain, roots) in bundles {
            let of_domain = trust_anchors(&domain, roots)?;
            anchors.insert(domain, of_domain);
        }
        let domains = TrustDomainSet {
            anchors,
            ..TrustDomainSet::default()
        };
        self.activate(&self.federated, domains);
        Ok(())
    }

    fn activate(&self, current: &RwLock<Arc<TrustDomainSet>>, mut domains: TrustDomainSet) {
        let mut current = current.write();
        domains
            .domains_with_roots
            .clone_from(&current.domains_with_roots);
        domains
            .domains_with_roots
            .extend(domains.anchors.keys().cloned());
        *current = Arc::new(domains);
        drop(current);
        self.changes.send_modify(|version| *version += 1);
    }

    /// Loads trust domains from a file, now and after each change.
    pub async fn reload_on_change(self, path: PathBuf) {
        let load = || match self.load(&path) {
            Ok(domains) => {
                tracing::info!(path = %path.display(), domains, "trust domains loaded");
            }
            Err(error) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                tracing::warn!(error, "trust domains unchanged");
            }
        };
        followed_file::watch_file(&path, load).await;
    }

    /// Returns a receiver that is notified when the trust domains change, so that open connections can be checked
    /// again.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn current(&self) -> TrustDomainSnapshot {
        TrustDomainSnapshot {
            configured: self.configured.read().clone(),
            federated: self.federated.read().clone(),
        }
    }
}

fn trust_anchors(
    domain: &str,
    roots: Vec<CertificateDer<'static>>,
) -> Result<Vec<TrustAnchor<'static>>, TrustDomainsError> {
    let mut store = rustls::RootCertStore::empty();
    for root in roots {
        let added = store.add(root);
        added.map_err(|source| invalid_roots(domain, ChainError::InvalidRoot(source)))?;
    }
    Ok(store.roots)
}

fn invalid_roots(domain: &str, source: ChainError) -> TrustDomainsError {
    TrustDomainsError::InvalidRoots {
        trust_domain: domain.to_owned(),
        source,
    }
}

/// Trust domains of one source: the file, or the bundles of a SPIFFE agent.
#[derive(Debug, Default)]
struct TrustDomainSet {
    aliases: BTreeSet<String>,
    anchors: BTreeMap<String, Vec<TrustAnchor<'static>>>,
    /// Trust domains that have root certificates of their own, or had them before.
    domains_with_roots: BTreeSet<String>,
}

impl TrustDomainSet {
    fn count(&self) -> usize {
        let mut all: BTreeSet<_> = self.anchors.keys().collect();
        all.extend(&self.aliases);
        all.len()
    }
}

/// Trust domains that are accepted now.
#[derive(Debug)]
pub(crate) struct TrustDomainSnapshot {
    configured: Arc<TrustDomainSet>,
    federated: Arc<TrustDomainSet>,
}

impl TrustDomainSnapshot {
    /// Whether workloads of the trust domain `own` accept peers of the trust domain `domain`.
    pub(crate) fn accepts(&self, own: &str, domain: &str) -> bool {
        self.is_own(own, domain) || self.anchors(domain).is_some()
    }

    /// Whether a trust domain is `own` or an alias of it.
    fn is_own(&self, own: &str, domain: &str) -> bool {
        domain == own || self.configured.aliases.contains(domain)
    }

    /// Whether two trust domains are the same, directly or as aliases of `own`.
    pub(crate) fn is_same_domain(&self, own: &str, one: &str, other: &str) -> bool {
        one == other || self.is_own(own, one) && self.is_own(own, other)
    }

    /// Returns the trust domain whose roots verify certificates of `domain`: `own` if `domain` is an alias without
    /// roots.
    pub(crate) fn domain_of_roots<'a>(&self, own: &'a str, domain: &'a str) -> &'a str {
        match self.anchors(domain) {
            None if self.is_own(own, domain) => own,
            _ => domain,
        }
    }

    /// Returns the root certificates that a trust domain has apart from those of the mesh's CA.
    pub(crate) fn anchors(&self, domain: &str) -> Option<&[TrustAnchor<'static>]> {
        let federated = self.federated.anchors.get(domain);
        let anchors = federated.or_else(|| self.configured.anchors.get(domain));
        anchors.map(Vec::as_slice)
    }

    /// Whether a trust domain has, or had at some time, roots other than those of the mesh's
    /// CA.
    pub(crate) fn has_had_roots(&self, domain: &str) -> bool {
        let mut origins = [&self.configured, &self.federated].into_iter();
        origins.any(|domains| domains.domains_with_roots.contains(domain))
    }
}
