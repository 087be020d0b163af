//! Authentication and authorization of requests: authorization providers, JWTs and policies.

pub(super) mod admission;
pub(super) mod authentication;
pub(super) mod authorized_body;
pub(super) mod authorizer;
pub(super) mod request_authorization;
