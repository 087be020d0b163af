//! Key sets that objects name by address: the desired ones, and their known content. The fetcher reports it; here
//! nothing is fetched.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use ambit_k8s_api::{Kind, ObjectKey, Pod, RequestAuthentication, Service};
use ambit_model::ArcStr;

use super::{Index, MeshView};
use crate::selects;

/// Where a key set comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeySource {
    /// Its address; that of the issuer for [`KeyForm::Issuer`].
    pub url: ArcStr,
    /// Form of the document at the address.
    pub form: KeyForm,
    /// How long fetching it may take.
    pub timeout: Duration,
    /// The namespace for whose objects it is fetched. `None`: the root namespace, whose objects may name any address.
    pub namespace: Option<ArcStr>,
}

/// Form of the document at the address of a key set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyForm {
    /// Keys that sign tokens (JWKS).
    KeySet,
    /// An issuer of tokens, whose discovery document (OpenID Connect Discovery 1.0) has the address of its keys.
    Issuer,
    /// The roots of a trust domain (SPIFFE Trust Domain and Bundle, section 4): the state has them as PEM.
    TrustBundle,
}

/// State of a key set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// The set, as it was last had.
    pub keys: Option<ArcStr>,
    /// Why the last attempt to have it failed.
    pub trouble: Option<ArcStr>,
}

impl MeshView {
    /// The key sets and trust bundles that objects name.
    pub fn key_sources(&self) -> BTreeSet<KeySource> {
        let objects = self.namespaces.values();
        let all = objects.flat_map(|objects| objects.all::<RequestAuthentication>().values());
        let of_tokens = all.flat_map(|one| one.sources().cloned());
        of_tokens.chain(self.bundle_sources()).collect()
    }

    /// Whether key sets are fetched at an address for RequestAuthentications of a namespace: not from a Service or pod of
    /// another namespace, unless a ReferenceGrant there allows it.
    ///
    /// # Errors
    /// With the Service or pod that has the address.
    pub fn may_fetch_keys(&self, namespace: &str, ip: IpAddr) -> Result<(), ObjectKey> {
        let from = (Kind::RequestAuthentication, namespace);
        let mut owners = self.addresses.owners(&ip).peekable();
        let Some(first) = owners.peek().copied() else {
            return Ok(());
        };
        let may_call = |owner: &ObjectKey| match owner.kind {
            Kind::Pod => self.may_call_pod_for(from, owner),
            _ => self.may_call_for(from, owner),
        };
        if owners.any(may_call) {
            return Ok(());
        }
        Err(first.clone())
    }

    /// Whether one of the services that select a pod may be called.
    fn may_call_pod_for(&self, from: (Kind, &str), pod: &ObjectKey) -> bool {
        if from.1 == pod.namespace {
            return true;
        }
        let (Some(objects), Some(input)) = (self.objects(&pod.namespace), self.get::<Pod>(pod))
        else {
            return false;
        };
        let mut services = objects.all::<Service>().iter();
        services.any(|(name, service)| {
            let selector = service.selector.as_ref();
            selector.is_some_and(|selector| selects(selector, &input.labels))
                && self.may_call_for(
                    from,
                    &ObjectKey::new(Kind::Service, pod.namespace.clone(), name.clone()),
                )
        })
    }

    /// State of a key set; `None` before the first attempt to fetch it.
    pub(crate) fn keys(&self, source: &KeySource) -> Option<&KeyState> {
        self.key_sets.get(source)
    }
}

impl Index {
    /// A key set was fetched, or could not be.
    pub fn set_keys(&mut self, source: &KeySource, state: KeyState) {
        let old = self.view.key_sets.insert(source.clone(), state.clone());
        if old.is_some_and(|old| old == state) {
            return;
        }
        let mut users = Vec::new();
        if source.form == KeyForm::TrustBundle {
            users.push(self.view.settings_key());
        }
        for (namespace, objects) in &self.view.namespaces {
            let all = objects.all::<RequestAuthentication>().iter();
            let using = all.filter(|(_, one)| one.sources().any(|one| one == source));
            users.extend(using.map(|(name, _)| {
                ObjectKey::new(Kind::RequestAuthentication, namespace.clone(), name.clone())
            }));
        }
        for user in users {
            self.mark(user);
        }
    }

    /// Forgets key sets that no object names any more.
    pub fn forget_keys(&mut self, wanted: &BTreeSet<KeySource>) {
        self.view
            .key_sets
            .retain(|source, _| wanted.contains(source));
    }
}
