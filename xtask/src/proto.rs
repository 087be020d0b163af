//! `cargo xtask gen`: writes the Rust code in `crates/protocol/wire/src/generated`, which is generated from
//! `crates/protocol/wire/proto` and checked in. A test of `ambit-wire` generates it, and compares it in all other runs.

use anyhow::Result;

use crate::shell;

/// Environment variable with which the test writes the generated code.
const WRITE: &str = "AMBIT_WRITE_GENERATED";

/// Writes the generated code.
pub(crate) fn generate() -> Result<()> {
    let mut test = shell::cargo(&["test", "--package", "ambit-wire", "--test", "generated"]);
    shell::run("generate the protobuf code", test.env(WRITE, "1"))
}
