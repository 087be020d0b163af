//! Identities that the server of a connection may present.

use ambit_model::{Identity, Service};
use smallvec::SmallVec;

use crate::WorkloadRef;

/// Identities that a server may present, usually one or two. Never empty in a tunnel route.
pub type Identities = SmallVec<[Identity; 2]>;

/// Returns the identities that the server of a connection may present. SANs of a service that are not SPIFFE IDs in
/// the mesh's form match no peer and are skipped.
pub(crate) fn server_identities(
    workload: Option<&WorkloadRef>,
    service: Option<&Service>,
) -> Identities {
    let mut identities: Identities = workload
        .iter()
        .map(|workload| workload.identity())
        .collect();
    let names = service
        .into_iter()
        .flat_map(|service| &service.subject_alt_names);
    for identity in names.filter_map(|name| name.parse::<Identity>().ok()) {
        if !identities.contains(&identity) {
            identities.push(identity);
        }
    }
    identities
}
