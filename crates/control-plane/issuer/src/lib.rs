//! Certificate authority with its own or a plugged-in root, which issues certificates.
//!
//! This crate does not authorize certificate requests; its callers must have done so.
#![forbid(unsafe_code)]

mod authority;

pub use authority::{Authority, AuthorityError, IssueError};
