//! The CA that currently signs. One publisher replaces it; all readers follow it.

use std::sync::Arc;

use ambit_issuer::Authority;
use tokio::sync::watch;

use crate::{
    material::{CaError, CaMaterial},
    metrics::CaMetrics,
};

/// The current CA with the PEM text that it was loaded from.
#[derive(Debug)]
pub struct CaTrust {
    /// CA that signs certificates.
    pub authority: Authority,
    /// PEM text of `authority`, as stored.
    pub material: CaMaterial,
}

/// Reason why a new CA is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// Material that is not a usable CA.
    #[error(transparent)]
    InvalidMaterial(#[from] CaError),
    /// New CA whose certificates current proxies would not accept.
    #[error(
        "certificates of the new authority in {location} would not be accepted by proxies that have the present \
         roots, or the other way round: first put both roots into its root certificates and leave the \
         present certificate and key as they are"
    )]
    NoCommonRoot {
        /// Directory or Secret with the files.
        location: String,
    },
}

/// Publishes the current CA, and replaces it.
#[derive(Clone, Debug)]
pub struct TrustPublisher {
    sender: Arc<watch::Sender<Arc<CaTrust>>>,
    metrics: CaMetrics,
}

impl TrustPublisher {
    /// Publishes the first CA; `location` is the directory or Secret that errors name.
    pub fn new(material: CaMaterial, location: &str, metrics: CaMetrics) -> Result<Self, CaError> {
        let authority = material.to_authority(location)?;
        metrics.set_root_expiry(authority.not_after());
        let trust = CaTrust {
            authority,
            material,
        };
        Ok(Self {
            sender: Arc::new(watch::Sender::new(Arc::new(trust))),
            metrics,
        })
    }

    /// Returns a receiver of the current CA and its replacements.
    pub fn subscribe(&self) -> watch::Receiver<Arc<CaTrust>> {
        self.sender.subscribe()
    }

    /// Returns the CA that currently signs.
    pub fn current(&self) -> Arc<CaTrust> {
        Arc::clone(&self.sender.borrow())
    }

    /// Switches to a new CA, or returns the reason for rejecting it. Returns whether the material has changed.
    pub fn replace(&self, material: &CaMaterial, location: &str) -> Result<bool, ReplaceError> {
        let old = self.current();
        if old.material == *material {
            return Ok(false);
        }
        let authority = material.to_authority(location)?;
        if !is_compatible_successor(&old.material, material) {
            return Err(ReplaceError::NoCommonRoot {
                location: location.to_owned(),
            });
        }
        self.metrics.set_root_expiry(authority.not_after());
        tracing::info!(
            location,
            roots = authority.roots().len(),
            "the certificate authority is renewed"
        );
        self.sender.send_replace(Arc::new(CaTrust {
            authority,
            material: material.clone(),
        }));
        Ok(true)
    }
}

/// Returns whether proxies with the old roots accept certificates of the new CA, and proxies with the new roots accept
/// those of the old CA.
fn is_compatible_successor(old: &CaMaterial, new: &CaMaterial) -> bool {
    let accepted = |signer: &CaMaterial, roots: &CaMaterial| {
        let seen = CaMaterial {
            roots: roots.roots.clone(),
            ..signer.clone()
        };
        seen.to_authority("").is_ok()
    };
    accepted(new, old) && accepted(old, new)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    fn root() -> Authority {
        Authority::new_root("t", YEAR, SystemTime::now()).unwrap()
    }

    fn publisher(root: &Authority) -> TrustPublisher {
        TrustPublisher::new(CaMaterial::from_root(root), "here", CaMetrics::default()).unwrap()
    }

    #[test]
    fn root_is_replaced_in_three_steps_only() {
        let (old, new) = (root(), root());
        let publisher = publisher(&old);
        let changes = publisher.subscribe();
        let alone = CaMaterial::from_root(&new);
        let refused = publisher.replace(&alone, "here").unwrap_err().to_string();
        assert!(refused.contains("put both roots"), "{refused}");
        assert!(!changes.has_changed().unwrap());
        let both = old.root_pem() + &new.root_pem();
        let with_both = |material: &CaMaterial| CaMaterial {
            roots: both.clone(),
            ..material.clone()
        };
        let too_early = with_both(&alone);
        assert!(publisher.replace(&too_early, "here").is_err());
        let first = with_both(&CaMaterial::from_root(&old));
        assert!(publisher.replace(&first, "here").unwrap());
        assert!(
            !publisher.replace(&first, "here").unwrap(),
            "nothing is new"
        );
        assert!(publisher.replace(&with_both(&alone), "here").unwrap());
        assert!(publisher.replace(&alone, "here").unwrap());
        assert_eq!(publisher.current().authority.roots(), new.roots());
        assert!(changes.has_changed().unwrap());
    }

    #[test]
    fn renewed_root_is_accepted_and_invalid_material_rejected() {
        let now = SystemTime::now();
        let old = Authority::new_root("t", YEAR, now - YEAR * 9 / 10).unwrap();
        let publisher = publisher(&old);
        let renewed = old.renew_root_if_due(YEAR, now).unwrap().unwrap();
        assert!(
            publisher
                .replace(&CaMaterial::from_root(&renewed), "here")
                .unwrap()
        );
        let nonsense = CaMaterial {
            cert: "x".into(),
            ..CaMaterial::from_root(&renewed)
        };
        assert!(publisher.replace(&nonsense, "here").is_err());
        assert_eq!(publisher.current().authority.roots(), renewed.roots());
    }
}
