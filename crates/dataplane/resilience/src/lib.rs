//! Traffic policies of `DestinationRule`s: load balancing among a service's endpoints, ejection of failing endpoints
//! (outlier detection), and circuit breakers.
//!
//! [`Destination`] combines these for one port of a service, and is shared by all threads. Callers pass in endpoints,
//! outcomes, times and random numbers; the crate has no tasks, clock or IO. [`LimitCounters`] only counts: callers do the
//! waiting. Picking an endpoint takes a read lock to clone a pointer; a write lock is taken only when endpoints change
//! or one is ejected.
#![forbid(unsafe_code)]

mod destination;
mod group;
mod hashing;
mod host;
mod limits;
mod locality;
mod outliers;
mod pool;
mod rate_limit;

pub use destination::{Destination, EndpointState, NoEndpoint, PickRequest, PickedEndpoint};
pub use hashing::hash;
pub use host::EndpointCandidate;
pub use limits::{CircuitBreakerLimit, LimitCounters, LimitPermit};
pub use locality::Topology;
pub use outliers::{Ejection, EndpointOutcome, OutlierCause};
pub use rate_limit::{RateLimit, RateLimitDecision, TokenBuckets};

#[cfg(test)]
mod tests;
