//! Authentication and authorization of requests, by providers, tokens and policies.

pub(super) mod admission;
pub(super) mod authentication;
pub(super) mod authorizer;
pub(super) mod judgement;
pub(super) mod passing;
