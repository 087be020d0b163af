//! Traffic policies of `DestinationRule`s: load balancing among a service's endpoints, ejection of failing endpoints
//! (outlier detection), and circuit breakers.
//!
//! [`Destination`] combines them for one port of a service, shared by all threads. Endpoints, outcomes, times and
//! random numbers are passed in; there are no tasks, no clock and no IO here. Callers do the waiting ([`Limits`] only
//! counts). Picking an endpoint takes one lock for reading, to clone a pointer; locks are taken for writing only when
//! endpoints change, or one is ejected.
#![forbid(unsafe_code)]

mod destination;
mod group;
mod hashing;
mod host;
mod limits;
mod locality;
mod outliers;
mod pool;
mod rates;

pub use destination::{Destination, EndpointState, NoEndpoint, PickRequest, PickedEndpoint};
pub use hashing::hash;
pub use host::Candidate;
pub use limits::{LimitPermit, Limits, Overflow};
pub use locality::Topology;
pub use outliers::{Ejection, EndpointOutcome, OutlierCause};
pub use rates::{RateLimit, RateLimitDecision, TokenBuckets};

#[cfg(test)]
mod tests;
