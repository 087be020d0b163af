//! Warm-start cache, by which a worker starts with its predecessor's state: the mesh as the control plane published it,
//! in an unnamed file (a waypoint's in memory), and the certificates with their keys, in memory alone. The successor of
//! a killed worker has both at once, whether or not the control plane responds.

use std::{collections::HashMap, io, os::fd::OwnedFd, sync::Arc};

use ambit_certificates::CertificateCache;
use ambit_handover::{
    Handover, JournalStorage, Supervisor,
    journal::{Entry, Journal, JournalId},
};
use ambit_model::{ArcStr, Identity};
use ambit_xds::{CachedResource, Client, Role, UpdateHandler};
use parking_lot::Mutex;
use rustls::pki_types::PrivateKeyDer;
use zeroize::Zeroizing;

const MESH_CACHE: JournalId = JournalId {
    number: 0,
    name: "the mesh",
    backing: JournalStorage::Disk,
};
/// Descriptor of a waypoint's mesh cache, which is kept in memory, since its records may contain registry credentials
/// of plugins.
const WAYPOINT_MESH_CACHE: JournalId = JournalId {
    backing: JournalStorage::Memory,
    ..MESH_CACHE
};
const CERTIFICATE_CACHE: JournalId = JournalId {
    number: 1,
    name: "certificates",
    backing: JournalStorage::Memory,
};
/// Bit in an entry's tag that marks the initial state of a resource type as complete.
const COMPLETE_TYPE_TAG_BIT: u8 = 0x80;

/// Takes over the previous worker's caches of the mesh and the certificates. Without a supervisor, or memory for
/// them, there are none, since the caches are only an optimization. `role`: the program whose mesh state is cached,
/// if it is.
pub fn take_over_caches(
    held: &mut Handover<OwnedFd>,
    supervisor: &Supervisor,
    role: Option<Role>,
) -> (Option<Arc<MeshCache>>, Option<Arc<WarmCertificates>>) {
    if !supervisor.is_supervised() {
        return (None, None);
    }
    let mesh =
        role.map(|role| MeshCache::open(role, held.take_file(MESH_CACHE.number), supervisor));
    let certificates = WarmCertificates::open(held.take_file(CERTIFICATE_CACHE.number), supervisor);
    (
        mesh.and_then(|mesh| cache_or_log_error(MESH_CACHE, mesh)),
        cache_or_log_error(CERTIFICATE_CACHE, certificates),
    )
}

fn cache_or_log_error<T>(what: JournalId, opened: io::Result<T>) -> Option<Arc<T>> {
    opened
        .inspect_err(|error| {
            tracing::warn!(%error, what = what.name, "not cached: the next worker will request everything");
        })
        .ok()
        .map(Arc::new)
}

fn mesh_cache_purpose(role: Role) -> JournalId {
    match role {
        Role::Waypoint => WAYPOINT_MESH_CACHE,
        _ => MESH_CACHE,
    }
}

/// Cache of the mesh state for the next worker.
#[derive(Debug)]
pub struct MeshCache {
    /// Type URLs of the cached resource types; the index of a type is its tag in entries.
    resource_types: Vec<&'static str>,
    /// Journal of the cache, and for each type whether its initial state is complete.
    journal_and_completeness: Mutex<(Journal, Vec<bool>)>,
}

impl MeshCache {
    fn open(role: Role, held: Option<OwnedFd>, supervisor: &Supervisor) -> io::Result<Self> {
        let journal = Journal::open(mesh_cache_purpose(role), held, supervisor)?;
        let types: Vec<_> = role.type_urls().collect();
        let complete = vec![false; types.len()];
        let state = Mutex::new((journal, complete));
        Ok(Self {
            resource_types: types,
            journal_and_completeness: state,
        })
    }

    /// Passes the cached mesh state to the xDS client; a cache with an incomplete initial state is cleared instead.
    pub fn restore<H: UpdateHandler>(&self, client: &mut Client<H>) -> io::Result<()> {
        let (journal, complete) = &mut *self.journal_and_completeness.lock();
        for entry in journal.entries()? {
            let tag = usize::from(entry.tag & !COMPLETE_TYPE_TAG_BIT);
            if let Some(complete) = complete.get_mut(tag) {
                *complete |= entry.tag & COMPLETE_TYPE_TAG_BIT != 0;
            }
        }
        if complete.contains(&false) {
            complete.fill(false);
            journal.clear();
            return Ok(());
        }
        for (tag, type_url) in (0..).zip(&self.resource_types) {
            let of_type = journal.entries()?.filter(|entry| entry.tag == tag);
            client.restore(type_url, of_type.map(to_cached_resource));
        }
        tracing::info!("going on with the mesh as the worker before this one knew it");
        Ok(())
    }

    /// Stores or removes a record: see [`UpdateHandler::on_resource_accepted`].
    pub fn record_resource(&self, type_url: &str, name: &str, cached: &CachedResource) {
        let Some(tag) = self.resource_type_tag(type_url) else {
            return;
        };
        let value = match cached {
            CachedResource::Resource(bytes) => &bytes[..],
            CachedResource::Removed(_) => &[],
        };
        self.journal_and_completeness
            .lock()
            .0
            .add(tag, name.as_bytes(), value);
    }

