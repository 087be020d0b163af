//! Route together with one of the parents that it is attached to.

use ambit_k8s_api::ObjectKey;

use crate::objects::route::input::RouteInput;

/// Route, as it applies to requests to one of its parents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachedRoute<'a> {
    pub(crate) route: &'a RouteInput,
    pub(crate) parent: &'a ObjectKey,
    /// Port of the parent that the client called; any port if `None`.
    pub(crate) port: Option<u16>,
}

impl RouteInput {
    /// Returns the route as it applies to requests to any port of a parent.
    pub(crate) fn attached_to<'a>(&'a self, parent: &'a ObjectKey) -> AttachedRoute<'a> {
        AttachedRoute {
            route: self,
            parent,
            port: None,
        }
    }
}
