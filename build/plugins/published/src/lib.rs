//! Nothing: the crate that the manifest names is built by itself, by `cargo xtask test`.
