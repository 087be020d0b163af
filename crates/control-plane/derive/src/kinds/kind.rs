//! Trait of the kinds of objects from which the control plane derives records and conditions.

use ambit_k8s_api::ObjectKey;
use ambit_model::ArcStr;

use crate::{
    condition::{ConditionType, DerivedStatus, StatusListType},
    index::{Index, change::Change},
    objects::Stored,
    pod_directory::PodDirectory,
    records::ServiceRecord,
    view::{MeshView, rendered::RenderedRecords},
};

/// Claim of an object to the record of a host that it declares, with its precedence.
#[derive(Debug)]
pub(crate) struct HostClaim<'a> {
    /// Whether the object is a Kubernetes Service, which takes precedence over ServiceEntries.
    pub(crate) is_kubernetes: bool,
    /// Time of creation, see [`ambit_k8s_api::created`].
    pub(crate) created: &'a str,
    /// Whether the host is visible in all namespaces, rather than only in the object's own.
    pub(crate) is_public: bool,
}

/// Kind of object that the mesh uses: which records become stale when an object changes, its records, and its desired
/// status conditions.
pub(crate) trait MeshKind: Stored {
    /// Types of status conditions that this control plane writes on objects of the kind.
    const CONDITIONS: &'static [ConditionType] = &[];

    /// List in the status whose entries have conditions, such as a Gateway's listeners; `None` if the kind has none.
    const STATUS_LIST: Option<StatusListType> = None;

    /// Updates the relations of a changed object, and marks the records that depend on it as stale.
    fn on_change(index: &mut Index, change: &Change<'_, Self::Input>, pods: &mut PodDirectory);

    /// Renders the records that belong to the object itself, rather than to a host that it declares.
    fn render(_view: &MeshView, _key: &ObjectKey, _input: &Self::Input) -> RenderedRecords {
        RenderedRecords::default()
    }

    /// Returns the object's claim to the record of a host that it declared with [`Index::update_declared_hosts`];
    /// `None` if it may not have the host.
    fn host_claim<'a>(
        _view: &MeshView,
        _input: &'a Self::Input,
        _host: &ArcStr,
    ) -> Option<HostClaim<'a>> {
        None
    }

    /// Renders the service record of a host, for which the object has the highest precedence.
    fn service_record(
        _view: &MeshView,
        _input: &Self::Input,
        _host: &ArcStr,
    ) -> Option<ServiceRecord> {
        None
    }

    /// Returns the status of an object as far as it depends on other objects; `None` if the kind has no derived status.
    fn derived_status(
        _view: &MeshView,
        _key: &ObjectKey,
        _input: &Self::Input,
    ) -> Option<DerivedStatus> {
        None
    }

    /// Whether any rule of a policy is in effect.
    fn is_in_force(_input: &Self::Input) -> bool {
        false
    }
}
