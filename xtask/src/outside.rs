//! What the system tests run beside our own programs, made by others or with what others publish: the receiver of an
//! OpenTelemetry collector, a provider of CUSTOM policies and a rate-limit service by Envoy's messages, a registry of
//! images, and plugins compiled from Rust and Go. What has not changed, cargo and Go do not build again.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::shell;

/// The target of plugins in Rust; `rust-toolchain.toml` has it.
const WASM: &str = "wasm32-wasip1";

/// All of it.
pub(crate) fn build() -> Result<()> {
    collector()?;
    go("authorizer", "ext-authz-provider", &[])?;
    go("ratelimit", "rate-limit-service", &[])?;
    go("registry", "oci-registry", &[])?;
    rust_plugin()?;
    let wasm = ["-buildmode=c-shared", "-ldflags=-s -w"];
    go("plugins/go", "plugin-go.wasm", &wasm).map(drop)
}

/// The receiver of telemetry.
pub(crate) fn collector() -> Result<PathBuf> {
    go("collector", "otlp-collector", &[])
}

/// Builds a Go program, or with flags a WebAssembly module, beside our own programs.
fn go(source: &str, name: &str, wasm: &[&str]) -> Result<PathBuf> {
    let program = shell::target_dir().join("debug").join(name);
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-buildvcs=false"])
        .args(wasm)
        .arg("-o")
        .arg(&program)
        .arg(".")
        .current_dir(shell::root().join("build").join(source))
        .env("CGO_ENABLED", "0");
    if !wasm.is_empty() {
        go.env("GOOS", "wasip1").env("GOARCH", "wasm");
    }
    shell::run(&format!("build {name}"), &mut go)?;
    Ok(program)
}

/// The plugin in Rust.
fn rust_plugin() -> Result<()> {
    let target = shell::target_dir().join("plugins");
    let mut cargo = shell::cargo(&["build", "--locked", "--release", "--target", WASM]);
    cargo
        .current_dir(shell::root().join("build/plugins/rust"))
        .arg("--target-dir")
        .arg(&target)
        .env_remove("RUSTFLAGS");
    shell::run("build plugin-rust.wasm", &mut cargo)?;
    let built = target.join(WASM).join("release/test_plugin.wasm");
    let beside = shell::target_dir().join("debug/plugin-rust.wasm");
    fs::copy(&built, &beside).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(())
}
