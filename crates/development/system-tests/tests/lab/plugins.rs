//! Tests of Wasm plugins in a waypoint, with real programs: from a manifest to the headers that an
//! application receives.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod compiled;
mod floods;
mod handwritten;
mod pull;
mod scene;
