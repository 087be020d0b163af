//! A certificate authority, with a root of its own or plugged in: issues certificates.
//!
//! The caller decides who may have which certificate, before it asks.
#![forbid(unsafe_code)]

mod authority;

pub use authority::{Authority, AuthorityError, IssueError};
