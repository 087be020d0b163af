//! Trait of the kinds of objects that the mesh derives records and conditions from.

use ambit_k8s_api::ObjectKey;
use ambit_model::ArcStr;

use crate::{
    condition::{ConditionType, PartsType, Standing},
    index::{Index, change::Change},
    objects::Stored,
    pod_directory::PodDirectory,
    records::ServiceRecord,
    view::{MeshView, rendered::Rendered},
};

/// Precedence of an object among those that declare the same host.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    /// Kubernetes' own services come first.
    pub(crate) is_kubernetes: bool,
    /// Time of creation, see [`ambit_k8s_api::created`].
    pub(crate) created: &'a str,
    /// Whether every namespace sees it.
    pub(crate) is_public: bool,
}

/// Kind of object in the mesh: what a change of an object marks, its records and its desired conditions.
pub(crate) trait MeshKind: Stored {
    /// Conditions that this control plane writes on objects of the kind.
    const CONDITIONS: &'static [ConditionType] = &[];

    /// Parts of objects of the kind that have conditions of their own.
    const PARTS: Option<PartsType> = None;

    /// Marks what depends on an object: what is to be rendered anew.
    fn changed(index: &mut Index, change: &Change<'_, Self::Input>, pods: &mut PodDirectory);

    /// Renders the records that an object makes by itself.
    fn render(_view: &MeshView, _key: &ObjectKey, _input: &Self::Input) -> Rendered {
        Rendered::default()
    }

    /// Whether and how an object competes for a host that it declared with [`Index::declare`].
    fn claim<'a>(_view: &MeshView, _input: &'a Self::Input, _host: &ArcStr) -> Option<Claim<'a>> {
        None
    }

    /// Renders the record that an object makes of a host.
    fn service(_view: &MeshView, _input: &Self::Input, _host: &ArcStr) -> Option<ServiceRecord> {
        None
    }

    /// Returns the state of an object that depends on others; `None` if the kind has none.
    fn standing(_view: &MeshView, _key: &ObjectKey, _input: &Self::Input) -> Option<Standing> {
        None
    }

    /// Whether any rule of a policy is in force.
    fn is_in_force(_input: &Self::Input) -> bool {
        false
    }
}
