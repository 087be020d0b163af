//! Decides which addresses the control plane may call to fetch the key sets of a namespace. The
//! follower of objects decides, since it knows the addresses of Services and pods.

use std::net::IpAddr;

use ambit_fetch::Admission;
use ambit_k8s_api::ObjectKey;
use ambit_model::ArcStr;
use tokio::sync::{mpsc, oneshot};

/// Capacity of the queue of inquiries.
const QUEUE_CAPACITY: usize = 64;

/// Inquiry whether key sets of a namespace may be fetched from an address.
#[derive(Debug)]
pub(crate) struct Inquiry {
    /// Namespace of the objects that name the key set.
    pub(crate) namespace: ArcStr,
    /// Address of the callee.
    pub(crate) ip: IpAddr,
    reply: oneshot::Sender<Result<(), ObjectKey>>,
}

impl Inquiry {
    /// Responds; an error names the Service or pod that has the address.
    pub(crate) fn answer(self, may_call: Result<(), ObjectKey>) {
        // The fetch may have timed out meanwhile.
        self.reply.send(may_call).ok();
    }
}

/// Reason why no address of a host may be called.
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
    Ending,
}

/// Sender of inquiries about callees. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Callees(mpsc::Sender<Inquiry>);

impl Callees {
    /// Creates the client and the receiver of its inquiries.
    pub(super) fn new() -> (Self, mpsc::Receiver<Inquiry>) {
        let (sender, inquiries) = mpsc::channel(QUEUE_CAPACITY);
        (Self(sender), inquiries)
    }

    /// Returns the callee check for a namespace's key sets.
    pub(super) fn of(&self, namespace: &ArcStr) -> NamespaceCallees {
        NamespaceCallees {
            callees: self.clone(),
            namespace: namespace.clone(),
        }
    }

    /// Returns the Service or pod that has an address, if the namespace's key sets may not be
    /// fetched from it.
    async fn refusal(
        &self,
        namespace: &ArcStr,
        ip: IpAddr,
    ) -> Result<Option<ObjectKey>, CalleeError> {
        let (reply, answer) = oneshot::channel();
        let inquiry = Inquiry {
            namespace: namespace.clone(),
            ip,
            reply,
        };
        let sent = self.0.send(inquiry).await;
        sent.map_err(|_| CalleeError::Ending)?;
        let answer = answer.await.map_err(|_| CalleeError::Ending)?;
        Ok(answer.err())
    }
}

/// Callee check for the key sets of a namespace.
#[derive(Debug)]
pub(super) struct NamespaceCallees {
    callees: Callees,
    namespace: ArcStr,
}

impl Admission for NamespaceCallees {
    type Error = CalleeError;

    async fn admit(&self, host: &str, ip: IpAddr) -> Result<(), CalleeError> {
        match self.callees.refusal(&self.namespace, ip).await? {
            None => Ok(()),
            Some(owner) => Err(CalleeError::NotGranted {
                host: host.to_owned(),
                owner,
                namespace: self.namespace.clone(),
            }),
        }
    }
}
