//! Authentication and authorization of the control plane's callers.
//!
//! [`token`] verifies service account tokens, [`caller_pod`] finds the pod that a token is bound to
//! and the identities that it may request, and [`waypoints`] maps service accounts to waypoints.
//! [`CallerAccess`] has the authorization rules.
#![forbid(unsafe_code)]

mod access;
pub mod caller_pod;
mod metrics;
pub mod token;
mod waypoints;

pub use access::{CallerAccess, ServiceAccounts, parse_accounts};
pub use metrics::CallerMetrics;
pub use token::{
    Authenticator, BoundPod, Caller, KeyFileAuthenticator, TokenReviewer, UnavailableAuthenticator,
};
pub use waypoints::WaypointRegistry;
