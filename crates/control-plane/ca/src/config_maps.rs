//! Distributes the root certificates, the CRL if there is one, and the additional accepted trust domains if there are
//! any, as ConfigMaps in every namespace, which proxies and applications mount. A ConfigMap that a user edits or
//! deletes is restored. Only the leader writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use ambit_kube_kit::watch::{self as objects, ObjectWatch, WatchEvent};
use ambit_mesh_json::TrustDomains;
use ambit_rt::Backoff;
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use crate::{
    material::CRL_FILE,
    trust::CaTrust,
    trust_domains::{self, PublishedTrustDomains},
};

/// Name of the ConfigMap with the root certificates, and the key of the PEM text in it.
const ROOTS_CONFIG_MAP: (&str, &str) = ("istio-ca-root-cert", "root-cert.pem");
const CRL_CONFIG_MAP: (&str, &str) = ("istio-ca-crl", CRL_FILE);
const TRUST_DOMAINS_CONFIG_MAP: (&str, &str) =
    (trust_domains::CONFIG_MAP_NAME, TrustDomains::FILE_NAME);
/// Namespaces that get no ConfigMaps.
const EXCLUDED_NAMESPACES: [&str; 3] = ["kube-public", "kube-node-lease", "local-path-storage"];
/// Field manager under which the ConfigMaps are written.
const FIELD_MANAGER: &str = "ambit-control";
/// Label (`true`) by which Istio marks the ConfigMaps that it distributes.
const CONFIG_LABEL: &str = "istio.io/config";
/// Maximum concurrent writes of ConfigMaps.
const MAX_CONCURRENT_WRITES: usize = 8;
/// First and longest backoff after a write that failed.
const WRITE_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

type ConfigMapName = &'static str;

/// Desired and existing ConfigMaps of every namespace; computes the writes that are due, and does no IO.
#[derive(Debug, Default)]
struct ConfigMapCopies {
    /// Desired text of each ConfigMap in every namespace; `None` for a ConfigMap that must not exist.
    desired: BTreeMap<ConfigMapName, Option<Arc<str>>>,
    namespaces: BTreeSet<Box<str>>,
    /// Hash of the text of each existing ConfigMap, by namespace and name.
    existing: BTreeMap<(Box<str>, ConfigMapName), u64>,
}

/// Write or deletion of one ConfigMap that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PendingWrite {
    namespace: Box<str>,
    name: ConfigMapName,
    /// Text of the ConfigMap; `None` deletes it.
    text: Option<Arc<str>>,
}

impl ConfigMapCopies {
    fn set_desired(&mut self, trust: &CaTrust, domains: &PublishedTrustDomains) {
        let crl = trust.material.crl.as_deref().map(Arc::from);
        self.desired.insert(CRL_CONFIG_MAP.0, crl);
        // Existing ConfigMaps stay until the desired text is known.
        if let Some(domains) = domains {
            let roots = trust.authority.root_pem() + &domains.additional_roots;
            self.desired.insert(ROOTS_CONFIG_MAP.0, Some(roots.into()));
            self.desired
                .insert(TRUST_DOMAINS_CONFIG_MAP.0, domains.text.clone());
        }
    }

    fn pending_writes(&self) -> Vec<PendingWrite> {
        let mut due = Vec::new();
        for namespace in &self.namespaces {
            for (name, text) in &self.desired {
                let existing = self.existing.get(&(namespace.clone(), *name));
                if existing.copied() != text.as_deref().map(hash_text) {
                    due.push(PendingWrite {
                        namespace: namespace.clone(),
                        name,
                        text: text.clone(),
                    });
                }
            }
        }
        due
    }

    /// Records a successful write before the watch reports it, so that the write is not repeated meanwhile.
    fn record_write(&mut self, due: &PendingWrite) {
        let key = (due.namespace.clone(), due.name);
        match &due.text {
            Some(text) => drop(self.existing.insert(key, hash_text(text))),
            None => drop(self.existing.remove(&key)),
        }
    }
}

