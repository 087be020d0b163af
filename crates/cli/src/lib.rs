//! The ambit command line.
#![forbid(unsafe_code)]

pub mod admin;
pub mod dump;
pub mod error;
pub mod explain;
pub mod inspect;
pub mod output;