    /// Records the end of a push: see [`UpdateHandler::on_push_cached`].
    pub fn record_push_end(&self, type_url: &str, complete: bool) {
        let Some(tag) = self.resource_type_tag(type_url) else {
            return;
        };
        let (journal, known) = &mut *self.journal_and_completeness.lock();
        if let Some(known) = known.get_mut(usize::from(tag))
            && complete
            && !std::mem::replace(known, true)
        {
            journal.add(tag | COMPLETE_TYPE_TAG_BIT, &[], &[1]);
        }
        journal.flush();
    }

    fn resource_type_tag(&self, type_url: &str) -> Option<u8> {
        let position = self
            .resource_types
            .iter()
            .position(|known| *known == type_url)?;
        u8::try_from(position).ok()
    }
}

fn to_cached_resource(entry: Entry) -> CachedResource {
    if entry.value.is_empty() {
        CachedResource::Removed(ArcStr::from(String::from_utf8_lossy(&entry.key)))
    } else {
        CachedResource::Resource(entry.value.to_vec().into())
    }
}

/// Cache of certificates and their keys for the next worker.
#[derive(Debug)]
pub struct WarmCertificates {
    journal: Mutex<Journal>,
    /// Certificates from the previous worker, by identity, each until it is requested.
    predecessor_certificates: Mutex<HashMap<Vec<u8>, Zeroizing<Vec<u8>>>>,
}

impl WarmCertificates {
    fn open(held: Option<OwnedFd>, supervisor: &Supervisor) -> io::Result<Self> {
        let journal = Journal::open(CERTIFICATE_CACHE, held, supervisor)?;
        let mut before = HashMap::new();
        for Entry { key, value, .. } in journal.entries()? {
            if value.is_empty() {
                before.remove(&key);
            } else {
                before.insert(key, value);
            }
        }
        Ok(Self {
            journal: Mutex::new(journal),
            predecessor_certificates: Mutex::new(before),
        })
    }

    /// Removes the certificate of an identity that has left this node.
    pub fn remove_certificate(&self, identity: &Identity) {
        self.write(identity, &[]);
    }

    fn write(&self, identity: &Identity, value: &[u8]) {
        let key = identity.to_string().into_bytes();
        self.predecessor_certificates.lock().remove(&key);
        let mut journal = self.journal.lock();
        journal.add(0, &key, value);
        journal.flush();
    }
}

impl CertificateCache for WarmCertificates {
    fn insert(&self, identity: &Identity, key: &PrivateKeyDer<'static>, answer: &[String]) {
        let key = key.secret_der();
        let Ok(length) = u16::try_from(key.len()) else {
            return;
        };
        let value =
            Zeroizing::new([&length.to_le_bytes()[..], key, answer.join("\0").as_bytes()].concat());
        self.write(identity, &value);
    }

    fn take(&self, identity: &Identity) -> Option<(PrivateKeyDer<'static>, Vec<String>)> {
        let value = self
            .predecessor_certificates
            .lock()
            .remove(identity.to_string().as_bytes())?;
        let (length, rest) = value.split_first_chunk()?;
        let (key, answer) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        let key = PrivateKeyDer::try_from(key.to_vec()).ok()?;
        let answer = std::str::from_utf8(answer).ok()?;
        Some((key, answer.split('\0').map(str::to_owned).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn certificates(held: &OwnedFd) -> WarmCertificates {
        let held = held.as_fd().try_clone_to_owned().unwrap();
        WarmCertificates::open(Some(held), &Supervisor::unsupervised()).unwrap()
    }

    #[test]
    fn state_with_credentials_is_cached_in_memory_only() {
        let is_in_memory = |purpose: JournalId| matches!(purpose.backing, JournalStorage::Memory);
        assert!(
            is_in_memory(CERTIFICATE_CACHE) && is_in_memory(mesh_cache_purpose(Role::Waypoint))
        );
        assert!(!is_in_memory(mesh_cache_purpose(Role::NodeProxy)));
        assert_eq!(mesh_cache_purpose(Role::Waypoint).number, MESH_CACHE.number);
    }

    #[test]
    fn certificates_are_restored_once_by_the_next_worker() {
        let held = tempfile::tempfile().unwrap().into();
        let (web, db) = (
            Identity::new("td", "ns", "web"),
            Identity::new("td", "ns", "db"),
        );
        let key = || PrivateKeyDer::try_from(rcgen::KeyPair::generate().unwrap().serialize_der());
        let (first, second) = (key().unwrap(), key().unwrap());
        let answer = ["leaf".to_owned(), "root".to_owned()];
        let cache = certificates(&held);
        cache.insert(&web, &first, &answer);
        cache.insert(&web, &second, &answer);
        cache.insert(&db, &first, &answer);
        cache.remove_certificate(&db);
        assert_eq!(cache.take(&web), None, "it is this worker's own");
        let cache = certificates(&held);
        assert_eq!(cache.take(&web), Some((second, answer.to_vec())));
        assert_eq!(cache.take(&web), None);
        assert_eq!(cache.take(&db), None);
    }
}
