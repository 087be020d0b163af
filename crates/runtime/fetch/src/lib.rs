//! Fetches resources that objects name by URL: key sets, trust bundles, modules of plugins, and images in registries.
//!
//! The author of an object chooses the server, and the server is not trusted. [`Client`] connects only to addresses
//! that the [`Guard`](ambit_egress::Guard) and the [`Admission`] of the object's namespace permit, also after
//! redirects; it never follows a redirect from TLS to plaintext, sends credentials to the first server only, and
//! reads bodies of bounded size. Callers set timeouts.
#![forbid(unsafe_code)]

mod admission;
mod client;
mod error;
mod url;

pub use admission::{Admission, AdmitAll};
pub use client::{Client, Get, Response};
pub use error::FetchError;
