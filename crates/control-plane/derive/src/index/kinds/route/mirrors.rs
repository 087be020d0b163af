//! Services that get requests as well as those that answer them.

use ambit_k8s_api::gateway::HttpRequestMirror;
use ambit_model::{HttpMirror, Share};

use super::{AttachedRoute, references::Reference};
use crate::{
    index::{MeshView, kinds::share},
    problem::{FieldError, Note},
};

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MirrorInput {
    pub(super) to: Reference,
    pub(super) share: Share,
}

impl MirrorInput {
    /// Reads one; a service that cannot be used is noted.
    pub(super) fn read(
        from: &HttpRequestMirror,
        namespace: &str,
        at: &str,
        notes: &mut Vec<Note>,
    ) -> Result<Self, FieldError> {
        let share = share::read(from.percent, from.fraction.as_ref(), at)?;
        let reference = &from.backend_ref;
        let at = format!("{at}.backendRef");
        let otherwise = "nothing is mirrored there";
        Ok(Self {
            to: Reference::read(reference, namespace, &at, otherwise, notes)?,
            share,
        })
    }

    /// With its service as it is now for requests to a parent, if there is one.
    pub(super) fn resolved(&self, view: &MeshView, route: AttachedRoute<'_>) -> Option<HttpMirror> {
        let (service, port) = self.to.find(view, route).ok()?;
        Some(HttpMirror {
            service,
            port,
            numerator: self.share.numerator,
            denominator: self.share.denominator,
        })
    }
}
