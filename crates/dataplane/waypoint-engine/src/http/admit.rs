//! Authentication and authorization of requests, by providers, tokens and policies.

pub(super) mod admission;
pub(super) mod authentication;
pub(super) mod authorizer;
pub(super) mod passing;
pub(super) mod request_authorization;
