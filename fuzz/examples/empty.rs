//! Fuzz target without code. Since examples are built with dev-dependencies, a build of the fuzz targets with this one
//! gives third-party libraries the features of the tests' build, and shares them.
#![no_main]

libfuzzer_sys::fuzz_target!(|_input: &[u8]| {});
