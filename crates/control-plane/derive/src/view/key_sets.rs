//! Key sets that objects name, with their state.

use std::{collections::BTreeSet, net::IpAddr};

use ambit_k8s_api::{Kind, ObjectKey, Pod, RequestAuthentication, Service};

use crate::{
    labels::selects, objects::key_source::KeySource, relations::key_state::KeyState, view::MeshView,
};

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
