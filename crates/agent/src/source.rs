//! Where the agent learns of pods and namespaces. What it needs of them, as values.

use std::{collections::BTreeMap, future::Future, net::IpAddr};

use ambit_model::{ArcStr, PodName};
use ambit_zds::PodUid;

pub mod manifests;

/// Labels or annotations.
pub type Labels = BTreeMap<String, String>;

/// A pod of this node, as far as enrolment depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// Its uid.
    pub uid: PodUid,
    /// Name, namespace, service account.
    pub name: PodName,
    /// It shares the node's network namespace.
    pub host_network: bool,
    /// It has ended: phase Succeeded or Failed.
    pub terminal: bool,
    /// Its labels.
    pub labels: Labels,
    /// Its annotations.
    pub annotations: Labels,
    /// The addresses its status names.
    pub addresses: Vec<IpAddr>,
    /// What its cgroup is called if not by its uid (static pods).
    pub cgroup_alias: Option<String>,
}

/// What a source tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEvent {
    /// A pod of this node is new or has changed.
    Pod(PodView),
    /// A pod is gone, or no longer of this node.
    PodGone(PodUid),
    /// A namespace is new or has other labels.
    Namespace(ArcStr, Labels),
    /// A namespace is gone.
    NamespaceGone(ArcStr),
    /// Everything that existed at the start has been told.
    Synced,
}

/// A source of pods and namespaces. The first events are those of everything there is, then
/// [`SourceEvent::Synced`], then every change in order.
pub trait PodSource: Send + 'static {
    /// Waits for events. `None`: the source has ended for good. Cancelling loses nothing.
    fn next(&mut self) -> impl Future<Output = Option<Vec<SourceEvent>>> + Send;
}
