//! Trust domains that proxies accept besides the mesh's own one, published as the text of a file: a ConfigMap in every
//! namespace ([`crate::distribute_config_maps`]), or a file for clients of this machine.
//!
//! A trust domain whose bundle cannot be fetched keeps the roots that were published last, also after a restart. Roots
//! that are not certificates are left out, so that their trust domain is not accepted.
//!
//! Further roots of the mesh's own trust domain are for a CA beside this one, such as istio-csr: proxies verify that
//! CA's server and the certificates of both by them, so that they are also published with the roots of this one.

use std::{collections::BTreeMap, fmt, io, path::PathBuf, sync::Arc, time::Duration};

use ambit_derive::AcceptedTrustDomains;
use ambit_mesh_json::TrustDomains;
use ambit_rt::{Backoff, ErrorChain};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::ListParams};
use tokio::sync::watch;

use crate::{material::write_root, trust::CaTrust};

/// Name of the ConfigMap of trust domains.
pub(crate) const CONFIG_MAP_NAME: &str = "ambit-trust-domains";
/// Maximum length of the published text in bytes, below the size limit of a ConfigMap.
const MAX_TEXT_BYTES: usize = 1_000_000;
/// First and longest backoff while the last published trust domains cannot be read.
const READ_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Trust domains to publish; `None` until the desired ones are known, and until then the previous publication stays.
pub type PublishedTrustDomains = Option<Arc<TrustDomainsDocument>>;

/// Published trust domains, and additional roots of the mesh's own trust domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustDomainsDocument {
    /// Text of the file of trust domains; `None` while only the mesh's own trust domain is accepted, under the roots of
    /// this CA.
    pub text: Option<Arc<str>>,
    /// Roots of the mesh's own trust domain besides those of this CA.
    pub additional_roots: String,
}

/// Source of the trust domains that were published before this process started.
pub enum PreviousPublication {
    /// File at this path.
    File(PathBuf),
    /// ConfigMap in this namespace.
    ConfigMap(Client, String),
    /// No source: no earlier publication is read.
    NoSource,
}

impl fmt::Debug for PreviousPublication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::ConfigMap(_, namespace) => f.debug_tuple("ConfigMap").field(namespace).finish(),
            Self::NoSource => f.write_str("Nowhere"),
        }
    }
}

impl PreviousPublication {
    async fn read(&self) -> TrustDomains {
        let mut backoff = Backoff::new(READ_BACKOFF.0, READ_BACKOFF.1, 0.2);
        loop {
            let error = match self.text().await {
                Ok(None) => return TrustDomains::default(),
                Ok(Some(text)) => match serde_json::from_str(&text) {
                    Ok(last) => return last,
                    Err(error) => {
                        tracing::warn!(%error, "the published trust domains cannot be read, and are replaced");
                        return TrustDomains::default();
                    }
                },
                Err(error) => error,
            };
            tracing::warn!(%error, "the published trust domains cannot be read; trying again");
            tokio::time::sleep(backoff.next_delay(rand::random())).await;
        }
    }

    async fn text(&self) -> Result<Option<String>, Box<dyn std::error::Error + Send + Sync>> {
        match self {
            Self::NoSource => Ok(None),
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => Ok(Some(text)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error.into()),
            },
            Self::ConfigMap(client, namespace) => {
                let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
                let named =
                    ListParams::default().fields(&format!("metadata.name={CONFIG_MAP_NAME}"));
                let found = api.list(&named).await?.items.pop();
                Ok(found.and_then(|map| map.data?.remove(TrustDomains::FILE_NAME)))
            }
        }
    }
}

