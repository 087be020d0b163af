//! What `DestinationRule`s ask for: which of a service's endpoints gets a request, which are left alone for a while
//! because they fail, and how much all of them get at the same time.
//!
//! [`Destination`] is the whole of it for one port of a service, shared by all threads. Endpoints, outcomes, times and
//! chance come from outside; there are no tasks, no clock and no IO here. What waits, waits elsewhere
//! ([`Limits`] only counts). A choice takes one lock for reading, to clone a pointer; locks are taken for writing
//! only when endpoints change, or one is ejected.
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

pub use destination::{Chosen, Destination, EndpointState, NoEndpoint, Wish};
pub use hashing::hash;
pub use host::Candidate;
pub use limits::{Limits, Overflow, Slot};
pub use locality::Topology;
pub use outliers::{Ejection, Fault, Outcome};
pub use rates::{Buckets, Rate, RateLimitDecision};

#[cfg(test)]
mod tests;
