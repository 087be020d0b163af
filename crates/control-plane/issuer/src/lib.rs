//! A certificate authority: a root of its own or a plugged-in one, and issuing.
//!
//! Who may have which certificate is decided by the caller, before asking.
#![forbid(unsafe_code)]

mod authority;

pub use authority::{Authority, AuthorityError, IssueError};
