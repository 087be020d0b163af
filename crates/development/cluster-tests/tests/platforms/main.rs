//! Tests of the mesh with other primary CNIs and layouts of nodes, each on a separate cluster. `cargo xtask cluster
//! test --platforms` runs these tests, `cargo xtask test` does not: they build agents of network plugins, and take
//! minutes.
#![expect(clippy::unwrap_used, reason = "tests")]

mod lifecycle;
