//! Decides which addresses the control plane may call to fetch the key sets that a namespace's objects name. The task
//! that owns the index decides, since it knows the addresses of Services and pods.

use std::net::IpAddr;

use ambit_fetch::Admission;
use ambit_k8s_api::ObjectKey;
use ambit_model::ArcStr;
use tokio::sync::{mpsc, oneshot};

/// Capacity of the queue of address checks.
const QUEUE_CAPACITY: usize = 64;

/// Request to decide whether key sets of a namespace may be fetched from an address.
#[derive(Debug)]
pub(crate) struct CalleeCheck {
    /// Namespace of the objects that name the key set.
    pub(crate) namespace: ArcStr,
    /// Address from which the key set would be fetched.
    pub(crate) ip: IpAddr,
    reply: oneshot::Sender<Result<(), ObjectKey>>,
}

impl CalleeCheck {
    /// Sends the decision; an error names the Service or pod that has the address.
    pub(crate) fn reply(self, may_call: Result<(), ObjectKey>) {
        // The fetch may have timed out meanwhile.
        self.reply.send(may_call).ok();
    }
}

/// Reason why no address of a host may be called for a key set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CalleeError {
    #[error(
        "{host} has an address of {owner}: add a ReferenceGrant from RequestAuthentication of {namespace} in its namespace"
    )]
    NotGranted {
        host: String,
        owner: ObjectKey,
        namespace: ArcStr,
    },
    #[error("the control plane is ending")]
    ShuttingDown,
}

/// Sender of address checks to the task that owns the index. Clones share the queue.
#[derive(Clone, Debug)]
pub(super) struct CalleeChecker(mpsc::Sender<CalleeCheck>);

impl CalleeChecker {
    /// Creates the sender and the receiver of address checks.
    pub(super) fn new() -> (Self, mpsc::Receiver<CalleeCheck>) {
        let (sender, inquiries) = mpsc::channel(QUEUE_CAPACITY);
        (Self(sender), inquiries)
    }

    /// Returns a checker of the addresses from which a namespace's key sets are fetched.
    pub(super) fn for_namespace(&self, namespace: &ArcStr) -> NamespaceCalleeChecker {
        NamespaceCalleeChecker {
            callees: self.clone(),
            namespace: namespace.clone(),
        }
    }

    /// Returns the Service or pod that has an address, if the namespace's key sets may not be
    /// fetched from it.
    async fn check_callee(
        &self,
        namespace: &ArcStr,
        ip: IpAddr,
    ) -> Result<Option<ObjectKey>, CalleeError> {
        let (reply, answer) = oneshot::channel();
        let inquiry = CalleeCheck {
            namespace: namespace.clone(),
            ip,
            reply,
        };
        let sent = self.0.send(inquiry).await;
        sent.map_err(|_| CalleeError::ShuttingDown)?;
        let answer = answer.await.map_err(|_| CalleeError::ShuttingDown)?;
        Ok(answer.err())
    }
}

/// Checker of the addresses from which a namespace's key sets are fetched.
#[derive(Debug)]
pub(super) struct NamespaceCalleeChecker {
    callees: CalleeChecker,
    namespace: ArcStr,
}

impl Admission for NamespaceCalleeChecker {
    type Error = CalleeError;

    async fn admit(&self, host: &str, ip: IpAddr) -> Result<(), CalleeError> {
        match self.callees.check_callee(&self.namespace, ip).await? {
            None => Ok(()),
            Some(owner) => Err(CalleeError::NotGranted {
                host: host.to_owned(),
                owner,
                namespace: self.namespace.clone(),
            }),
        }
    }
}
