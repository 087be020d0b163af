//! Client certificate with which the control plane connects to proxies.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_ca::{CaTrust, trust_domains::PublishedTrustDomains};
use ambit_issuer::IssueError;
use ambit_model::Identity;
use ambit_tls::{ChainError, TlsSettings, WorkloadCert, pem};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Lifetime of a client certificate.
const CERTIFICATE_TTL: Duration = Duration::from_secs(24 * 3600);

/// Reason why no client certificate could be created.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The CA refuses to issue the certificate.
    #[error("cannot issue the control plane's own certificate")]
    Issue(#[from] IssueError),
    /// The issued certificate does not verify.
    #[error("cannot use the control plane's own certificate")]
    Chain(#[from] ChainError),
}

/// Identity of the control plane, with its current client certificate.
#[derive(Debug)]
pub struct OwnIdentity {
    identity: Identity,
    trust: watch::Receiver<Arc<CaTrust>>,
    published_trust_domains: watch::Receiver<PublishedTrustDomains>,
    cached: Mutex<Option<CachedCertificate>>,
}

/// Client certificate, with the CA and the roots for which it was issued.
#[derive(Debug)]
struct CachedCertificate {
    ca: Arc<CaTrust>,
    published_trust_domains: PublishedTrustDomains,
    certificate: Arc<WorkloadCert>,
}

impl OwnIdentity {
    /// Creates an identity whose certificates the CA `trust` issues. If proxies have certificates of another CA, its
    /// roots are in `published`.
    pub(crate) fn new(
        identity: Identity,
        trust: watch::Receiver<Arc<CaTrust>>,
        published: watch::Receiver<PublishedTrustDomains>,
    ) -> Self {
        Self {
            identity,
            trust,
            published_trust_domains: published,
            cached: Mutex::default(),
        }
    }

    /// Returns a valid client certificate: the last one until half of its lifetime, unless the CA or the roots have
    /// changed.
    ///
    /// # Errors
    ///
    /// If none can be issued.
    pub fn certificate(&self) -> Result<Arc<WorkloadCert>, IdentityError> {
        let now = SystemTime::now();
        let by = Arc::clone(&self.trust.borrow());
        let published = self.published_trust_domains.borrow().clone();
        let mut current = self.cached.lock();
        if let Some(current) = &*current
            && Arc::ptr_eq(&current.ca, &by)
            && current.published_trust_domains == published
            && now < current.certificate.renewal_time()
        {
            return Ok(current.certificate.clone());
        }
        let (chain, key) = by
            .authority
            .issue_workload(&self.identity, CERTIFICATE_TTL, now)?;
        let mut roots = by.authority.roots().to_vec();
        let further = published.as_ref().map(|now| now.additional_roots.as_str());
        if let Some(further) = further.filter(|further| !further.is_empty()) {
            roots.extend(pem::parse_certificates(0, further)?);
        }
        let certificate = WorkloadCert::new(&TlsSettings::default(), chain, key, roots)?;
        let certificate = Arc::new(certificate);
        *current = Some(CachedCertificate {
            ca: by,
            published_trust_domains: published,
            certificate: certificate.clone(),
        });
        Ok(certificate)
    }
}

#[cfg(test)]
mod tests {
    use ambit_ca::{CaMaterial, trust_domains::TrustDomainsDocument};
    use ambit_issuer::Authority;
    use ambit_testkit::{Pki, is_accepted};
    use ambit_tls::TrustDomains;

    use super::*;

    #[tokio::test]
    async fn proxies_of_another_ca_are_verified_by_its_roots() {
        let authority = Authority::new_root("td", CERTIFICATE_TTL, SystemTime::now()).unwrap();
        let trust = CaTrust {
            material: CaMaterial::from_root(&authority),
            authority,
        };
        let (_trust, trust) = watch::channel(Arc::new(trust));
        let (publisher, published) = watch::channel(None);
        let identity = |name: &str| Identity::new("td", "istio-system", name);
        let own = OwnIdentity::new(identity("istiod"), trust.clone(), published);
        let domains = TrustDomains::new();
        let other = Pki::with_settings(TlsSettings::default().with_trust_domains(domains.clone()));
        // The proxy knows the roots of both CAs.
        let roots = trust.borrow().authority.root_pem() + &other.root_pem();
        let accepted = ambit_mesh_json::TrustDomains {
            roots: [("td".to_owned(), roots)].into(),
            ..Default::default()
        };
        domains.replace(&accepted).unwrap();
        let proxy = other.cert(&identity("ztunnel"));
        let reads = async || is_accepted(&own.certificate().unwrap(), &proxy).await;
        assert!(!reads().await);
        publisher.send_replace(Some(Arc::new(TrustDomainsDocument {
            text: None,
            additional_roots: other.root_pem(),
        })));
        assert!(reads().await);
        publisher.send_replace(Some(Arc::default()));
        assert!(!reads().await, "they are taken back");
    }
}
