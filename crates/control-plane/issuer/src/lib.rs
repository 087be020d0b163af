//! Certificate authority with its own or a plugged-in root, which issues certificates.
//!
//! Callers of this crate must have authorized each certificate request.
#![forbid(unsafe_code)]

mod authority;

pub use authority::{Authority, AuthorityError, IssueError};
