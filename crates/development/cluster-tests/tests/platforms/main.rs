//! The mesh on primary CNIs and layouts of nodes that users have, each on a cluster of its own. `cargo xtask cluster test
//! --platforms` runs these tests, `cargo xtask test` does not: they build agents of network plugins, and take minutes.
#![expect(clippy::unwrap_used, reason = "tests")]

mod lifecycle;
