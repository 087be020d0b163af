//! Finds the pod that a caller's token is bound to, and decides which identities that pod may
//! request.

use std::{sync::Arc, time::Duration};

use ambit_derive::{PodDirectory, PodFacts};
use ambit_model::{ArcStr, GatewayName, Identity};
use parking_lot::RwLock;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use crate::token::Caller;

/// Maximum time for which a denial is delayed, in case an object arrives that allows the request.
const MAX_DENIAL_DELAY: Duration = Duration::from_millis(1500);

/// Reason why a caller does not get an identity. Only logged: callers learn nothing about pods.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallerDenied {
    /// The caller's service account may not request this identity: it does not belong to node proxies.
    #[error("{0} is not a trusted node account")]
    NotNodeProxy(String),
    /// The requested identity is not a SPIFFE ID of Istio's form.
    #[error("{0:?} is not a SPIFFE identity of a Kubernetes service account")]
    InvalidIdentity(String),
    /// The requested identity belongs to another trust domain than the mesh's.
    #[error("{0} is of another trust domain")]
    ForeignTrustDomain(String),
    /// The token is not bound to a pod, so that the caller's node is unknown.
    #[error("the caller's token is not bound to a pod")]
    TokenNotBoundToPod,
    /// The pod that the token is bound to does not exist.
    #[error("the caller's pod {0} does not exist")]
    UnknownPod(String),
    /// The pod that the token is bound to was replaced by one of the same name with another UID.
    #[error("the caller's token is of an earlier pod {0}")]
    PodUidMismatch(String),
    /// The pod that the token is bound to has ended.
    #[error("the caller's pod {0} has ended")]
    PodEnded(String),
    /// The pod that the token is bound to runs under another service account.
    #[error("the caller's pod {0} does not run under the caller's service account")]
    ServiceAccountMismatch(String),
    /// The pod that the token is bound to is not scheduled to a node.
    #[error("the caller's pod {0} is on no node")]
    PodWithoutNode(String),
    /// No pod on the caller's node has the identity.
    #[error("no live pod of {identity} that belongs to the mesh is on node {node}")]
    IdentityNotOnNode {
        /// Identity that was requested.
        identity: Identity,
        /// Node of the caller.
        node: ArcStr,
    },
    /// The requested identity is reserved for calls that waypoints make on behalf of objects; no pod has it.
    #[error("{0} is reserved for the calls that waypoints make for objects")]
    ReservedIdentity(Identity),
    /// No object of the namespace that requires calls is attached to the waypoint's Gateway.
    #[error(
        "no object of {namespace} for which calls are made is attached to the waypoint {waypoint}"
    )]
    NoCallsFromWaypoint {
        /// Namespace of the objects on whose behalf the calls would be made.
        namespace: ArcStr,
        /// Gateway of the calling waypoint.
        waypoint: GatewayName,
    },
    /// The identity is a waypoint's, which only that waypoint's own pods may request.
    #[error("{0} is a waypoint's identity, which node proxies do not get")]
    WaypointIdentity(Identity),
    /// The pod runs under a waypoint's service account, but does not belong to the waypoint.
    #[error(
        "the caller's pod {pod} runs under the account of waypoint {waypoint} without its label"
    )]
    PodNotOfWaypoint {
        /// Name of the caller's pod.
        pod: String,
        /// Gateway of the waypoint.
        waypoint: GatewayName,
    },
    /// The objects of the mesh are not listed yet, so that the service accounts of waypoints are unknown.
    #[error("the objects of the mesh are not read yet")]
    ObjectsNotListed,
}

impl CallerDenied {
    /// Returns whether an object that the API server has not reported yet could allow the request.
    fn may_be_transient(&self) -> bool {
        matches!(
            self,
            Self::UnknownPod(_)
                | Self::PodUidMismatch(_)
                | Self::PodWithoutNode(_)
                | Self::IdentityNotOnNode { .. }
                | Self::PodNotOfWaypoint { .. }
                | Self::NoCallsFromWaypoint { .. }
                | Self::ObjectsNotListed
        )
    }
}

/// Roles of service accounts in the mesh.
pub trait CallerRoles {
    /// Returns whether the caller is a node proxy.
    fn is_node_proxy(&self, caller: &Caller) -> bool;

    /// Returns whether a service account is a waypoint's, whose identity only that waypoint's own pods get; `None`
    /// until the waypoints are known. Always false for a node proxy's account, even if a Gateway has its name.
    fn is_waypoint_account(&self, namespace: &str, account: &str) -> Option<bool>;

    /// Returns whether objects of the namespace that are attached to the waypoint's Gateway require calls by the
    /// waypoint.
    fn makes_calls_for(&self, waypoint: &GatewayName, namespace: &str) -> bool;
}

/// Pods of the cluster, and notifications of their changes.
#[derive(Clone, Debug)]
pub struct Pods {
    /// Pods with their nodes and service accounts.
    pub directory: Arc<RwLock<PodDirectory>>,
    /// Counter that grows whenever `directory` or the waypoints may have changed; 0 until the initial pods are known.
    pub version: watch::Receiver<u64>,
}

