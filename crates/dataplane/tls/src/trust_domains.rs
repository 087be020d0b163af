//! Trust domains whose peers are accepted besides those of the own one: aliases of it, and domains with roots of their
//! own. Configured by a file, which is followed, or by the bundles that a workload is given with its certificate; checked
//! at every handshake.
//!
//! Roots verify certificates of their own trust domain only, so that no authority can sign for another one's.

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

/// Why a file of trust domains cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustDomainsError {
    /// The file cannot be read.
    #[error("cannot read trust domains from {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The file is malformed.
    #[error("{} does not have the form of trust domains", path.display())]
    Form {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: serde_json::Error,
    },
    /// The roots of a trust domain are no certificates.
    #[error("the roots of trust domain {trust_domain} cannot be used")]
    Roots {
        /// Trust domain of the roots.
        trust_domain: String,
        /// Cause of the error.
        #[source]
        source: ChainError,
    },
}

/// Trust domains that are accepted besides the own one. Clones share them.
#[derive(Clone, Debug)]
pub struct TrustDomains {
    configured: Arc<RwLock<Arc<Domains>>>,
    federated: Arc<RwLock<Arc<Domains>>>,
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
    /// Creates a set without any trust domain but the own one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the accepted trust domains by those of a file; without the file, only the own one
    /// is accepted. On an error the previous ones stay. Returns their number.
    pub fn load(&self, path: &Path) -> Result<usize, TrustDomainsError> {
        let contents = match fs::read(path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|source| TrustDomainsError::Form {
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

    /// Replaces the accepted trust domains. On an error the previous ones stay. Returns their
    /// number.
    pub fn replace(&self, contents: &Contents) -> Result<usize, TrustDomainsError> {
        let mut anchors = BTreeMap::new();
        for (domain, text) in &contents.roots {
            let roots = pem::certificates(0, text).map_err(|source| unusable(domain, source))?;
            anchors.insert(domain.clone(), anchors_of(domain, roots)?);
        }
        let domains = Domains {
            aliases: contents.aliases.clone(),
            anchors,
            ..Domains::default()
        };
        let count = domains.count();
        self.put_in_force(&self.configured, domains);
        Ok(count)
    }

    /// Returns a set for one workload, which shares the configured trust domains and has no federated ones yet.
    #[must_use]
    pub fn of_workload(&self) -> Self {
        Self {
            federated: Arc::default(),
            ..self.clone()
        }
    }

    /// Replaces the trust domains with which the workloads of this set federate. Their roots take
    /// precedence over configured ones. On an error the previous ones stay.
    pub fn federate(
        &self,
        bundles: BTreeMap<String, Vec<CertificateDer<'static>>>,
    ) -> Result<(), TrustDomainsError> {
        let mut anchors = BTreeMap::new();
        for (domain, roots) in bundles {
            let of_domain = anchors_of(&domain, roots)?;
            anchors.insert(domain, of_domain);
        }
        let domains = Domains {
            anchors,
            ..Domains::default()
        };
        self.put_in_force(&self.federated, domains);
        Ok(())
    }

    fn put_in_force(&self, current: &RwLock<Arc<Domains>>, mut domains: Domains) {
        let mut current = current.write();
        domains.with_roots.clone_from(&current.with_roots);
        domains.with_roots.extend(domains.anchors.keys().cloned());
        *current = Arc::new(domains);
        drop(current);
        self.changes.send_modify(|version| *version += 1);
    }

    /// Follows a file: loads it now and after each change.
    pub async fn follow(self, path: PathBuf) {
        let load = || match self.load(&path) {
            Ok(domains) => {
                tracing::info!(path = %path.display(), domains, "trust domains loaded");
            }
            Err(error) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                tracing::warn!(error, "trust domains unchanged");
            }
        };
        followed_file::follow(&path, load).await;
    }

    /// Notifies of each change, so that open connections can be checked again.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn current(&self) -> Accepted {
        Accepted {
            configured: self.configured.read().clone(),
            federated: self.federated.read().clone(),
        }
    }
}

fn anchors_of(
    domain: &str,
    roots: Vec<CertificateDer<'static>>,
) -> Result<Vec<TrustAnchor<'static>>, TrustDomainsError> {
    let mut store = rustls::RootCertStore::empty();
    for root in roots {
        let added = store.add(root);
        added.map_err(|source| unusable(domain, ChainError::Root(source)))?;
    }
    Ok(store.roots)
}

fn unusable(domain: &str, source: ChainError) -> TrustDomainsError {
    TrustDomainsError::Roots {
        trust_domain: domain.to_owned(),
        source,
    }
}

/// Trust domains of one origin.
#[derive(Debug, Default)]
struct Domains {
    aliases: BTreeSet<String>,
    anchors: BTreeMap<String, Vec<TrustAnchor<'static>>>,
    /// Trust domains that have, or had, roots of their own.
    with_roots: BTreeSet<String>,
}

impl Domains {
    fn count(&self) -> usize {
        let mut all: BTreeSet<_> = self.anchors.keys().collect();
        all.extend(&self.aliases);
        all.len()
    }
}

/// Trust domains that are currently accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    configured: Arc<Domains>,
    federated: Arc<Domains>,
}

impl Accepted {
    /// Whether workloads of a trust domain are accepted by those of `own`.
    pub(crate) fn accepts(&self, own: &str, domain: &str) -> bool {
        self.is_own(own, domain) || self.anchors(domain).is_some()
    }

    /// Whether a trust domain is `own` or an alias of it.
    fn is_own(&self, own: &str, domain: &str) -> bool {
        domain == own || self.configured.aliases.contains(domain)
    }

    /// Whether two names belong to the same trust domain.
    pub(crate) fn is_same(&self, own: &str, one: &str, other: &str) -> bool {
        one == other || self.is_own(own, one) && self.is_own(own, other)
    }

    /// Returns the trust domain whose roots verify certificates of `domain`: `own` for aliases
    /// without roots.
    pub(crate) fn rooted<'a>(&self, own: &'a str, domain: &'a str) -> &'a str {
        match self.anchors(domain) {
            None if self.is_own(own, domain) => own,
            _ => domain,
        }
    }

    /// Roots of a trust domain, besides those of the mesh's CA.
    pub(crate) fn anchors(&self, domain: &str) -> Option<&[TrustAnchor<'static>]> {
        let federated = self.federated.anchors.get(domain);
        let anchors = federated.or_else(|| self.configured.anchors.get(domain));
        anchors.map(Vec::as_slice)
    }

    /// Whether roots besides those of the CA verify certificates of a trust domain, or did before the last change.
    pub(crate) fn has_had_roots(&self, domain: &str) -> bool {
        let mut origins = [&self.configured, &self.federated].into_iter();
        origins.any(|domains| domains.with_roots.contains(domain))
    }
}
