//! A certificate authority, with a root of its own or plugged in: issues certificates.
//!
//! The caller authorizes each request for a certificate before.
#![forbid(unsafe_code)]

mod authority;

pub use authority::{Authority, AuthorityError, IssueError};
