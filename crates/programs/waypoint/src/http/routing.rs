//! Routes of requests, and the authorization of what they forward.

pub(super) mod backend_authorization;
pub(super) mod client_route;
pub(super) mod routed;
