//! Builds third-party programs for the system tests, and programs that use third-party libraries: the receiver of an
//! OpenTelemetry collector, SPIRE, an ext_authz provider and a rate-limit service with Envoy's messages, an image
//! registry, Prometheus' query engine, a decoder of Envoy's admin messages, Helm, plugins in Rust and Go, and published
//! filters. cargo and Go rebuild only what has changed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::{cross, shell};

/// Compilation target of Wasm plugins in Rust, which is installed only when tests need it.
const WASM_TARGET: &str = "wasm32-wasip1";

/// Builds all programs and plugins of this module.
pub(crate) fn build() -> Result<()> {
    build_collector()?;
    build_go_plugin("authorizer", "ext-authz-provider", &[])?;
    build_go_plugin("ratelimit", "rate-limit-service", &[])?;
    build_go_plugin("registry", "oci-registry", &[])?;
    build_go_plugin("distribution", "oci-distribution", &[])?;
    build_go_plugin("prometheus", "prometheus-queries", &[])?;
    build_go_plugin("envoy-admin", "envoy-admin-decoder", &[])?;
    build_helm()?;
    cross::install_target(WASM_TARGET)?;
    build_rust_plugin()?;
    build_published_plugins()?;
    let wasm = ["-buildmode=c-shared", "-ldflags=-s -w"];
    build_go_plugin("plugins/go", "plugin-go.wasm", &wasm).map(drop)
}

/// Builds actionlint, the linter of GitHub workflows, and returns its path.
pub(crate) fn build_actionlint() -> Result<PathBuf> {
    build_go_plugin("actionlint", "actionlint", &[])
}

/// Builds the OTLP receiver and returns its path.
pub(crate) fn build_collector() -> Result<PathBuf> {
    build_go_plugin("collector", "otlp-collector", &[])
}

/// Builds Helm, which renders and installs the chart in tests.
pub(crate) fn build_helm() -> Result<()> {
    let program = shell::target_dir().join("debug/helm");
    let mut go = go_build("helm", &program);
    go.arg("helm.sh/helm/v3/cmd/helm").env("CGO_ENABLED", "0");
    shell::run("build helm", &mut go)
}

/// Builds Kubernetes and the other programs of the tests on clusters, with the `ambit-cluster` that has been built.
pub(crate) fn build_cluster_programs() -> Result<()> {
    let mut build = cluster_command();
    shell::run("build the programs of clusters", build.arg("build"))
}

/// Returns a command that runs the `ambit-cluster` that has been built.
pub(crate) fn cluster_command() -> Command {
    let mut command = Command::new(shell::target_dir().join("debug/ambit-cluster"));
    command
        .arg("--target")
        .arg(shell::target_dir())
        .arg("--sources")
        .arg(shell::workspace_root().join("build"));
    command
}

/// Builds SPIRE, which takes minutes the first time.
pub(crate) fn build_spire() -> Result<()> {
    let program = shell::target_dir().join("debug/spire");
    // Its data store is a C library.
    let mut go = go_build("spire", &program);
    shell::run("build spire", go.arg(".").env("CGO_ENABLED", "1"))
}

/// Builds a Go program, or with the flags `wasm` a WebAssembly module, into the directory of the workspace's programs.
fn build_go_plugin(source: &str, name: &str, wasm: &[&str]) -> Result<PathBuf> {
    let program = shell::target_dir().join("debug").join(name);
    let mut go = go_build(source, &program);
    go.args(wasm).arg(".").env("CGO_ENABLED", "0");
    if !wasm.is_empty() {
        go.env("GOOS", "wasip1").env("GOARCH", "wasm");
    }
    shell::run(&format!("build {name}"), &mut go)?;
    Ok(program)
}

/// Returns a command that builds the Go module in a directory below `build`; the caller adds the package and other
/// flags.
fn go_build(source: &str, program: &Path) -> Command {
    let mut go = Command::new("go");
    // Without debugging information and inlining, and with a lazier collector, the compiler needs a third less time.
    go.args(["build", "-trimpath", "-buildvcs=false"])
        .args(["-gcflags=all=-dwarf=false -l", "-o"])
        .arg(program)
        .env("GOGC", "400")
        .current_dir(shell::workspace_root().join("build").join(source));
    go
}

/// Builds the Wasm plugin that is written in Rust.
fn build_rust_plugin() -> Result<()> {
    let manifest = shell::workspace_root().join("build/plugins/rust/Cargo.toml");
    build_wasm("plugin-rust.wasm", &manifest, &["--lib"], "-D warnings")?;
    copy_to_programs("test_plugin.wasm", "plugin-rust.wasm")
}

/// Builds the example filters of the published SDK crate, unchanged.
fn build_published_plugins() -> Result<()> {
    let names = ["http_headers", "http_body", "http_config"];
    let examples: Vec<&str> = names.iter().flat_map(|name| ["--example", name]).collect();
    // The published crate predates this lint.
    let lints = "-A unexpected_cfgs";
    build_wasm("published filters", &sdk_manifest_path()?, &examples, lints)?;
    for name in names {
        let to = format!("published-{}.wasm", name.replace('_', "-"));
        copy_to_programs(&format!("examples/{name}.wasm"), &to)?;
    }
    Ok(())
}

/// Returns the manifest path of the SDK crate that `build/plugins/published` depends on.
fn sdk_manifest_path() -> Result<PathBuf> {
    let mut cargo = shell::cargo(&["metadata", "--locked", "--format-version=1"]);
    let manifest = shell::workspace_root().join("build/plugins/published/Cargo.toml");
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

/// Builds WebAssembly modules of a crate outside the workspace.
fn build_wasm(what: &str, manifest: &Path, which: &[&str], flags: &str) -> Result<()> {
    let mut cargo = shell::cargo(&["build", "--locked", "--release", "--target", WASM_TARGET]);
    cargo
        .args(which)
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--target-dir")
        .arg(plugins_directory())
        .env("RUSTFLAGS", flags);
    shell::run(&format!("build {what}"), &mut cargo)
}

fn plugins_directory() -> PathBuf {
    shell::target_dir().join("plugins")
}

/// Copies a WebAssembly module to the directory of the workspace's programs.
fn copy_to_programs(built: &str, name: &str) -> Result<()> {
    let built = plugins_directory()
        .join(WASM_TARGET)
        .join("release")
        .join(built);
    let beside = shell::target_dir().join("debug").join(name);
    fs::copy(&built, &beside).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(())
}