/// Publishes the desired trust domains whenever they or the roots of this CA change. Ends when all receivers are
/// dropped.
pub async fn publish_trust_domains(
    own_trust_domain: String,
    mut desired: watch::Receiver<Option<AcceptedTrustDomains>>,
    mut trust: watch::Receiver<Arc<CaTrust>>,
    previous: PreviousPublication,
    published: watch::Sender<PublishedTrustDomains>,
) {
    let mut current = previous.read().await;
    loop {
        let roots = trust.borrow_and_update().authority.root_pem();
        let desired_now = desired.borrow_and_update().clone();
        if let Some(desired) = desired_now {
            let next = merge_trust_domains(&desired, &current);
            match to_document(&own_trust_domain, &next, &roots) {
                Some(next_publication) => {
                    current = next;
                    let next = Some(Arc::new(next_publication));
                    published.send_if_modified(|known| {
                        let differs = *known != next;
                        *known = next;
                        differs
                    });
                }
                None => tracing::error!(
                    "the roots of trust domains have more than {MAX_TEXT_BYTES} bytes; those published stay"
                ),
            }
        }
        tokio::select! {
            changed = desired.changed() => if changed.is_err() {
                return;
            },
            changed = trust.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// Writes the file of trust domains for clients whenever the publication changes.
pub async fn write_on_change(path: PathBuf, mut published: watch::Receiver<PublishedTrustDomains>) {
    loop {
        let now = published.borrow_and_update().clone();
        let written = match now.as_ref().map(|now| &now.text) {
            None => Ok(()),
            Some(None) => match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
                _ => Ok(()),
            },
            Some(Some(text)) => {
                write_root(&path, text).map_err(|error| ErrorChain(&error).to_string())
            }
        };
        if let Err(error) = written {
            tracing::error!(error, "the trust domains are not written for clients");
        }
        if published.changed().await.is_err() {
            return;
        }
    }
}

/// Builds the document to publish. `own` is the mesh's trust domain, `own_roots` are the roots of this CA. Returns
/// `None` if the text exceeds [`MAX_TEXT_BYTES`].
fn to_document(own: &str, domains: &TrustDomains, own_roots: &str) -> Option<TrustDomainsDocument> {
    if domains.is_empty() {
        return Some(TrustDomainsDocument::default());
    }
    let further_roots = domains.roots.get(own).cloned().unwrap_or_default();
    let mut domains = domains.clone();
    if let Some(roots) = domains.roots.get_mut(own)
        && !roots.contains(own_roots)
    {
        // Proxies whose certificates are from another CA know only the roots of that CA.
        roots.push_str(own_roots);
    }
    let text = serde_json::to_string(&domains).ok()?;
    (text.len() <= MAX_TEXT_BYTES).then(|| TrustDomainsDocument {
        text: Some(text.into()),
        additional_roots: further_roots,
    })
}

/// Returns the trust domains to publish. Trust domains whose bundle is unavailable keep their roots from the `last`
/// publication.
fn merge_trust_domains(desired: &AcceptedTrustDomains, last: &TrustDomains) -> TrustDomains {
    let mut merged = TrustDomains {
        aliases: desired.aliases.iter().map(ToString::to_string).collect(),
        roots: BTreeMap::new(),
    };
    for (domain, texts) in &desired.roots {
        for text in texts {
            add_roots(&mut merged, domain, text);
        }
    }
    for domain in &desired.pending_trust_domains {
        // The last roots may be from a bundle and from other sources together.
        if let Some(text) = last.roots.get(domain.as_str()) {
            add_roots(&mut merged, domain, text);
        }
    }
    merged
}

fn add_roots(domains: &mut TrustDomains, domain: &str, text: &str) {
    // A bundle may become empty: its trust domain has revoked all roots.
    if text.is_empty() {
        return;
    }
    let alone = TrustDomains {
        roots: [(domain.to_owned(), text.to_owned())].into(),
        ..TrustDomains::default()
    };
    if let Err(error) = ambit_tls::TrustDomains::new().replace(&alone) {
        let error = ErrorChain(&error);
        tracing::error!(domain, %error, "roots of a trust domain are left out");
        return;
    }
    let roots = domains.roots.entry(domain.to_owned()).or_default();
    if !roots.contains(text) {
        roots.push_str(text);
        if !text.ends_with('\n') {
            roots.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use ambit_issuer::Authority;

    use super::*;
    use crate::material::CaMaterial;

    fn root() -> String {
        authority().root_pem()
    }

    fn desired(roots: &[(&str, &str)], pending: &[&str]) -> AcceptedTrustDomains {
        let mut desired = AcceptedTrustDomains::default();
        for (domain, text) in roots {
            let all = desired.roots.entry((*domain).into()).or_default();
            all.push((*text).into());
        }
        desired.pending_trust_domains = pending.iter().map(|name| (*name).into()).collect();
        desired
    }

    #[test]
    fn roots_of_one_trust_domain_are_merged() {
        let (one, two) = (root(), root());
        let desired = desired(&[("a", &one), ("a", &two), ("b", &two)], &[]);
        let merged = merge_trust_domains(&desired, &TrustDomains::default());
        assert_eq!(merged.roots["a"], format!("{one}{two}"));
        assert_eq!(merged.roots["b"], two);
    }

    #[test]
    fn invalid_roots_are_left_out() {
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let good = root();
        let desired = desired(
            &[("a", broken), ("b", broken), ("b", &good), ("c", "")],
            &[],
        );
        let merged = merge_trust_domains(&desired, &TrustDomains::default());
        assert_eq!(merged.roots, [("b".to_owned(), good)].into());
    }

    #[test]
    fn unavailable_bundle_keeps_its_last_roots() {
        let (old, own) = (root(), root());
        let last = TrustDomains {
            roots: [
                ("a".to_owned(), old.clone()),
                ("gone".to_owned(), own.clone()),
            ]
            .into(),
            ..TrustDomains::default()
        };
        let merged = merge_trust_domains(&desired(&[("b", &own)], &["a", "new"]), &last);
        let expected = [("a".to_owned(), old), ("b".to_owned(), own)];
        assert_eq!(merged.roots, expected.into());
    }

    fn authority() -> Authority {
        let day = Duration::from_secs(86_400);
        Authority::new_root("t", day, SystemTime::now()).unwrap()
    }

    #[test]
    fn further_roots_of_the_mesh_are_published_with_those_of_its_ca() {
        let (own, further, west) = (root(), root(), root());
        let desired = desired(&[("td", &further), ("west", &west)], &[]);
        let merged = merge_trust_domains(&desired, &TrustDomains::default());
        let publication = to_document("td", &merged, &own).unwrap();
        assert_eq!(publication.additional_roots, further);
        let text = publication.text.unwrap();
        let domains: TrustDomains = serde_json::from_str(&text).unwrap();
        assert_eq!(domains.roots["td"], format!("{further}{own}"));
        assert_eq!(domains.roots["west"], west);
        // The last published roots of an unavailable bundle already have them.
        let again = super::to_document("td", &domains, &own).unwrap();
        assert_eq!(again.text, Some(text));
    }

    #[tokio::test]
    async fn nothing_is_published_until_objects_are_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(TrustDomains::FILE_NAME);
        let last = TrustDomains {
            roots: [("a".to_owned(), root())].into(),
            ..TrustDomains::default()
        };
        std::fs::write(&path, serde_json::to_string(&last).unwrap()).unwrap();
        let authority = authority();
        let trust = CaTrust {
            material: CaMaterial::from_root(&authority),
            authority,
        };
        let (_trust, trust) = watch::channel(Arc::new(trust));
        let (follow, desired_now) = watch::channel(None);
        let (publisher, mut published) = watch::channel(None);
        let from = PreviousPublication::File(path.clone());
        let publishing = publish_trust_domains("td".into(), desired_now, trust, from, publisher);
        ambit_rt::spawn("publish", publishing);
        ambit_rt::spawn("write", write_on_change(path.clone(), published.clone()));
        follow.send_replace(Some(desired(&[], &["a"])));
        published.changed().await.unwrap();
        let now = published.borrow_and_update().clone().unwrap();
        let text = serde_json::to_string(&last).unwrap();
        assert_eq!(now.text.as_deref(), Some(text.as_str()));
        follow.send_replace(Some(desired(&[], &[])));
        published.changed().await.unwrap();
        let now = published.borrow_and_update().clone().unwrap();
        assert_eq!(*now, TrustDomainsDocument::default());
        ambit_testkit::wait_until("the file is removed", || !path.exists()).await;
    }
}