fn hash_text(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Returns the hash of a ConfigMap's text; 0 without the label `istio.io/config`, so that the ConfigMap is rewritten.
fn data_hash(map: &ConfigMap, key: &str) -> u64 {
    let labels = map.metadata.labels.as_ref();
    let is_labelled = labels
        .and_then(|labels| labels.get(CONFIG_LABEL))
        .map(String::as_str)
        == Some("true");
    let text = map.data.as_ref().and_then(|data| data.get(key));
    match text.filter(|_| is_labelled) {
        Some(text) => hash_text(text),
        None => 0,
    }
}

/// Keeps the ConfigMaps of all namespaces up to date; returns only when the CA's publisher is dropped.
pub async fn distribute_config_maps(
    client: Client,
    mut trust: watch::Receiver<Arc<CaTrust>>,
    mut trust_domains: watch::Receiver<PublishedTrustDomains>,
) {
    let client = &client;
    let mut namespaces = ObjectWatch::new(
        "Namespace",
        Api::<PartialObjectMeta<Namespace>>::all(client.clone()),
        objects::watcher_config(),
        |namespace| {
            let metadata = &namespace.metadata;
            let name = metadata.name.as_deref().unwrap_or_default();
            let gets =
                metadata.deletion_timestamp.is_none() && !EXCLUDED_NAMESPACES.contains(&name);
            gets.then_some(())
        },
    );
    let maps = |(name, key): (ConfigMapName, ConfigMapName)| {
        let config = objects::watcher_config().fields(&format!("metadata.name={name}"));
        let api = Api::<ConfigMap>::all(client.clone());
        ObjectWatch::new("ConfigMap", api, config, move |map| {
            Some(data_hash(map, key))
        })
    };
    let (mut roots, mut revoked) = (maps(ROOTS_CONFIG_MAP), maps(CRL_CONFIG_MAP));
    let mut domains = maps(TRUST_DOMAINS_CONFIG_MAP);
    let mut copies = ConfigMapCopies::default();
    copies.set_desired(
        &trust.borrow_and_update(),
        &trust_domains.borrow_and_update(),
    );
    // ConfigMaps that seem to be missing may exist until all listings are complete.
    let mut unknown = BTreeSet::from([
        "namespaces",
        ROOTS_CONFIG_MAP.0,
        CRL_CONFIG_MAP.0,
        TRUST_DOMAINS_CONFIG_MAP.0,
    ]);
    let mut backoff = Backoff::new(WRITE_BACKOFF.0, WRITE_BACKOFF.1, 0.2);
    let mut retry_at: Option<Instant> = None;
    loop {
        tokio::select! {
            event = namespaces.next() => match event {
                WatchEvent::Object(id, ()) => drop(copies.namespaces.insert(id.name)),
                WatchEvent::Removed(id) => drop(copies.namespaces.remove(&id.name)),
                WatchEvent::ListCompleted => drop(unknown.remove("namespaces")),
                WatchEvent::ListStarted | WatchEvent::Unavailable(_) => {}
            },
            event = roots.next() => apply_watch_event(&mut copies, &mut unknown, ROOTS_CONFIG_MAP.0, event),
            event = revoked.next() => apply_watch_event(&mut copies, &mut unknown, CRL_CONFIG_MAP.0, event),
            event = domains.next() => apply_watch_event(&mut copies, &mut unknown, TRUST_DOMAINS_CONFIG_MAP.0, event),
            changed = trust.changed() => {
                if changed.is_err() {
                    return;
                }
                copies.set_desired(&trust.borrow_and_update(), &trust_domains.borrow());
            }
            changed = trust_domains.changed() => {
                if changed.is_err() {
                    return;
                }
                copies.set_desired(&trust.borrow(), &trust_domains.borrow_and_update());
            }
            () = tokio::time::sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => {
                retry_at = None;
            }
        }
        if !unknown.is_empty() || retry_at.is_some() {
            continue;
        }
        let due = copies.pending_writes();
        if due.is_empty() {
            backoff.reset();
            continue;
        }
        let write = |due: PendingWrite| async move { (write_config_map(client, &due).await, due) };
        let mut writes = stream::iter(due)
            .map(write)
            .buffer_unordered(MAX_CONCURRENT_WRITES);
        while let Some((result, due)) = writes.next().await {
            let PendingWrite {
                namespace, name, ..
            } = &due;
            match result {
                Ok(()) => copies.record_write(&due),
                Err(error) => {
                    tracing::warn!(%namespace, name, %error, "cannot write a ConfigMap; trying again");
                    if retry_at.is_none() {
                        retry_at = Some(Instant::now() + backoff.next_delay(rand::random()));
                    }
                }
            }
        }
    }
}

fn apply_watch_event(
    copies: &mut ConfigMapCopies,
    unlisted: &mut BTreeSet<ConfigMapName>,
    name: ConfigMapName,
    event: WatchEvent<u64>,
) {
    match event {
        WatchEvent::Object(id, hash) => drop(copies.existing.insert((id.namespace, name), hash)),
        WatchEvent::Removed(id) => drop(copies.existing.remove(&(id.namespace, name))),
        WatchEvent::ListCompleted => drop(unlisted.remove(name)),
        WatchEvent::ListStarted | WatchEvent::Unavailable(_) => {}
    }
}

async fn write_config_map(client: &Client, due: &PendingWrite) -> Result<(), kube::Error> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), &due.namespace);
    let maps = [ROOTS_CONFIG_MAP, CRL_CONFIG_MAP, TRUST_DOMAINS_CONFIG_MAP];
    let key = maps.iter().find(|(name, _)| *name == due.name);
    let key = key.map_or(ROOTS_CONFIG_MAP.1, |(_, key)| key);
    let Some(text) = &due.text else {
        return match api.delete(due.name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error),
        };
    };
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": due.name, "namespace": due.namespace, "labels": {CONFIG_LABEL: "true"}},
        "data": {key: text},
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    match api.patch(due.name, &params, &Patch::Apply(&map)).await {
        Ok(_) => Ok(()),
        // The namespace is being deleted; the watch will report that.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use ambit_issuer::Authority;

    use super::*;
    use crate::{material::CaMaterial, trust_domains::TrustDomainsDocument};

    fn trust(crl: Option<&str>) -> CaTrust {
        let day = Duration::from_secs(86_400);
        let authority = Authority::new_root("t", day, SystemTime::now()).unwrap();
        let material = CaMaterial {
            crl: crl.map(str::to_owned),
            ..CaMaterial::from_root(&authority)
        };
        CaTrust {
            authority,
            material,
        }
    }

    fn pending_names(copies: &ConfigMapCopies) -> Vec<String> {
        let due = copies.pending_writes().into_iter();
        due.map(|due| {
            let sign = if due.text.is_some() { "" } else { "-" };
            format!("{sign}{}/{}", due.namespace, due.name)
        })
        .collect()
    }

    fn write_all(copies: &mut ConfigMapCopies) {
        for due in copies.pending_writes() {
            copies.record_write(&due);
        }
    }

    #[test]
    fn every_namespace_gets_the_roots_and_edits_are_reverted() {
        let mut copies = ConfigMapCopies::default();
        copies.set_desired(&trust(None), &Some(Arc::default()));
        copies.namespaces.extend(["a".into(), "b".into()]);
        assert_eq!(
            pending_names(&copies),
            ["a/istio-ca-root-cert", "b/istio-ca-root-cert"]
        );
        write_all(&mut copies);
        assert!(copies.pending_writes().is_empty());
        // A user edits one ConfigMap and deletes the other.
        copies.existing.insert(("a".into(), ROOTS_CONFIG_MAP.0), 7);
        copies.existing.remove(&("b".into(), ROOTS_CONFIG_MAP.0));
        assert_eq!(copies.pending_writes().len(), 2);
        write_all(&mut copies);
        copies.set_desired(&trust(None), &Some(Arc::default()));
        assert_eq!(copies.pending_writes().len(), 2, "another root");
        copies.namespaces.remove("b");
        assert_eq!(pending_names(&copies), ["a/istio-ca-root-cert"]);
    }

    #[test]
    fn revocation_list_is_added_and_removed() {
        let mut copies = ConfigMapCopies::default();
        copies.namespaces.insert("a".into());
        copies.set_desired(&trust(Some("list")), &Some(Arc::default()));
        assert_eq!(
            pending_names(&copies),
            ["a/istio-ca-crl", "a/istio-ca-root-cert"]
        );
        write_all(&mut copies);
        let roots = copies.desired[ROOTS_CONFIG_MAP.0].clone();
        copies.desired = [(ROOTS_CONFIG_MAP.0, roots), (CRL_CONFIG_MAP.0, None)].into();
        assert_eq!(pending_names(&copies), ["-a/istio-ca-crl"]);
    }

    #[test]
    fn no_copy_is_written_until_trust_domains_are_known() {
        let mut copies = ConfigMapCopies::default();
        copies.namespaces.insert("a".into());
        let trust = trust(None);
        copies.existing.insert(("a".into(), ROOTS_CONFIG_MAP.0), 7);
        copies
            .existing
            .insert(("a".into(), TRUST_DOMAINS_CONFIG_MAP.0), 7);
        copies.set_desired(&trust, &None);
        assert!(copies.pending_writes().is_empty());
        let publication = |text: Option<&str>, further: &str| {
            Some(Arc::new(TrustDomainsDocument {
                text: text.map(Into::into),
                additional_roots: further.to_owned(),
            }))
        };
        copies.set_desired(&trust, &publication(Some("{}"), "further"));
        assert_eq!(
            pending_names(&copies),
            ["a/ambit-trust-domains", "a/istio-ca-root-cert"]
        );
        let roots = copies.desired[ROOTS_CONFIG_MAP.0].clone().unwrap();
        assert!(roots.starts_with("-----BEGIN") && roots.ends_with("further"));
        write_all(&mut copies);
        copies.set_desired(&trust, &publication(None, ""));
        assert_eq!(
            pending_names(&copies),
            ["-a/ambit-trust-domains", "a/istio-ca-root-cert"]
        );
    }

    #[test]
    fn copy_without_the_label_is_rewritten() {
        let mut map = ConfigMap {
            data: Some([(ROOTS_CONFIG_MAP.1.to_owned(), "x".to_owned())].into()),
            ..ConfigMap::default()
        };
        assert_ne!(data_hash(&map, ROOTS_CONFIG_MAP.1), hash_text("x"));
        map.metadata.labels = Some([(CONFIG_LABEL.to_owned(), "true".to_owned())].into());
        assert_eq!(data_hash(&map, ROOTS_CONFIG_MAP.1), hash_text("x"));
    }
}
