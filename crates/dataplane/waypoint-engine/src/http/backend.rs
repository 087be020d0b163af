//! Destinations of requests, and the choice of their endpoints.

pub(super) mod affinity;
pub(super) mod destination;
pub(crate) mod destination_attachments;
pub(super) mod endpoint;
pub(super) mod pass_through;
pub(super) mod sticky;
pub(super) mod upstream_failure;
