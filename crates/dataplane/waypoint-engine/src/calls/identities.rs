//! Fetches the certificates of the identities under which the waypoint calls on behalf of objects, before the first
//! call.

use std::{collections::BTreeSet, sync::Arc};

use ambit_certificates::Certificates;
use ambit_model::{ArcStr, Identity};
use ambit_proxy::warm_start::WarmCertificates;

use crate::published::PublishedConfig;

/// Follows the namespaces whose objects make the waypoint call services: fetches the certificate of each namespace's
/// identity, and drops those of other namespaces.
pub async fn maintain_certificates(
    published: PublishedConfig,
    trust_domain: ArcStr,
    certificates: Certificates,
    cache: Option<Arc<WarmCertificates>>,
) {
    let mut changes = published.watch();
    let mut followed: BTreeSet<ArcStr> = BTreeSet::new();
    loop {
        changes.mark_unchanged();
        let desired = published.calling_namespaces();
        let identity = |namespace: &ArcStr| {
            Identity::for_waypoint_calls(trust_domain.clone(), namespace.clone())
        };
        for gone in followed.difference(&desired).map(identity) {
            certificates.forget(&gone);
            if let Some(cache) = &cache {
                cache.remove_certificate(&gone);
            }
        }
        for new in desired.difference(&followed).map(identity) {
            certificates.prefetch(&new);
        }
        followed = desired;
        if changes.changed().await.is_err() {
            return;
        }
    }
}
