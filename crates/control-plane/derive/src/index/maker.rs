//! Makers of records.

use ambit_k8s_api::{Kind, ObjectKey};
use ambit_model::ArcStr;

/// Maker of records: the unit in which they are marked as stale and rendered anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Maker {
    /// Maker of the records of a host, from all objects that declare it.
    Host(ArcStr),
    /// Maker of an object's own records.
    Object(ObjectKey),
    /// Maker of the policy that refuses all plaintext in the mesh.
    StaticStrict,
}

impl Maker {
    pub(crate) fn makes_workloads(&self) -> bool {
        let Self::Object(key) = self else {
            return false;
        };
        matches!(
            key.kind,
            Kind::Pod | Kind::WorkloadEntry | Kind::ServiceEntry | Kind::EndpointSlice
        )
    }
}
