//! Addresses that the control plane may call to fetch the key sets of a namespace: the follower of objects decides,
//! which knows the addresses of Services and pods.

use std::net::IpAddr;

use ambit_fetch::Admission;
use ambit_k8s_api::ObjectKey;
use ambit_model::ArcStr;
use tokio::sync::{mpsc, oneshot};

/// Inquiries that wait for the follower of objects.
const QUEUE: usize = 64;

/// A query whether key sets of a namespace may be fetched from an address.
#[derive(Debug)]
pub(crate) struct Inquiry {
    /// The namespace of the objects that name the key set.
    pub(crate) namespace: ArcStr,
    /// Address of the callee.
    pub(crate) ip: IpAddr,
    reply: oneshot::Sender<Result<(), ObjectKey>>,
}

impl Inquiry {
    /// Responds; an error names the Service or pod that has the address.
    pub(crate) fn answer(self, may_call: Result<(), ObjectKey>) {
        // Nobody waits for it any more when the time of the fetch is over.
        self.reply.send(may_call).ok();
    }
}

/// Why no address of a host is called.
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

/// Client of the object watcher for questions about callees. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Callees(mpsc::Sender<Inquiry>);

impl Callees {
    /// Creates the client and the receiver of its inquiries.
    pub(super) fn new() -> (Self, mpsc::Receiver<Inquiry>) {
        let (sender, inquiries) = mpsc::channel(QUEUE);
        (Self(sender), inquiries)
    }

    /// Returns the admission of a namespace's key sets.
    pub(super) fn of(&self, namespace: &ArcStr) -> NamespaceCallees {
        NamespaceCallees {
            callees: self.clone(),
            namespace: namespace.clone(),
        }
    }

    /// Returns the Service or pod that has an address, if key sets of the namespace may not be fetched from it.
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

/// Admission of the key sets of a namespace.
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
