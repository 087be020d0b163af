//! HTTP logic of a waypoint without IO: normalization of paths, authorization policies, and routes.
//!
//! Policies, routes and the application all receive the same normalized path, so that the authorized path is the served
//! one.
#![forbid(unsafe_code)]

pub mod authz;
pub mod limits;
pub mod path;
mod readings;
pub mod remote;
pub mod route;
pub mod stream;
mod weights;
