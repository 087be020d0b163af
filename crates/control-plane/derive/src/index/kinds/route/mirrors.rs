//! Services that get requests as well as those that answer them.

use ambit_k8s_api::gateway::{Fraction, HttpRequestMirror};
use ambit_model::HttpMirror;

use super::{RouteInput, references::Reference};
use crate::{
    index::Index,
    problem::{FieldError, Note},
};

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MirrorInput {
    pub(super) to: Reference,
    numerator: u32,
    denominator: u32,
}

impl MirrorInput {
    /// Reads one; a service that cannot be used is noted.
    pub(super) fn read(
        from: &HttpRequestMirror,
        namespace: &str,
        at: &str,
        notes: &mut Vec<Note>,
    ) -> Result<Self, FieldError> {
        let (field, of, all) = match (from.percent, &from.fraction) {
            (Some(_), Some(_)) => {
                let message = "percent and fraction exclude each other";
                return Err(FieldError::new(at, message));
            }
            (Some(percent), None) => ("percent", percent, 100),
            (
                None,
                Some(Fraction {
                    numerator,
                    denominator,
                }),
            ) => ("fraction", *numerator, denominator.unwrap_or(100)),
            (None, None) => ("percent", 100, 100),
        };
        let share = u32::try_from(of).ok().zip(u32::try_from(all).ok());
        let share = share.filter(|(of, all)| of <= all && *all > 0);
        let (numerator, denominator) = share.ok_or_else(|| {
            let message = format!("{of} of {all} is no share");
            FieldError::new(format!("{at}.{field}"), message)
        })?;
        let reference = &from.backend_ref;
        let at = format!("{at}.backendRef");
        let otherwise = "nothing is mirrored there";
        Ok(Self {
            to: Reference::read(reference, namespace, &at, otherwise, notes)?,
            numerator,
            denominator,
        })
    }

    /// With its service as it is now, if there is one.
    pub(super) fn resolved(&self, index: &Index, route: &RouteInput) -> Option<HttpMirror> {
        Some(HttpMirror {
            service: self.to.find(index, route).ok()?,
            port: self.to.port,
            numerator: self.numerator,
            denominator: self.denominator,
        })
    }
}