impl Pods {
    /// Repeats a check until it succeeds, or fails for a reason that no further object could lift, for at most 1.5
    /// seconds. A node proxy may request the identity of a new pod before the API server reports the pod here; waiting
    /// spares the pod's first connection a retry by the proxy.
    pub async fn retry_while_transient<T>(
        &self,
        check: impl Fn(&PodDirectory) -> Result<T, CallerDenied>,
    ) -> Result<T, CallerDenied> {
        let mut followed = self.version.clone();
        let deadline = Instant::now() + MAX_DENIAL_DELAY;
        loop {
            let started = *followed.borrow_and_update() > 0;
            let checked = check(&self.directory.read());
            match checked {
                Err(denied) if denied.may_be_transient() || !started => {
                    let changed = timeout_at(deadline, followed.changed()).await;
                    if !matches!(changed, Ok(Ok(()))) {
                        return Err(denied);
                    }
                }
                checked => return checked,
            }
        }
    }
}

/// Decides whether a node proxy may request an identity on behalf of a pod. The caller must be the live pod that its
/// token is bound to, and a live mesh pod with that identity must be on the same node. A node proxy never gets the
/// identity of a waypoint; for its own identity, it needs no other pod.
pub fn check_impersonation(
    access: &impl CallerRoles,
    pods: &PodDirectory,
    caller: &Caller,
    requested: &str,
    trust_domain: &str,
) -> Result<Identity, CallerDenied> {
    if !access.is_node_proxy(caller) {
        return Err(CallerDenied::NotNodeProxy(caller.to_string()));
    }
    let identity = requested_identity(requested, trust_domain)?;
    if identity.is_for_waypoint_calls() {
        return Err(CallerDenied::ReservedIdentity(identity));
    }
    let (namespace, account) = (&identity.namespace, &identity.service_account);
    let pod = bound_pod(pods, caller)?;
    if (namespace, account) == (&caller.namespace, &caller.service_account) {
        return Ok(identity);
    }
    let is_waypoint = access.is_waypoint_account(namespace, account);
    if is_waypoint.ok_or(CallerDenied::ObjectsNotListed)? {
        return Err(CallerDenied::WaypointIdentity(identity));
    }
    if !pods.is_served_on(&pod.node, namespace, account) {
        return Err(CallerDenied::IdentityNotOnNode {
            identity,
            node: pod.node.clone(),
        });
    }
    Ok(identity)
}

/// Decides whether a waypoint may request the reserved identity for calls on behalf of a namespace's objects. An object
/// of that namespace that requires calls must be attached to the waypoint's Gateway, and the caller must be a pod of
/// the waypoint.
pub fn check_waypoint_calls(
    access: &impl CallerRoles,
    pods: &PodDirectory,
    (caller, waypoint): (&Caller, &GatewayName),
    requested: &str,
    trust_domain: &str,
) -> Result<Identity, CallerDenied> {
    let identity = requested_identity(requested, trust_domain)?;
    if !identity.is_for_waypoint_calls() {
        return Err(CallerDenied::NotNodeProxy(caller.to_string()));
    }
    authorize_own_identity(access, pods, caller)?;
    if !access.makes_calls_for(waypoint, &identity.namespace) {
        return Err(CallerDenied::NoCallsFromWaypoint {
            namespace: identity.namespace,
            waypoint: waypoint.clone(),
        });
    }
    Ok(identity)
}

fn requested_identity(requested: &str, trust_domain: &str) -> Result<Identity, CallerDenied> {
    let identity: Identity = requested
        .parse()
        .map_err(|_| CallerDenied::InvalidIdentity(requested.chars().take(256).collect()))?;
    if identity.trust_domain != trust_domain {
        return Err(CallerDenied::ForeignTrustDomain(identity.to_string()));
    }
    Ok(identity)
}

/// Checks whether a caller may act as its own service account. Peers trust every holder of a waypoint's identity, so
/// only live pods with the waypoint's label get it.
pub fn authorize_own_identity(
    access: &impl CallerRoles,
    pods: &PodDirectory,
    caller: &Caller,
) -> Result<(), CallerDenied> {
    if access.is_node_proxy(caller) {
        return Ok(());
    }
    let is_waypoint = access.is_waypoint_account(&caller.namespace, &caller.service_account);
    if !is_waypoint.ok_or(CallerDenied::ObjectsNotListed)? {
        return Ok(());
    }
    let pod = bound_pod(pods, caller)?;
    if pod.gateway.as_ref() == Some(&caller.service_account) {
        return Ok(());
    }
    Err(CallerDenied::PodNotOfWaypoint {
        pod: pod_name(caller),
        waypoint: GatewayName::new(caller.namespace.clone(), caller.service_account.clone()),
    })
}

/// Returns the pod that the caller's token is bound to: it must exist, be alive, be on a node, and
/// run under the caller's account.
fn bound_pod<'a>(pods: &'a PodDirectory, caller: &Caller) -> Result<&'a PodFacts, CallerDenied> {
    let bound = caller
        .pod
        .as_ref()
        .ok_or(CallerDenied::TokenNotBoundToPod)?;
    let name = || pod_name(caller);
    let pod = pods
        .pod(&caller.namespace, &bound.name)
        .ok_or_else(|| CallerDenied::UnknownPod(name()))?;
    if bound.uid.is_empty() || pod.uid != bound.uid {
        return Err(CallerDenied::PodUidMismatch(name()));
    }
    if !pod.is_live {
        return Err(CallerDenied::PodEnded(name()));
    }
    if pod.service_account != caller.service_account {
        return Err(CallerDenied::ServiceAccountMismatch(name()));
    }
    if pod.node.is_empty() {
        return Err(CallerDenied::PodWithoutNode(name()));
    }
    Ok(pod)
}

fn pod_name(caller: &Caller) -> String {
    let pod = caller.pod.as_ref().map(|pod| pod.name.as_str());
    format!("{}/{}", caller.namespace, pod.unwrap_or_default())
}

#[cfg(test)]
mod tests;
