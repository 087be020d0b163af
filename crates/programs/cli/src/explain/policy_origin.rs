//! Translates names of policies that Istio generates from PeerAuthentications to the names of these objects.

use ambit_k8s_api::{Kind, ObjectKey};

use super::report::Report;
use crate::{policy_test, source::Source};

/// Name of the generated policy that stands for all PeerAuthentications in mode STRICT without port settings.
const STATIC_STRICT_POLICY: &str = "istio_converted_static_strict";
/// Name prefix of policies generated from a PeerAuthentication with port settings.
const CONVERTED_PREFIX: &str = "converted_peer_authentication_";

/// Replaces the names of generated policies in reports by the names of their PeerAuthentications. If the mesh's objects
/// are unavailable, `STATIC_STRICT_POLICY` keeps its name.
pub(super) fn name_peer_authentications(source: &Source, reports: &mut [Report]) {
    let is_named = reports
        .iter()
        .any(|report| policy_names(report).any(|name| name.ends_with(STATIC_STRICT_POLICY)));
    let index = source
        .lab_and_cluster()
        .filter(|_| is_named)
        .and_then(|(lab, target)| policy_test::load_index(lab.as_deref(), target).ok());
    for report in reports {
        let server = report.to.split_once('/');
        let pod = server.map(|(namespace, name)| ObjectKey::new(Kind::Pod, namespace, name));
        let strict = pod.and_then(|pod| index.as_ref()?.view().strict_peer_authentication(&pod));
        let strict = strict.map(|key| key.to_string());
        for name in report
            .decided_by
            .iter_mut()
            .chain(report.policies.iter_mut().map(|policy| &mut policy.policy))
        {
            if let Some(written) = peer_authentication_name(name, strict.as_deref()) {
                *name = written;
            }
        }
    }
}

fn policy_names(report: &Report) -> impl Iterator<Item = &String> {
    let policies = report.policies.iter().map(|policy| &policy.policy);
    report.decided_by.iter().chain(policies)
}

/// Returns the PeerAuthentication from which a policy was generated, if any; `strict` is the one behind
/// `STATIC_STRICT_POLICY`.
fn peer_authentication_name(policy: &str, strict: Option<&str>) -> Option<String> {
    let (namespace, name) = policy.split_once('/')?;
    if name == STATIC_STRICT_POLICY {
        return strict.map(ToOwned::to_owned);
    }
    let name = name.strip_prefix(CONVERTED_PREFIX)?;
    Some(ObjectKey::new(Kind::PeerAuthentication, namespace, name).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_peer_authentications_have_the_names_that_users_gave() {
        let strict = Some("PeerAuthentication shop/default");
        let of_mesh = "istio-system/istio_converted_static_strict";
        assert_eq!(peer_authentication_name(of_mesh, strict).as_deref(), strict);
        assert_eq!(peer_authentication_name(of_mesh, None), None);
        assert_eq!(
            peer_authentication_name("shop/converted_peer_authentication_web", None).as_deref(),
            Some("PeerAuthentication shop/web")
        );
        assert_eq!(peer_authentication_name("shop/mine", strict), None);
    }
}
