//! Tests of Wasm plugins in a waypoint, with real programs: from a manifest to the headers that an
//! application receives.

mod compiled;
mod floods;
mod handwritten;
mod pull;
mod scene;
