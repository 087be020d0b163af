//! Wasm plugins in a waypoint, with real programs: from a manifest to the headers that an application gets.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod compiled;
mod floods;
mod pulled;
mod scene;
mod written;
