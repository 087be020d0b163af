//! What an adversary tries against a mesh in the lab, and what must not come of it. One module a
//! property; each states it at its top.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

mod control_plane;
mod earlier;
mod hung_agent;
mod killed;
mod leaving_crowd;
mod objects;
mod passing_by;
mod truncation;
