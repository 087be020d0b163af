//! Render units: the portions in which records become stale and are rendered again.

use ambit_k8s_api::{Kind, ObjectKey};
use ambit_model::ArcStr;

/// Portion of the records that becomes stale as a whole and is rendered again as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum RenderUnit {
    /// Records of a host, rendered from all objects that declare it.
    Host(ArcStr),
    /// Records rendered from one object.
    Object(ObjectKey),
    /// Policy that refuses all plaintext, which workloads with STRICT mTLS share.
    StaticStrictPolicy,
}

impl RenderUnit {
    pub(crate) fn renders_workloads(&self) -> bool {
        let Self::Object(key) = self else {
            return false;
        };
        matches!(
            key.kind,
            Kind::Pod | Kind::WorkloadEntry | Kind::ServiceEntry | Kind::EndpointSlice
        )
    }
}
