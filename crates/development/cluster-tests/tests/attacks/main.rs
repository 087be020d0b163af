//! What an adversary tries against a mesh on a real Kubernetes, and what must not come of it. One module
//! a property; each states it at its top.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

mod agent_token;
mod definitions;
mod earlier;
mod killed;
