//! Empty: `cargo xtask test` builds the filters of the crate that the manifest names.
