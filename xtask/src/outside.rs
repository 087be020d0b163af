//! What the system tests run beside our own programs, made by others or with what others publish: the receiver of an
//! OpenTelemetry collector, a provider of CUSTOM policies and a rate-limit service by Envoy's messages, a registry of
//! images, Prometheus' query engine, a decoder of Envoy's admin messages, plugins compiled from Rust and Go, and filters that others have published. What has
//! not changed, cargo and Go do not build again.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::shell;

/// The target of plugins in Rust. It is installed when tests need it: nothing else is built for it.
const WASM: &str = "wasm32-wasip1";

/// All of it.
pub(crate) fn build() -> Result<()> {
    collector()?;
    go("authorizer", "ext-authz-provider", &[])?;
    go("ratelimit", "rate-limit-service", &[])?;
    go("registry", "oci-registry", &[])?;
    go("distribution", "oci-distribution", &[])?;
    go("prometheus", "prometheus-queries", &[])?;
    go("envoy-admin", "envoy-admin-decoder", &[])?;
    target()?;
    rust_plugin()?;
    published_plugins()?;
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

/// Installs the standard library for [`WASM`] if it is not there.
fn target() -> Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", WASM]);
    let output = rustc.current_dir(shell::root()).output()?;
    let directory = String::from_utf8_lossy(&output.stdout);
    if Path::new(directory.trim()).join("self-contained").is_dir() {
        return Ok(());
    }
    let mut rustup = Command::new("rustup");
    rustup
        .args(["target", "add", WASM])
        .current_dir(shell::root());
    let what = format!("install the Rust target {WASM}, which tests of plugins need");
    shell::run(&what, &mut rustup)
}

/// The plugin in Rust.
fn rust_plugin() -> Result<()> {
    let manifest = shell::root().join("build/plugins/rust/Cargo.toml");
    wasm("plugin-rust.wasm", &manifest, &["--lib"], "-D warnings")?;
    beside("test_plugin.wasm", "plugin-rust.wasm")
}

/// Filters that the SDK's crate has beside its library, as they were published.
fn published_plugins() -> Result<()> {
    let names = ["http_headers", "http_body", "http_config"];
    let examples: Vec<&str> = names.iter().flat_map(|name| ["--example", name]).collect();
    // It is older than the lint.
    let lints = "-A unexpected_cfgs";
    wasm(
        "published filters",
        &published_manifest()?,
        &examples,
        lints,
    )?;
    for name in names {
        let to = format!("published-{}.wasm", name.replace('_', "-"));
        beside(&format!("examples/{name}.wasm"), &to)?;
    }
    Ok(())
}

/// Where cargo has put the crate that `build/plugins/published` names.
fn published_manifest() -> Result<PathBuf> {
    let mut cargo = shell::cargo(&["metadata", "--locked", "--format-version=1"]);
    let manifest = shell::root().join("build/plugins/published/Cargo.toml");
    let output = cargo.arg("--manifest-path").arg(manifest).output()?;
    ensure!(
        output.status.success(),
        "cargo metadata of the published filters failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata.get("packages").and_then(|all| all.as_array());
    let text = |package: &serde_json::Value, name: &str| {
        let text = package.get(name).and_then(|text| text.as_str());
        text.map(str::to_owned)
    };
    let of_sdk = packages.and_then(|packages| {
        let mut packages = packages.iter();
        packages.find(|package| text(package, "name").as_deref() == Some("proxy-wasm"))
    });
    let path = of_sdk.and_then(|package| text(package, "manifest_path"));
    path.map(PathBuf::from)
        .context("build/plugins/published names no proxy-wasm")
}

/// Builds modules of a crate that is no part of the mesh's workspace.
fn wasm(what: &str, manifest: &Path, which: &[&str], flags: &str) -> Result<()> {
    let mut cargo = shell::cargo(&["build", "--locked", "--release", "--target", WASM]);
    cargo
        .args(which)
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--target-dir")
        .arg(plugins())
        .env("RUSTFLAGS", flags);
    shell::run(&format!("build {what}"), &mut cargo)
}

fn plugins() -> PathBuf {
    shell::target_dir().join("plugins")
}

/// Puts a module beside our own programs.
fn beside(built: &str, name: &str) -> Result<()> {
    let built = plugins().join(WASM).join("release").join(built);
    let beside = shell::target_dir().join("debug").join(name);
    fs::copy(&built, &beside).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(())
}
