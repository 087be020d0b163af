//! Key sets and trust bundles that objects name by URL, and their fetched state.

use std::{collections::BTreeSet, net::IpAddr};

use ambit_k8s_api::{Kind, ObjectKey, Pod, RequestAuthentication, Service};

use crate::{
    labels::selects, objects::key_source::KeySource, relations::key_set_state::KeySetState,
    view::MeshView,
};

impl MeshView {
    /// Returns the URLs of all key sets and trust bundles that RequestAuthentications and the MeshConfig name.
    pub fn key_sources(&self) -> BTreeSet<KeySource> {
        let objects = self.namespaces.values();
        let all =
            objects.flat_map(|objects| objects.all_of_kind::<RequestAuthentication>().values());
        let of_tokens = all.flat_map(|one| one.key_sources().cloned());
        of_tokens.chain(self.bundle_sources()).collect()
    }

    /// Checks that the control plane may fetch key sets from an address for RequestAuthentications of a namespace.
    /// Addresses of Services and pods of other namespaces need a ReferenceGrant there.
    ///
    /// # Errors
    ///
    /// The Service or pod that owns the address.
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

    /// Whether calls on behalf of objects `from` (kind, namespace) may reach any of the Services that select a pod.
    fn may_call_pod_for(&self, from: (Kind, &str), pod: &ObjectKey) -> bool {
        if from.1 == pod.namespace {
            return true;
        }
        let (Some(objects), Some(input)) = (self.objects(&pod.namespace), self.get::<Pod>(pod))
        else {
            return false;
        };
        let mut services = objects.all_of_kind::<Service>().iter();
        services.any(|(name, service)| {
            let selector = service.selector.as_ref();
            selector.is_some_and(|selector| selects(selector, &input.labels))
                && self.may_call_for(
                    from,
                    &ObjectKey::new(Kind::Service, pod.namespace.clone(), name.clone()),
                )
        })
    }

    /// Returns the fetched state of a key set; `None` before the first attempt.
    pub(crate) fn keys(&self, source: &KeySource) -> Option<&KeySetState> {
        self.key_sets.get(source)
    }
}
