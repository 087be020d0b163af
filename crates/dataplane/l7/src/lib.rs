//! Layer 7 of a waypoint, without IO: the paths of requests, the policies that authorize them, and the routes that they
//! take.
//!
//! All parts see a request's path in one form, which is also the forwarded one: the application gets the authorized
//! path.
#![forbid(unsafe_code)]

pub mod authz;
pub mod limits;
pub mod path;
mod readings;
pub mod remote;
pub mod route;
pub mod stream;
mod weights;
