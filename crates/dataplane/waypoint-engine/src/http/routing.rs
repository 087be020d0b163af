//! Routes requests, and authorizes them in their forwarded form.

pub(super) mod backend_authorization;
pub(super) mod client_route;
pub(super) mod route_selection;
